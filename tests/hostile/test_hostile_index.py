"""README.md maps cases to tests: every test it names exists, and every test in this directory is named."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
ROWS = re.findall(r"^\| ([^|]+) \| ((?:`[^`]+` ?)+) \|$", (HERE / "README.md").read_text(), re.MULTILINE)
NAMED = {name for _, names in ROWS for name in re.findall(r"`([^`]+)`", names)}


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("case", "names"), ROWS, ids=[case for case, _ in ROWS])
def test_every_test_named_on_the_page_exists(case: str, names: str) -> None:
    """A case whose test does not exist would be an unverified claim."""
    for name in re.findall(r"`([^`]+)`", names):
        file, _, function = name.partition("::")
        assert (TESTS / file).exists(), f"{case}: {file}"
        assert not function or function in functions(file), f"{case}: {name}"


def test_every_test_here_is_on_the_page() -> None:
    """A new test must be added to the page."""
    here = {
        f"hostile/{path.name}::{name}"
        for path in HERE.glob("test_*.py")
        for name in functions(f"hostile/{path.name}")
        if name.startswith("test_")
    }
    assert len(here) > 60
    assert here - NAMED == set()
