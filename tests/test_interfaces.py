"""The interfaces that a version promises do not change unnoticed (docs/reference/stability.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import interfaces

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "stability.md"


@pytest.mark.parametrize("name", interfaces.INTERFACES)
def test_interface_is_as_recorded(name: str) -> None:
    """A change must be recorded, so that the reviewer and the changelog see it."""
    found = interfaces.change(name)
    assert not found, found


def test_every_recorded_list_is_checked_and_promised() -> None:
    """No list without a check, and none that the page does not explain."""
    names = {path.stem for path in interfaces.RECORDED.glob("*.txt")}
    assert names == set(interfaces.INTERFACES)
    page = PAGE.read_text()
    assert [name for name in sorted(names) if f"tests/interfaces/{name}.txt" not in page] == []


def test_a_changed_interface_says_how_to_record_it(tmp_path: Path) -> None:
    """The message has the lines that differ, and the command."""
    (tmp_path / "log-keys.txt").write_text("\n".join(["id", *interfaces.current("log-keys"), "zzz"]) + "\n")
    found = interfaces.change("log-keys", tmp_path)
    assert "\n-zzz\n" in found and "python -m tools.interfaces --record" in found
    interfaces.record(["log-keys"], tmp_path)
    assert interfaces.change("log-keys", tmp_path) == ""
