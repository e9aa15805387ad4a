"""The log of operators' actions on quarantined mail: `actions.log`, which is only ever appended to."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from bridge.runtime import durable_files

log = logging.getLogger("scanbridge.quarantine")

_ACTIONS = "actions.log"


def log_action(directory: Path, action: str, mail_id: str, by: str, **facts: object) -> None:
    """Write one line about an action to the log and to `actions.log`. Raises OSError."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line: dict[str, object] = {"time": now, "action": action, "id": mail_id, "by": by, **facts}
    log.info("%s", json.dumps(line))
    path = directory / _ACTIONS
    fd = durable_files.open_own(path, os.O_WRONLY | os.O_APPEND)
    try:
        durable_files.give_to_owner(path)
        os.write(fd, json.dumps(line).encode("ascii") + b"\n")
    finally:
        os.close(fd)
