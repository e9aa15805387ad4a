"""One daemon with pages for users, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.digests.digest_kit import Users, users
from tests.requirements import unavailable


@pytest.fixture(scope="session", autouse=True)
def _libraries() -> None:
    for library in ("argon2", "authlib", "jinja2", "nh3", "pyzipper"):
        try:
            __import__(library)
        except ImportError:
            unavailable(f"{library} is not installed (pip install 'scanbridge[console]')")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    with users(tmp_path_factory.mktemp("digests"), {"notify": ["postmaster@a.example"]}) as made:
        yield made
