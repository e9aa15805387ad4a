"""`scanbridge quarantine`: find, inspect, release and delete quarantined mail.

Standard output has the result, standard error the problems; `session` has the exit codes. Text written by
strangers reaches the terminal only without its control characters. What a command needs is imported when it runs.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import EXIT_CONFIG, config_option, fail_config
from bridge.cli.parameters import Limit, MailAddress, Moment
from bridge.cli.quarantine.filters import with_filters
from bridge.cli.quarantine.selection import (
    Choice,
    consent,
    only_copies,
    select,
    show_dry_run,
    with_consent,
    with_selection,
)
from bridge.cli.single_values import Group
from bridge.cli.terminal import EXIT_INTERRUPTED, say, say_json

if TYPE_CHECKING:
    from bridge.cli.quarantine.session import Session
    from bridge.quarantine.record import MailRecord
    from bridge.quarantine.release import ReleaseRequest
    from bridge.relay.relay import Relay

_NEXT_HOP = "; check relay.next_hop, then run the command again"
_CLOSE_S = 1.0  # all answers have arrived, unless the command was interrupted twice
_MAX_SHOWN = 64 * 1024 * 1024  # bytes of a mail that `show` reads; no mail is larger


@click.group(cls=Group)
def quarantine() -> None:
    """Find, inspect, release and delete quarantined mail.

    Commands that act on mail take ids, the same filters as `list`, or --all.
    """


@quarantine.command("list")
@config_option
@functools.partial(with_filters, acts=False)
@click.option("--limit", type=Limit(), default=100, show_default=True, help="Maximum number of results (0 = no limit).")
@click.option("--wide", is_flag=True, help="Show all columns in full, however long the lines are.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all columns as CSV, for a spreadsheet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_mails(path: Path | None, wanted: dict[str, Any], limit: int, wide: bool, as_csv: bool, as_json: bool) -> None:
    """List quarantined mail, one line per mail, newest first.

    On a terminal, long columns are truncated to fit. When output is piped, nothing is truncated, and columns are
    separated by tabs.
    """
    from bridge.cli.quarantine.columns import QUARANTINED
    from bridge.cli.quarantine.session import Session

    if wide + as_csv + as_json > 1:
        raise click.UsageError("choose one of --wide, --csv and --json")
    session = Session.open(path)
    found = session.search(**wanted, limit=limit + 1 if limit else 0)
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if as_json:
        for mail in found:
            say_json(mail.to_dict())
    elif as_csv:
        QUARANTINED.show_csv(found)
    elif found:
        QUARANTINED.show_wide(found) if wide else QUARANTINED.show(found)
    if not found and not as_json:
        session.say_none()
    if more:
        shown = "mail is" if limit == 1 else f"{limit:,} are"
        say(f"only the newest {shown} shown; --limit 0 shows all", err=True)


@quarantine.command()
@config_option
@click.argument("mail_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--raw", is_flag=True, help="Print the mail itself, as stored.")
def show(path: Path | None, mail_id: str, as_json: bool, raw: bool) -> None:
    """Show why a mail was quarantined, along with its header section, attachments and text."""
    from bridge.cli.quarantine import view
    from bridge.cli.quarantine.exit_codes import EXIT_UNKNOWN, fail
    from bridge.cli.quarantine.session import Session
    from bridge.errors import BridgeError
    from bridge.mime.mail_text import read
    from bridge.quarantine.content import beginning, copy, header_section
    from bridge.quarantine.quarantine import MailNotFound

    session = Session.open(path)
    if raw:
        _refuse_terminal()
    try:
        mail = session.quarantine.read(mail_id)
        if raw:
            copy(session.quarantine.chunks(mail_id), sys.stdout.buffer)
            return
        content = beginning(session.quarantine.chunks(mail_id), _MAX_SHOWN)
    except MailNotFound:
        fail(f"{mail_id}: {session.unknown(mail_id)}", EXIT_UNKNOWN)
    except BrokenPipeError:
        raise  # the reader closed the pipe: click exits quietly
    except (BridgeError, OSError) as exc:
        fail(f"{mail_id}: {exc}")
    head, reading = header_section(content), read(content[mail.head_size :])
    if as_json:
        attached = [attachment.to_dict() for attachment in reading.attachments]
        shown = {"header": head, "text": "\n".join(reading.lines), "attachments": attached, "note": reading.problem}
        say_json({**mail.to_dict(), **shown}, indent=2)
        return
    for name, value in view.facts(mail):
        say(f"{name + ':':12} {value}")
    for line in view.content(reading):
        say(line)
    say()
    say("--- header section ---")
    for line in head.split("\r\n"):  # splitlines() would divide lines at characters that readers show in one line
        say(line.expandtabs())


@quarantine.command("release")
@config_option
@with_selection
@click.option(
    "--to",
    "to",
    type=MailAddress(),
    multiple=True,
    metavar="ADDRESS",
    help="Send to this address instead of the original recipients; repeatable.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Also release mail to recipients who have, or may have, already received it.",
)
def release_mails(path: Path | None, choice: Choice, to: tuple[str, ...], again: bool) -> None:
    """Send mail through the next hop to its original recipients, or to others, without scanning it again.

    A mail is released to each recipient only once, even if two people try at the same time. If the result of an
    earlier release is unknown (interrupted, unsure), recipients may already have the mail; it is then released only
    with --again. If the mail is selected by filters, the command asks for confirmation, and skips mail that has already
    been released to all its recipients unless you add --again or --state.
    """
    import uvloop

    from bridge.cli.quarantine.exit_codes import most_serious
    from bridge.cli.quarantine.session import Session, login_name
    from bridge.daemon import wiring
    from bridge.errors import ConfigError
    from bridge.quarantine.release import ReleaseRequest

    session = Session.open(path)
    selection = select(session, choice)
    mails = selection.mails
    if choice.is_by_filter and not again and "state" not in choice.wanted:
        mails = _not_released(mails)
    if choice.dry_run:
        show_dry_run(mails, "release")
        sys.exit(most_serious(selection.codes))
    if not mails:
        sys.exit(most_serious(selection.codes))
    try:
        order = ReleaseRequest(login_name(), to, again, wiring.release_tokens(session.config, session.state))
        relay = wiring.relay(session.config)
    except ConfigError as exc:
        fail_config(exc)
    if relay is None:
        say("no next hop is configured: set relay.next_hop", err=True)
        sys.exit(EXIT_CONFIG)
    if choice.is_by_filter:
        where = f" to {', '.join(to) or 'their recipients'}"
        consent(mails, verb="release", where=where, yes=choice.yes, done="released")
    try:
        code = uvloop.run(_release_all(session, mails, selection.codes, relay, order))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _not_released(mails: list[MailRecord]) -> list[MailRecord]:
    left = [mail for mail in mails if mail.state != "released"]
    if len(left) < len(mails):
        say(f"{len(mails) - len(left):,} already released and therefore left out (--again includes them)", err=True)
    return left


async def _release_all(
    session: Session, mails: list[MailRecord], codes: list[int], relay: Relay, order: ReleaseRequest
) -> int:
    import asyncio

    from bridge.cli.quarantine.bulk import Bulk
    from bridge.cli.quarantine.exit_codes import exit_code
    from bridge.cli.quarantine.releasing import Released, release_all
    from bridge.relay.handshake import CannotConnect

    def report(mail: MailRecord, done: Released) -> None:
        if done.problem is None:
            bulk.succeeded(f"{mail.id}: {done.text}")
        else:
            step = _NEXT_HOP if isinstance(done.problem, CannotConnect) else ""
            bulk.failed(f"{mail.id}: {done.text}{step}", exit_code(done.problem))

    try:
        with Bulk("released", len(mails), codes) as bulk:
            await release_all(session, mails, relay, order, report)
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await relay.close()
    return bulk.code


@quarantine.command()
@config_option
@with_selection
def delete(path: Path | None, choice: Choice) -> None:
    """Delete mail permanently, after asking for confirmation."""
    from bridge.cli.quarantine.exit_codes import most_serious
    from bridge.cli.quarantine.session import Session

    session = Session.open(path)
    selection = select(session, choice)
    if choice.dry_run:
        show_dry_run(selection.mails, "delete")
        sys.exit(most_serious(selection.codes))
    consent(
        selection.mails, verb="permanently delete", where=only_copies(selection.mails), yes=choice.yes, done="deleted"
    )
    sys.exit(_delete_all(session, selection.mails, selection.codes))


def _delete_all(session: Session, mails: list[MailRecord], codes: list[int], *, is_purge: bool = False) -> int:
    from bridge.cli.quarantine.bulk import Bulk
    from bridge.cli.quarantine.exit_codes import exit_code
    from bridge.errors import BridgeError

    with Bulk("deleted", len(mails), codes) as bulk, session.later.together():
        for mail in mails:
            try:
                session.quarantine.remove(mail.id)
            except BridgeError as exc:
                bulk.failed(f"{mail.id}: not deleted: {exc}", exit_code(exc))
            else:
                session.note_removal(mail, is_purge=is_purge)
                bulk.succeeded("" if is_purge else f"{mail.id}: deleted")
    if is_purge:
        say(f"{bulk.count:,} deleted")
    return bulk.code


@quarantine.command()
@config_option
@with_filters
@click.option(
    "--older-than",
    type=Moment(),
    metavar="AGE",
    help="Delete mail that has been in the quarantine for longer than this (such as 30d), or since before this date. "
    "Default: quarantine.retention.",
)
@with_consent
def purge(path: Path | None, wanted: dict[str, Any], older_than: float | None, yes: bool, dry_run: bool) -> None:
    """Permanently delete all old mail, after asking for confirmation.

    The daemon does this automatically once an hour.
    """
    import time

    from bridge.cli.quarantine.exit_codes import fail
    from bridge.cli.quarantine.session import Session
    from bridge.errors import BridgeError

    session = Session.open(path)
    try:
        before = time.time() - session.config.quarantine.retention if older_than is None else older_than
        old = session.quarantine.older_than(before)
    except (BridgeError, OSError) as exc:
        fail(f"scanbridge quarantine: {exc}")
    mails = [mail for mail in session.search(**wanted) if mail.id in old] if old else []
    if dry_run:
        show_dry_run(mails, "delete")
        return
    if not mails:
        say("0 deleted")
        return
    consent(mails, verb="permanently delete", where=only_copies(mails), yes=yes, done="deleted")
    sys.exit(_delete_all(session, mails, [], is_purge=True))


@quarantine.command()
@config_option
@with_selection
@click.argument("target", metavar="DIR|-")
def export(path: Path | None, choice: Choice, target: str) -> None:
    """Copy mail and its metadata into a directory, or write one mail to standard output."""
    from bridge.cli.quarantine.exit_codes import most_serious
    from bridge.cli.quarantine.session import Session

    if target == "-":
        _refuse_terminal()
    if not choice.ids and not choice.wanted and not choice.everything:
        raise click.UsageError(
            f"no mail is selected: {target!r} was read as the directory, which comes last; "
            "give ids, filters as for `quarantine list`, or --all before it"
        )
    session = Session.open(path)
    selection = select(session, choice)
    if choice.dry_run:
        show_dry_run(selection.mails, "export")
        sys.exit(most_serious(selection.codes))
    if target == "-" and len(selection.mails) > 1:
        raise click.UsageError(f"{len(selection.mails)} mails are selected: only one can be written to standard output")
    if target != "-" and selection.mails:
        _need_directory(Path(target))
    sys.exit(_export_all(session, selection.mails, selection.codes, target))


def _need_directory(directory: Path) -> None:
    """It is not created: without a directory, the last id would be taken for one."""
    from bridge.cli.quarantine.exit_codes import fail

    if not os.path.isdir(directory):  # noqa: PTH112 (Path.is_dir may raise)
        fail(f"nothing was exported: there is no directory {directory}; create it first (the directory comes last)")


def _export_all(session: Session, mails: list[MailRecord], codes: list[int], target: str) -> int:
    from bridge.cli.quarantine.bulk import Bulk
    from bridge.cli.quarantine.exit_codes import EXIT_FAILED, exit_code
    from bridge.errors import BridgeError
    from bridge.quarantine.content import copy

    with Bulk("exported", len(mails), codes) as bulk:
        for mail in mails:
            try:
                if target == "-":
                    copy(session.quarantine.chunks(mail.id), sys.stdout.buffer)
                else:
                    _export_into(session, mail.id, Path(target))
            except BridgeError as exc:
                bulk.failed(f"{mail.id}: not exported: {exc}", exit_code(exc))
            except FileExistsError as exc:
                step = "already exists; delete it, or choose another directory"
                bulk.failed(f"{mail.id}: not exported: {exc.filename} {step}", EXIT_FAILED)
            except BrokenPipeError:
                raise
            except OSError as exc:
                place = "standard output" if target == "-" else target
                step = "check its owner and its free space, or choose another directory"
                bulk.failed(
                    f"{mail.id}: not exported: {place} cannot be written to: {exc.strerror or exc}; {step}", EXIT_FAILED
                )
            else:
                bulk.succeeded("" if target == "-" else f"{mail.id}: exported to {Path(target) / mail.id}.eml")
    return bulk.code


def _export_into(session: Session, mail_id: str, directory: Path) -> None:
    from bridge.quarantine.content import copy_all_into

    item = session.quarantine.read_stored(mail_id)
    chunks = session.quarantine.chunks(mail_id)
    files = [(chunks, directory / f"{mail_id}.eml"), ([item.metadata], directory / f"{mail_id}.json")]
    if item.releases:
        files.append(([item.releases], directory / f"{mail_id}.releases"))
    copy_all_into(files)


def _refuse_terminal() -> None:
    if sys.stdout.isatty():
        advice = "redirect the output to a file, or pipe it to a pager"
        raise click.UsageError(f"a mail may contain terminal control sequences: {advice}")


from bridge.cli.quarantine.sender_lists import allow_sender, block_sender  # noqa: E402

quarantine.add_command(block_sender)
quarantine.add_command(allow_sender)
