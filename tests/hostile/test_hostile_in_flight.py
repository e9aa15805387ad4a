"""Memory per mail, besides its content, while the scanner works on it: there may be thousands."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.testing import SmtpClient
from tests.hostile.hostile_kit import Hanging, bridge_process

FEW, MANY = 50, 250
BESIDE = 12 * 1024  # bytes; measured 9.5 KiB when this was written, 20 KiB before
CONTENT = b"Subject: x\r\n\r\n" + (b"x" * 76 + b"\r\n") * 1300 + b".\r\n"  # 100 KiB


@pytest.mark.long
def test_mail_being_scanned_costs_little_besides_its_content(tmp_path: Path) -> None:
    """Spooled content is on disk, so the growth is the rest: connections, transactions, tasks."""
    config = {
        "admission": {"max_in_processing": MANY, "throttle_threshold": MANY},
        "limits": {"max_connections_per_client": MANY + 10},
        "spool": {"memory_per_mail": "16KiB"},
    }
    with bridge_process(tmp_path, config) as bridge, ExitStack() as clients:
        bridge.scanner.reply = Hanging()
        sizes = []
        for count in (FEW, MANY - FEW):
            for _ in range(count):
                client = SmtpClient(bridge.port)
                clients.callback(client.close)
                client.open()
                client.begin()
                client.send(CONTENT)
            for _ in range(count):
                assert bridge.scanner.arrived.acquire(timeout=60)
            sizes.append(bridge.memory())
        each = (sizes[1] - sizes[0]) / (MANY - FEW)
        assert each < BESIDE, each
