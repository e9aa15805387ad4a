"""docs/understand/faults.md names a test for each case of "nothing lost": the tests exist and have a docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "understand" / "faults.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| ((?:`[^`]+::[^`]+` ?)+) \|$", PAGE, re.MULTILINE)


def test_the_table_is_read() -> None:
    assert len(ROWS) >= 30


@pytest.mark.parametrize(("case", "named"), ROWS, ids=[case for case, _ in ROWS])
def test_every_case_has_its_tests(case: str, named: str) -> None:
    for name in re.findall(r"`([^`]+)`", named):
        file, _, function = name.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
