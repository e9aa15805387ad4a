"""`scanbridge check` and digests: what would keep users from being told, or their links from working."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.cli.check.digests import check_digests
from bridge.config.model import load
from bridge.runtime import yaml_file

GOOD: dict[str, Any] = {
    "schedule": "daily", "from": "q@a.example", "domains": ["a.example"], "notify": ["postmaster@a.example"],
    "page": {"public_url": "https://mail.a.example/quarantine"},
}  # fmt: skip
CONSOLE: dict[str, Any] = {"public_url": "https://console.a.example"}


def found(directory: Path, digests: dict[str, Any], **sections: Any) -> list[tuple[str, str, str]]:
    """What, its state, and its text."""
    (directory / "token").write_text("secret-token\n")
    data = {
        "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "token"},
        "listeners": [{"name": "in", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "smtp://127.0.0.1:2"},
        "state_directory": str(directory / "state"),
        "digests": digests,
        **sections,
    }
    (directory / "bridge.yml").write_text(yaml_file.dump(data))
    findings = check_digests(load(directory / "bridge.yml"))
    return [(finding.what, finding.state, finding.text) for finding in findings]


def test_nothing_is_said_about_digests_that_are_off(tmp_path: Path) -> None:
    assert found(tmp_path, {}) == []


def test_a_good_set_up_has_no_findings(tmp_path: Path) -> None:
    assert {state for _, state, _ in found(tmp_path, GOOD, console=CONSOLE)} == {"ok"}


@pytest.mark.parametrize(
    ("digests", "sections", "state", "text"),
    [
        ({"key_file": "missing"}, {"console": CONSOLE}, "problem", "run `scanbridge digest keys rotate` to create it"),
        ({"aliases_file": "missing"}, {"console": CONSOLE}, "problem", "digests.aliases_file"),
        ({"page": {}}, {"console": CONSOLE}, "warning", "set digests.page.public_url"),
        ({}, {}, "warning", "there is no console in which a releaser can decide"),
        ({"notify": []}, {"console": CONSOLE}, "note", "set digests.notify"),
        ({}, {"console": {}}, "note", "set console.public_url"),
        (
            {},
            {"console": CONSOLE, "state_database": "postgresql://scanbridge@127.0.0.1/scanbridge"},
            "note",
            "each machine that shares this database tells users about its own quarantine",
        ),
    ],
)
def test_each_mistake_is_found(
    tmp_path: Path, digests: dict[str, Any], sections: dict[str, Any], state: str, text: str
) -> None:
    ((_, found_state, found_text),) = [
        each for each in found(tmp_path, {**GOOD, **digests}, **sections) if each[1] != "ok"
    ]
    assert found_state == state and text in found_text


def test_a_template_with_a_mistake_is_named(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "digest.txt").write_text("{% if %}")
    ((_, state, text),) = [
        each for each in found(tmp_path, {**GOOD, "templates": "templates"}, console=CONSOLE) if each[1] != "ok"
    ]
    assert state == "problem" and "digest.txt" in text


def test_keys_that_everybody_can_read_are_a_warning(tmp_path: Path) -> None:
    found(tmp_path, GOOD, console=CONSOLE)
    (tmp_path / "state" / "digest-keys").chmod(0o644)
    ((_, state, text),) = [each for each in found(tmp_path, GOOD, console=CONSOLE) if each[1] != "ok"]
    assert state == "warning" and "chmod 600" in text
