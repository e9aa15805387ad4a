"""One bridge shared by the tests of a module, and a certificate for it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from bridge.testing import RunningBridge, running_bridge


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("bridge")) as running:
        yield running


@pytest.fixture
def shared(_shared: RunningBridge) -> RunningBridge:
    """A shared bridge, reset to a clean state: nothing recorded, everything accepted."""
    return made_clean(_shared)


def made_clean(bridge: RunningBridge) -> RunningBridge:
    """What earlier tests have sent, set and waited for is forgotten."""
    bridge.forget()
    while bridge.scanner.arrived.acquire(blocking=False):
        pass
    return bridge


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ssl.SSLContext]:
    """The `tls` setting of a listener, and a client context that verifies it."""
    directory: Path = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    cert = ca.issue_cert("bridge.example")
    cert.private_key_pem.write_to_path(directory / "key.pem")
    for blob in cert.cert_chain_pems:
        blob.write_to_path(directory / "cert.pem", append=True)
    context = ssl.create_default_context()
    ca.configure_trust(context)
    return {"cert_file": str(directory / "cert.pem"), "key_file": str(directory / "key.pem")}, context
