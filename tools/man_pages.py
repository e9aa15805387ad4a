"""Makes the man pages and the shell completion from the command line itself. tools/generate.py calls it.

One page for each command of `scanbridge`; the commands below it are sections of its page. Words, options and
defaults are those of --help, so a command cannot be without its page: a test fails when a page is out of date.
The completion scripts are click's own. They ask the program, so they know each of its commands for ever.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from bridge import __version__
from bridge.cli import main

ROOT = Path(__file__).parents[1]
MAN, COMPLETIONS = ROOT / "man", ROOT / "completions"
SCRIPTS = {"bash": "scanbridge.bash", "zsh": "_scanbridge", "fish": "scanbridge.fish"}

DATE = "<date>"
Path_ = tuple[str, ...]  # the words of a command: ("scanbridge", "lists", "sync")

EXIT_STATUS = [
    ("0", "Done."),
    ("1", "It failed; standard error says why."),
    ("2", "The command line is wrong."),
    ("78", "The configuration has mistakes; all of them are shown with file and line."),
]
FILES = [
    ("/etc/scanbridge/bridge.yml", "The bridge's configuration, where it was installed as a package."),
    ("/etc/scanbridge/service.yml", "The scanning service's."),
    ("/var/lib/scanbridge", "Quarantine and state of the bridge."),
]
HELP = ("-h, --help", "Show this message and exit.")
ABOUT = """\
scanbridge takes each mail of a mail server over SMTP, LMTP or milter, submits it with its envelope to an HTTP scanning
service, and turns the decision into what the mail server understands: relay, refuse, discard, quarantine, or "try
again later". 250 means that the next server said 250, or that the mail is in the quarantine on disk, or that the
decision was to drop it.
"""


def pages() -> dict[Path, str]:
    """Every man page and what it must hold; a page that does not change keeps its date."""
    found = {MAN / "scanbridge.1": _first_page()}
    for name, command in _below(main):
        found[MAN / f"scanbridge-{name}.1"] = _page(("scanbridge", name), command)
    return {place: _dated(place, text) for place, text in found.items()}


def _dated(place: Path, text: str) -> str:
    old = place.read_text() if place.exists() else ""
    if date := re.search(r'^\.TH \S+ 1 "([\d-]+)"', old, re.MULTILINE):
        same = text.replace(DATE, date[1], 1)
        if same == old:
            return same
    return text.replace(DATE, time.strftime("%Y-%m-%d"), 1)


def completions() -> dict[Path, str]:
    """The completion script for each shell."""
    return {COMPLETIONS / name: _script(shell) for shell, name in SCRIPTS.items()}


def _script(shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(main, {}, "scanbridge", "_SCANBRIDGE_COMPLETE")
    return str(found.source_template % found.source_vars()).strip() + "\n"


def _below(command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group, in the order of --help."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield name, found


# A page


def _first_page() -> str:
    commands = [(f"scanbridge-{name}(1)", _summary(command)) for name, command in _below(main)]
    parts = [
        *_head("scanbridge", _summary(main)),
        *_synopsis(("scanbridge",), main),
        ".SH DESCRIPTION",
        _text(ABOUT),
        ".SH COMMANDS",
        *_list(commands),
        *_options(("scanbridge",), main),
        *_foot(("scanbridge",)),
    ]
    return "\n".join(parts) + "\n"


def _page(path: Path_, command: click.Command) -> str:
    parts = [*_head("-".join(path), _summary(command)), *_synopsis(path, command), ".SH DESCRIPTION", *_help(command)]
    parts += _options(path, command)
    if below := list(_walk(path, command)):
        parts.append(".SH COMMANDS")
        for words, one in below:
            parts += [f".SS {_quoted(' '.join(words))}", *_usage(words, one), ".PP", *_help(one)]
            parts += _list(_records(words, one))
    return "\n".join([*parts, *_foot(path)]) + "\n"


def _walk(path: Path_, command: click.Command) -> Iterator[tuple[Path_, click.Command]]:
    """Every command below this one that does something, however deep."""
    for name, one in _below(command):
        if not isinstance(one, click.Group) or one.invoke_without_command:
            yield (*path, name), one
        yield from _walk((*path, name), one)


def _head(name: str, summary: str) -> list[str]:
    return [
        '.\\" Made by tools/man_pages.py from the command line: change it there, then "make docs".',
        f'.TH {name.upper()} 1 "{DATE}" "scanbridge {__version__}" "scanbridge"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(summary)}",
    ]


def _synopsis(path: Path_, command: click.Command) -> list[str]:
    return [".SH SYNOPSIS", *_usage(path, command)]


def _usage(path: Path_, command: click.Command) -> list[str]:
    pieces = command.collect_usage_pieces(_context(path, command))
    return [f".B {_escaped(' '.join(path))}", f".RI {_quoted(' '.join(pieces))}"]


def _options(path: Path_, command: click.Command) -> list[str]:
    return [".SH OPTIONS", *_list(_records(path, command))]


def _records(path: Path_, command: click.Command) -> list[tuple[str, str]]:
    """Options and what they mean, as --help has them; with the variable of the environment where there is one."""
    context = _context(path, command)
    found = []
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            variable = parameter.envvar
            found.append((record[0], record[1] + (f" Environment: {variable}." if variable else "")))
    return [*found, HELP]  # not click's own option: it keeps the first names that it was ever asked for


def _context(path: Path_, command: click.Command) -> click.Context:
    return click.Context(command, info_name=path[-1])


def _foot(path: Path_) -> list[str]:
    others = [f"scanbridge-{name}" for name, _ in _below(main)]
    seen = [one for one in ["scanbridge", *others] if one != "-".join(path)]
    also = ",\n".join(f".BR {_escaped(one)} (1)" for one in seen).replace("(1),", "(1) ,")
    return [".SH EXIT STATUS", *_list(EXIT_STATUS), ".SH FILES", *_list(FILES), ".SH SEE ALSO", also]


# Roff


def _summary(command: click.Command) -> str:
    """The first sentence of --help."""
    first = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", first)[0].rstrip(".")


def _help(command: click.Command) -> list[str]:
    text = re.sub(r"^\b\n", "", command.help or "", flags=re.MULTILINE)
    return "\n.PP\n".join(_text(one) for one in text.strip().split("\n\n")).split("\n")


def _list(rows: list[tuple[str, str]]) -> list[str]:
    found = []
    for term, text in rows:
        found += [".TP", f".B {_escaped(term)}", _text(text)]
    return found


def _text(text: str) -> str:
    """A paragraph, filled: at the end of a sentence no word may begin with a dot or an apostrophe."""
    lines = textwrap.wrap(" ".join(text.split()), 78, break_long_words=False, break_on_hyphens=False)
    return "\n".join(re.sub(r"^(?=[.'])", r"\\&", _escaped(line)) for line in lines)


def _escaped(text: str) -> str:
    return (
        text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace('"', "\\(dq")
    )


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def write() -> None:
    MAN.mkdir(exist_ok=True)
    COMPLETIONS.mkdir(exist_ok=True)
    made = {**pages(), **completions()}
    for old in set(MAN.glob("*.1")) - set(made):
        old.unlink()
    for place, text in made.items():
        place.write_text(text)


if __name__ == "__main__":
    write()
