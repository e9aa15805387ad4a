"""The command line of `scanbridge`, read from click: for the man pages and for the reference page.

Both say what `--help` says, in another form, so a command cannot be missing from either of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from bridge.cli import main

Words = tuple[str, ...]  # the words of a command: ("scanbridge", "lists", "sync")

HELP = ("-h, --help", "Show this message and exit.")
EXIT_STATUS = [
    ("0", "Done."),
    ("1", "The command failed; the reason is on standard error."),
    ("2", "The command line is invalid."),
    ("78", "The configuration has errors; each is shown with its file and line."),
    ("130", "Interrupted with Ctrl-C."),
]


def subcommands(command: click.Command = main) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group, in the order of --help."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield name, found


def descendants(words: Words, command: click.Command) -> Iterator[tuple[Words, click.Command]]:
    """Every command below this one that does something by itself, at any depth."""
    for name, child in subcommands(command):
        if not isinstance(child, click.Group) or child.invoke_without_command:
            yield (*words, name), child
        yield from descendants((*words, name), child)


def usage(words: Words, command: click.Command) -> str:
    """The arguments, as in the first line of --help."""
    return " ".join(command.collect_usage_pieces(_context(words, command)))


def options(words: Words, command: click.Command) -> list[tuple[str, str]]:
    """Each option and its meaning, as in --help, with its environment variable where there is one."""
    context = _context(words, command)
    found = []
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            variable = parameter.envvar
            found.append((record[0], record[1] + (f" Environment: {variable}." if variable else "")))
    # Not click's own help option: it remembers the first names that it was ever asked for.
    return [*found, HELP]


def _context(words: Words, command: click.Command) -> click.Context:
    return click.Context(command, info_name=words[-1])


def summary(command: click.Command) -> str:
    """The first sentence of --help."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", first)[0].rstrip(".")


def paragraphs(command: click.Command) -> list[str]:
    """The text of --help. `\\b` on a line of its own is click's mark for a paragraph that must not be filled."""
    return re.sub(r"^\b\n", "", command.help or "", flags=re.MULTILINE).strip().split("\n\n")
