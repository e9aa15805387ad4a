"""Deprecated commands and options: they work as before, and say on standard error what replaces them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.single_values import Group
from bridge.runtime.renamed_keys import Renamed
from tools.commands import descendants

NOTE = re.compile(r"use .+; version (\d+(?:\.\d+)+) removes it")


def program() -> Group:
    """Built from the classes that our commands are built from."""
    group = Group()

    @group.command(deprecated="use `new`; version 99.1 removes it")
    @click.option("--old", deprecated="use --name; version 99.1 removes it")
    def thing(old: str) -> None:
        click.echo(old)

    return group


def deprecations(command: click.Command) -> Iterator[tuple[str, bool | str]]:
    for words, each in [(("scanbridge",), command), *descendants(("scanbridge",), command)]:
        name = " ".join(words)
        if each.deprecated:
            yield name, each.deprecated
        yield from ((f"{name} {one.name}", one.deprecated) for one in each.params if one.deprecated)


def outlived(command: click.Command) -> list[str]:
    """What should be gone by now, or does not say when it will be."""
    found = [(name, NOTE.fullmatch(str(note))) for name, note in deprecations(command)]
    return [name for name, note in found if note is None or Renamed(name, name, note[1]).is_expired]


def test_a_deprecated_command_says_so_beside_its_output() -> None:
    """A program that reads standard output does not see the warnings; --help shows them, too."""
    done = CliRunner().invoke(program(), ["thing", "--old", "x"])
    assert (done.exit_code, done.stdout) == (0, "x\n")
    assert "use `new`; version 99.1 removes it" in done.stderr
    assert "use --name; version 99.1 removes it" in done.stderr
    assert "DEPRECATED: use --name" in CliRunner().invoke(program(), ["thing", "--help"]).stdout


@pytest.mark.parametrize(
    ("note", "is_fine"),
    [
        ("use `b`; version 99.1 removes it", True),
        ("use `b`; version 0.0.9 removes it", False),
        ("use `b`", False),
    ],
)
def test_a_deprecation_expires_with_its_version(note: str, is_fine: bool) -> None:
    group = Group()
    group.command(name="a", deprecated=note)(lambda: None)
    assert outlived(group) == ([] if is_fine else ["scanbridge a"])


def test_no_deprecated_command_outlives_its_version() -> None:
    assert not outlived(main), "remove them, and say so in CHANGELOG.md"
