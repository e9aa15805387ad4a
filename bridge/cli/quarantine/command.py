"""`scanbridge quarantine`: find, inspect, release and delete quarantined mail.

Standard output has the result, standard error the problems; `session` has the exit codes. Text written by
strangers reaches the terminal only without its control characters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import uvloop

from bridge.cli.common import EXIT_CONFIG, config_option, fail_config
from bridge.cli.quarantine.content import copy, copy_into, header_section
from bridge.cli.quarantine.sender_lists import allow_sender, block_sender
from bridge.cli.quarantine.session import (
    EXIT_UNKNOWN,
    Session,
    exit_code,
    fail,
    log_to_syslog,
    login_name,
    most_serious,
)
from bridge.cli.quarantine.view import facts, table
from bridge.cli.terminal import confirm, console, say, say_json
from bridge.daemon import resources, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.intake.smtp.paths import parse_path
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.quarantine.index import Query
from bridge.quarantine.quarantine import MailNotFound
from bridge.quarantine.record import STATES
from bridge.quarantine.release import ReleaseRequest, release
from bridge.relay.relay import Mixed, Relay
from bridge.runtime import units

_WIDE = 200  # columns, when the output is not a terminal


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A point in time, or how long ago."""
    if value is None:
        return None
    try:
        return time.time() - units.parse_duration(value)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(value).timestamp()  # local time if it has no zone
    except ValueError:
        raise click.BadParameter("expected a time such as 2026-01-31T12:00, or an age such as 2d") from None


def _period(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else units.parse_duration(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


@click.group()
def quarantine() -> None:
    """Find, inspect, release and delete quarantined mail."""
    log_to_syslog()


quarantine.add_command(block_sender)
quarantine.add_command(allow_sender)


@quarantine.command("list")
@config_option
@click.option(
    "--recipient",
    default="",
    metavar="TEXT",
    help="Recipient contains TEXT, or matches '*@example.org'.",
)
@click.option("--sender", default=None, metavar="TEXT", help="Envelope sender contains TEXT; '' for the null sender.")
@click.option("--subject", default="", metavar="TEXT", help="Subject contains TEXT.")
@click.option(
    "--since",
    callback=_moment,
    metavar="TIME",
    help="Quarantined since TIME, such as 2026-01-31, 2026-01-31T12:00 or 2d (two days ago).",
)
@click.option("--until", callback=_moment, metavar="TIME", help="Quarantined before TIME.")
@click.option("--tenant", default="", metavar="UUID", help="Belongs to this tenant (tenantUid).")
@click.option("--decision", default="", help="The scanner's decision, or the error if there was none (`unreachable`).")
@click.option("--tag", default="", help="Has this tag; * is a wildcard, as in 'malware:*'.")
@click.option("--listener", default="", help="Received by this listener.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Release state.")
@click.option("--limit", type=click.IntRange(0), default=100, show_default=True, help="Maximum results (0 = no limit).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def list_mails(path: Path | None, as_json: bool, state: str | None, limit: int, **wanted: Any) -> None:
    """List quarantined mail, newest first."""
    session = Session.open(path)
    try:
        found = session.quarantine.search(Query(**wanted, state=state or "", limit=limit + 1 if limit else 0))
    except BridgeError as exc:
        fail(f"scanbridge quarantine: {exc}")
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if as_json:
        for mail in found:
            say_json(mail.to_dict())
    elif found:
        console(width=None if sys.stdout.isatty() else _WIDE).print(table(found))
    else:
        say("no matching mail", err=True)
    if more:
        say(f"only the newest {limit} are shown; --limit 0 shows all", err=True)


@quarantine.command()
@config_option
@click.argument("mail_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.option("--raw", is_flag=True, help="Print the mail itself, as stored.")
def show(path: Path | None, mail_id: str, as_json: bool, raw: bool) -> None:
    """Show the details and the header section of a mail."""
    session = Session.open(path)
    if raw:
        _refuse_terminal()
    try:
        mail = session.quarantine.read(mail_id)
        if raw:
            copy(session.quarantine.chunks(mail_id), sys.stdout.buffer)
            return
        head = header_section(session.quarantine.chunks(mail_id))
    except MailNotFound as exc:
        fail(f"{mail_id}: {exc}", EXIT_UNKNOWN)
    except (BridgeError, OSError) as exc:
        fail(f"{mail_id}: {exc}")
    if as_json:
        say_json({**mail.to_dict(), "header": head}, indent=2)
        return
    for name, value in facts(mail):
        say(f"{name + ':':12} {value}")
    say()
    for line in head.split("\r\n"):  # splitlines() would divide lines at characters that readers show in one line
        say(line.expandtabs())


@quarantine.command("release")
@config_option
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--to",
    "to",
    multiple=True,
    metavar="ADDRESS",
    help="Send to this address instead of the original recipients; repeatable.",
)
@click.option("--again", is_flag=True, help="Release it even to those who have it, and after everyone has it.")
def release_mails(path: Path | None, ids: tuple[str, ...], to: tuple[str, ...], again: bool) -> None:
    """Send mail to the next hop, for its original recipients or others, without scanning it again.

    A mail is released to each recipient only once, even if two people try at the same time.
    """
    session = Session.open(path)
    try:
        tokens = wiring.release_tokens(session.config, resources.state_directory(session.config.state_directory))
        order = ReleaseRequest(login_name(), tuple(map(_address, to)), again, tokens)
        relay = wiring.relay(session.config)
    except ConfigError as exc:
        fail_config(exc)
    if relay is None:
        fail("no next hop is configured: set relay.next_hop", EXIT_CONFIG)
    sys.exit(uvloop.run(_release_all(session, ids, relay, order)))


async def _release_all(session: Session, ids: Iterable[str], relay: Relay, order: ReleaseRequest) -> int:
    codes = []
    try:
        for mail_id in dict.fromkeys(ids):
            try:
                delivered = await release(session.quarantine, mail_id, relay, order)
            except BridgeError as exc:
                codes.append(exit_code(exc))
                is_partial = isinstance(exc, Mixed) and exc.accepted > 0
                say(f"{mail_id}: {'released to some only' if is_partial else 'not released'}: {exc}", err=True)
                if isinstance(exc, NextHopError):
                    session.note("release failed", mail_id, to=list(order.to), reply=str(exc.reply))
            else:
                session.note("released", mail_id, to=list(order.to), reply=str(delivered.reply))
                say(f"{mail_id}: released: {delivered.reply}")
    finally:
        await relay.close()
    return most_serious(codes)


@quarantine.command()
@config_option
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(path: Path | None, ids: tuple[str, ...], yes: bool) -> None:
    """Delete mail permanently."""
    session = Session.open(path)
    if not yes and sys.stdin.isatty():
        confirm(f"Permanently delete {len(ids)} mails?", abort=True)
    codes = []
    for mail_id in dict.fromkeys(ids):
        try:
            session.quarantine.remove(mail_id)
        except BridgeError as exc:
            codes.append(exit_code(exc))
            say(f"{mail_id}: not deleted: {exc}", err=True)
        else:
            session.note("removed", mail_id)
            say(f"{mail_id}: deleted")
    sys.exit(most_serious(codes))


@quarantine.command()
@config_option
@click.option(
    "--older-than",
    callback=_period,
    metavar="PERIOD",
    help="Delete mail that has been in quarantine for longer than this, such as 30d. Default: quarantine.retention.",
)
def purge(path: Path | None, older_than: float | None) -> None:
    """Permanently delete all old mail. The daemon does this automatically once an hour."""
    session = Session.open(path)
    try:
        removed = session.quarantine.purge_now(
            session.config.quarantine.retention if older_than is None else older_than
        )
    except (BridgeError, OSError) as exc:
        fail(f"scanbridge quarantine: {exc}")
    for mail_id in removed:
        session.note("purged", mail_id)
    say(f"{len(removed)} deleted")


@quarantine.command()
@config_option
@click.argument("mail_id", metavar="ID")
@click.argument("target", metavar="DIR|-")
def export(path: Path | None, mail_id: str, target: str) -> None:
    """Copy a mail and its metadata into a directory, or write the mail to standard output."""
    session = Session.open(path)
    if target == "-":
        _refuse_terminal()
    try:
        item = session.quarantine.read_stored(mail_id)
        if target == "-":
            copy(session.quarantine.chunks(mail_id), sys.stdout.buffer)
            return
        copy_into(session.quarantine.chunks(mail_id), Path(target) / f"{mail_id}.eml")
        copy_into([item.metadata], Path(target) / f"{mail_id}.json")
        if item.releases:
            copy_into([item.releases], Path(target) / f"{mail_id}.releases")
    except MailNotFound as exc:
        fail(f"{mail_id}: {exc}", EXIT_UNKNOWN)
    except (BridgeError, OSError) as exc:
        fail(f"{mail_id}: not exported: {exc}")


def _refuse_terminal() -> None:
    if sys.stdout.isatty():
        raise click.UsageError("a mail may contain terminal control sequences: redirect it to a file or a pager")


def _address(text: str) -> str:
    found = parse_path(b"<%b>" % text.encode("utf-8", "surrogateescape"), syntax="not an address")
    if isinstance(found, Reply) or not found.address or found.params:
        raise click.BadParameter("not a mail address", param_hint="--to")
    return found.address
