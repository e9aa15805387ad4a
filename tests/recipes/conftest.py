"""The recipes of deploy/, each with its real mail server; see `recipe_kit.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.recipes.recipe_kit import Service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service")) as service:
        yield service
