"""The scanning service beside the bridge, at the first scanner URL, with a token made at first start."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from bridge.config import Config
from bridge.daemon import files, wiring
from bridge.service import settings
from bridge.service.serve import ServiceServer

log = logging.getLogger(__name__)


def make_token(conf: Config) -> None:
    """Unless there is one. Raises ConfigError."""
    files.make_secret(files.locate(conf.scanner.token_file, conf.directory), "scanner.token_file")


async def start_service(conf: Config, state: Path, sockets: Sequence[socket.socket] | None = None) -> ServiceServer:
    """In the running event loop, on these sockets or on one of its own."""
    make_token(conf)
    listen = wiring.service_address(conf)
    service = ServiceServer()
    await service.start(settings.embedded(state, str(listen), wiring.token(conf)), sockets)
    log.info("scanning service on %s", listen)
    return service
