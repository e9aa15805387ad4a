"""One daemon, one console and one browser for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.browser_kit import chromium
from tests.console.console_kit import TENANT_A, TENANT_B, World, remember, world
from tests.console.held_kit import holding
from tests.requirements import unavailable


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """With one mail of each tenant and one of none: MAILA, MAILB, MAILNONE, in the history and in the quarantine."""
    for library in ("argon2", "authlib", "jinja2", "nh3", "pyzipper"):
        try:
            __import__(library)
        except ImportError:
            unavailable(f"{library} is not installed (pip install 'scanbridge[console]')")
    with world(tmp_path_factory.mktemp("console")) as made:
        history = made.console.history
        remember(history, ("MAILA", TENANT_A), ("MAILB", TENANT_B), ("MAILNONE", ""))
        history.close()
        with holding(made.console.directory) as put:
            put("MAILA", "jane@a.example")
            put("MAILB", "jim@b.example")
            put("MAILNONE", "x@c.example")
        yield made
