"""Which mails a command acts on, and the operator's consent.

Mails are named by their ids, or selected by the filters of `list`; all mail is selected only with `--all`. The
selection is made once: what is shown before the question is what is acted on, even if more mail arrives meanwhile.
An id must be complete: one that was cut off while copying could match another mail.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.parameters import Limit
from bridge.cli.quarantine.filters import with_filters
from bridge.cli.terminal import can_ask, consents, say
from bridge.runtime.counted import counted

if TYPE_CHECKING:
    from bridge.cli.quarantine.session import Session
    from bridge.quarantine.record import MailRecord

_SHOWN = 20  # mails shown before a question
_IN_A_LOG = 160  # columns

_CONSENT = (
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
    click.option("--dry-run", is_flag=True, help="Only show which mails would be affected."),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What the operator gave on the command line."""

    ids: tuple[str, ...]
    wanted: dict[str, Any]  # filters
    limit: int = 0
    everything: bool = False
    yes: bool = False
    dry_run: bool = False

    @property
    def is_by_filter(self) -> bool:
        return not self.ids


@dataclass(slots=True)
class Selection:
    mails: list[MailRecord]
    codes: list[int] = field(default_factory=list)  # of ids that could not be used


def with_selection(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ids, filters, --all, --limit, --yes and --dry-run; the command gets them as one `choice`."""

    @functools.wraps(command)
    def wrapped(ids: tuple[str, ...], wanted: dict[str, Any], **given: Any) -> None:
        names = ("limit", "everything", "yes", "dry_run")
        command(choice=Choice(ids, wanted, *(given.pop(name) for name in names)), **given)

    options = (
        click.argument("ids", metavar="[ID]...", nargs=-1),
        with_filters,
        click.option("--all", "everything", is_flag=True, help="Select all mail."),
        click.option("--limit", type=Limit(1), default=None, help="Select at most this many mails, newest first."),
        *_CONSENT,
    )
    return functools.reduce(lambda made, option: option(made), reversed(options), wrapped)


def with_consent(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda made, option: option(made), reversed(_CONSENT), command)


def select(session: Session, choice: Choice) -> Selection:
    """The mails. Reports ids that do not exist, and an empty result. Exits if nothing was selected."""
    if choice.ids:
        if choice.wanted or choice.everything or choice.limit:
            raise click.UsageError("give either ids or filters, not both")
        return by_ids(session, choice.ids)
    if choice.everything and choice.wanted:
        raise click.UsageError("give either filters or --all, not both")
    if not choice.wanted and not choice.everything:
        raise click.UsageError("no mail is selected: give ids, filters as for `quarantine list`, or --all")
    found = session.search(**choice.wanted, limit=choice.limit or 0)
    if not found:
        session.say_none()
    return Selection(found)


def by_ids(session: Session, ids: tuple[str, ...]) -> Selection:
    from bridge.cli.quarantine.exit_codes import EXIT_FAILED, EXIT_UNKNOWN
    from bridge.errors import BridgeError
    from bridge.quarantine.quarantine import MailNotFound

    selection = Selection([])
    for mail_id in dict.fromkeys(ids):
        if not mail_id.strip():
            say("an id is empty; is a variable in your script unset?", err=True)
            selection.codes.append(EXIT_UNKNOWN)
            continue
        try:
            selection.mails.append(session.quarantine.read(mail_id))
        except MailNotFound:
            say(f"{mail_id}: {session.unknown(mail_id)}", err=True)
            selection.codes.append(EXIT_UNKNOWN)
        except BridgeError as exc:
            say(f"{mail_id}: {exc}", err=True)
            selection.codes.append(EXIT_FAILED)
    return selection


def show_dry_run(mails: list[MailRecord], would: str) -> None:
    """The mails on standard output, as `list` shows them, and what would happen on standard error."""
    if mails:
        show_table(mails)
    say(f"would {would} {count(mails)}; nothing was changed", err=True)


def show_table(mails: list[MailRecord]) -> None:
    """On a terminal, aligned and cut to its width; in a pipe, complete and separated by tabs."""
    from bridge.cli.quarantine.columns import QUARANTINED

    QUARANTINED.show(mails)


def consent(mails: list[MailRecord], *, verb: str, yes: bool, done: str, where: str = "") -> None:
    """Show the mails and ask; exits unless the operator agrees. `verb` and `done`: `delete`, `deleted`."""
    from bridge.cli.quarantine.exit_codes import EXIT_FAILED, EXIT_UNCONFIRMED

    if yes or not mails:
        return
    _show_on_error(mails)
    agreed = consents(f"{verb} {count(mails)}{where}", otherwise=f"nothing was {done}")
    if not agreed:
        sys.exit(EXIT_UNCONFIRMED if agreed is None else EXIT_FAILED)


def only_copies(mails: list[MailRecord]) -> str:
    """The end of a question: how many of the mails nobody else has."""
    kept = sum(not mail.delivered for mail in mails)
    if not kept:
        return ""
    if kept == len(mails):
        return "; it was never released" if kept == 1 else "; none of them was ever released"
    return f"; {kept:,} of them {'was' if kept == 1 else 'were'} never released"


def _show_on_error(mails: list[MailRecord]) -> None:
    """The newest of them: the question also goes to standard error."""
    import shutil

    from bridge.cli.quarantine.columns import BRIEF, QUARANTINED

    columns = shutil.get_terminal_size().columns if can_ask() else _IN_A_LOG
    for line in QUARANTINED.lines(mails[:_SHOWN], BRIEF, columns):
        say(line, err=True)
    if len(mails) > _SHOWN:
        say(f"... and {len(mails) - _SHOWN:,} more (--dry-run shows all)", err=True)


def count(mails: list[MailRecord]) -> str:
    """`3 mails (12 KiB, quarantined 2026-01-01 to 2026-01-31)`"""
    from bridge.cli.quarantine.view import size

    if not mails:
        return "0 mails"
    days = sorted(mail.time.astimezone().strftime("%Y-%m-%d") for mail in mails)
    period = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"{counted(len(mails), 'mail')} ({size(sum(mail.size for mail in mails))}, quarantined {period})"
