"""Man pages and shell completion: generated from the command line, up to date, and accepted by the real programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bridge.cli import main
from bridge.cli.single_values import Command
from tests.requirements import need
from tools import man_pages

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "man").glob("*.1"))


def commands(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, *words, name)


def test_every_command_refuses_an_option_that_is_given_twice() -> None:
    """click would ignore the first value, and `delete` could delete other mail than was meant."""
    assert [words for words, command in commands(main) if not isinstance(command, Command)] == []


def test_man_pages_are_up_to_date() -> None:
    """`make docs` would change nothing, add nothing and remove nothing."""
    made = man_pages.pages()
    assert sorted(made) == PAGES, "run `make docs`"
    for place, text in made.items():
        assert place.read_text() == text, f"{place.name}: run `make docs`"


def test_every_command_and_option_is_in_a_page() -> None:
    """Searches the text of the pages, independently of the code that writes them."""
    for words, command in commands(main):
        page = ROOT / "man" / f"{'-'.join(['scanbridge', *words[:1]])}.1"
        text = page.read_text().replace("\\-", "-")
        assert len(words) < 2 or isinstance(command, click.Group) or f'.SS "scanbridge {" ".join(words)}"' in text, (
            words
        )
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.opts[-1] in text, (words, parameter.opts)


def test_man_and_mandoc_print_no_warnings() -> None:
    """Neither of the two common man page viewers prints a warning."""
    need("mandoc", "man")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *PAGES], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "")
    for page in PAGES:
        words = ["man", "--warnings", "-l", page]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=os.environ | {"LC_ALL": "C.UTF-8"})
        assert done.stderr == "" and "SEE ALSO" in re.sub("\x1b\\[\\d*m|.\b", "", done.stdout), page


# Completion

ASK = {
    "bash": """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
compopt() {{ :; }}
_scanbridge_completion scanbridge
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # Overridden functions print what zsh would offer.
    "zsh": """
compdef() {{ :; }}
_describe() {{ print -l -- ${{(P)3}} }}
compadd() {{ print -l -- ${{(P)argv[-1]}} }}
words=({words}) CURRENT={count}
source {script}
_scanbridge_completion
""",
    "fish": "source {script}; complete -C '{line}'",
}


@pytest.mark.parametrize(
    ("shell", "line", "offered"),
    [
        ("bash", ("qu",), {"quarantine"}),
        ("bash", ("setup", "postfix", "--mode", ""), {"proxy", "milter", "content-filter"}),
        ("zsh", ("st",), {"status"}),
        ("zsh", ("setup", "postfix", "--fi"), {"--file"}),
        ("fish", ("sta",), {"status"}),
        ("fish", ("setup", "postfix", "--li"), {"--listener"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_shell_completes(shell: str, line: tuple[str, ...], offered: set[str], tmp_path: Path) -> None:
    """The installed script, in the real shell, offers the commands and options of the program."""
    need(shell)
    program = tmp_path / "scanbridge"
    program.write_text(f"#!{sys.executable}\nfrom bridge.cli import main\nmain(prog_name='scanbridge')\n")
    program.chmod(0o755)
    name = {"bash": "scanbridge.bash", "zsh": "_scanbridge", "fish": "scanbridge.fish"}[shell]
    words = ["scanbridge", *line]
    quoted = " ".join(f"'{word}'" for word in words)
    asked = ASK[shell].format(
        script=ROOT / "completions" / name, words=quoted, last=len(line), count=len(words), line=" ".join(words)
    )
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", asked], capture_output=True, text=True, timeout=60, env=os.environ | variables
    )
    found = set(re.split(r"[\s:]", done.stdout)) & ({"run", "check"} | offered)
    assert found == offered, done.stdout + done.stderr
