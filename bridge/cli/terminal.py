"""The terminal: the one place where commands write to standard output and standard error.

Most of what commands print was written by somebody else: a mail's author, the service, a mail server, or the
person who named a file. So everything goes through `visible`, including our own text, so that no command can forget it.
Nothing is ever read as markup. JSON is for programs, and is written in ASCII.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import click

from bridge.runtime.visible_text import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console


EXIT_INTERRUPTED = 130  # by Ctrl-C, as shells report it


class CannotPrint(click.ClickException):
    """Standard output cannot be written, for example because the disk is full."""

    def show(self, file: IO[Any] | None = None) -> None:
        say(self.message, err=True)


@contextmanager
def printing() -> Iterator[None]:
    """For what writes to standard output itself. Raises CannotPrint.

    A closed pipe remains a BrokenPipeError: its reader needs no more, and click exits quietly.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        discard_output()
        raise CannotPrint(f"cannot write to standard output: {exc.strerror}") from exc


def discard_output() -> None:
    """From now on; otherwise, flushing the buffer at exit would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def say(line: str = "", *, err: bool = False) -> None:
    """One line. Raises CannotPrint, as do all functions that write here."""
    _write(visible(line), err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Several lines that we divided ourselves; text from outside must not contain line feeds."""
    _write(visible_lines(text), err=err, nl=text[-1:] not in ("", "\n"))


def say_cells(*cells: str) -> None:
    """One line of cells separated by tabs, for scripts."""
    _write("\t".join(map(visible, cells)))


def say_csv(*cells: str) -> None:
    """One row for a spreadsheet."""
    from bridge.runtime.csv_row import csv_row  # only a few commands need it

    _write(csv_row(*cells), nl=False)


def say_json(data: object, indent: int | None = None) -> None:
    """An object for programs. JSON in ASCII contains no character that acts on a terminal, except DEL."""
    _write(json.dumps(data, indent=indent).replace("\x7f", "\\u007f"))


def _write(text: str, *, err: bool = False, nl: bool = True) -> None:
    if err:
        click.echo(text, err=True, nl=nl)
        return
    with printing():
        click.echo(text, nl=nl)


def width() -> int | None:
    """The terminal's width; None if standard output is a pipe or a file."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def can_ask() -> bool:
    """Whether a person can read our question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, abort: bool = False) -> bool:
    """Asks on standard error."""
    return click.confirm(visible(question), abort=abort, err=True)


def consents(what: str, *, otherwise: str) -> bool | None:
    """Whether the operator agrees to `what`: a verb and its object. None if nobody can be asked."""
    if not can_ask():
        say(f"this would {what}: add --yes to confirm; {otherwise}", err=True)
        return None
    is_agreed = confirm(f"{what[:1].upper()}{what[1:]}?")
    if not is_agreed:
        say(otherwise, err=True)
    return is_agreed


def ask_secret(question: str) -> str:
    """Asks twice on standard error, without an echo; reads the first line of standard input if that is a file or pipe.

    Never an argument of a command: other users of the machine can read those.
    """
    if sys.stdin.isatty():
        return str(click.prompt(visible(question), hide_input=True, confirmation_prompt=True, err=True))
    line = sys.stdin.buffer.readline()
    try:
        return line.decode().rstrip("\r\n")  # in every locale
    except UnicodeDecodeError:
        raise click.ClickException("standard input is not UTF-8 text") from None


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """For tables and pictures: text is text, without markup, emoji codes or guessed colours."""
    from rich.console import Console  # only some commands need it, and it takes 50 ms to import

    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def visible_data(value: Any) -> Any:
    """The same data with every text in it made visible."""
    match value:
        case str():
            return visible(value)
        case dict():
            return {visible(key) if isinstance(key, str) else key: visible_data(child) for key, child in value.items()}
        case list() | tuple():
            return [visible_data(child) for child in value]
        case _:
            return value


def visible_error(exc: click.ClickException) -> click.ClickException:
    """An error of the command line itself, which quotes arguments and file names."""
    message = exc.format_message()
    shown = visible_lines(message.replace("\n\t", " "))  # click's list of choices
    if shown == message:
        return exc
    return click.UsageError(shown, exc.ctx) if isinstance(exc, click.UsageError) else click.ClickException(shown)


def set_up() -> None:
    """Before any command: a character that the terminal's encoding lacks is shown as `?`, and crashes show text."""
    sys.excepthook = show_crash
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def hide_log() -> None:
    """For commands that report everything themselves: without any handler, Python prints warnings to standard error."""
    import logging

    logging.getLogger("bridge").addHandler(logging.NullHandler())


def show_crash(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    """A bug's traceback may quote what caused it."""
    sys.stderr.write(visible_lines("".join(traceback.format_exception(kind, exc, trace)).rstrip("\n")) + "\n")
