"""Each module has one bridge; each test has one connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.testing import RunningBridge, answer, result
from tests.intake.hooks.hooks_kit import MailServer


@pytest.fixture
def server(bridge: RunningBridge) -> Iterator[MailServer]:
    bridge.scanner.reply, bridge.scanner.reply_to = answer(200, result()), {}
    with MailServer(bridge.port) as one:
        yield one
