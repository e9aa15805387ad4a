"""`scanbridge quarantine`: find, look at, release and remove quarantined mail.

Standard output has the result, standard error the problems. Exit codes, the gravest of several:
0 done, 1 failed (look at it), 75 failed for now (run it again later), 4 somebody else did it or is
doing it, 3 no such mail, 78 configuration. What a stranger wrote reaches the terminal only without
its control characters.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import pwd
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import click
import uvloop
from rich.console import Console

from bridge.cli.common import config_option, fail_config, load_or_exit
from bridge.cli.quarantine.sender_lists import allow_sender, block_sender
from bridge.cli.quarantine.view import clean, facts, table
from bridge.config.model import Config
from bridge.daemon import resources, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.intake.smtp.paths import parse_path
from bridge.mail.message import HEAD_LIMIT
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.quarantine.index import Query
from bridge.quarantine.quarantine import MailLocked, MailNotFound, Quarantine
from bridge.quarantine.record import STATES
from bridge.quarantine.release import AlreadyReleased, ReleaseRequest, log_action, release
from bridge.relay.relay import Relay
from bridge.runtime import units

FAILED, UNKNOWN, TAKEN, LATER = 1, 3, 4, 75
_GRAVITY = (FAILED, LATER, TAKEN, UNKNOWN, 0)
_WIDE = 200  # columns, when nobody looks


@dataclass(frozen=True, slots=True)
class Desk:
    """What every command needs."""

    config: Config
    directory: Path
    quarantine: Quarantine

    @classmethod
    def open(cls, path: Path | None) -> Desk:
        conf = load_or_exit(path)
        try:
            state = resources.make_directory(resources.state_directory(conf.state_directory), "state_directory")
            place = wiring.quarantine_place(conf, state)
        except ConfigError as exc:
            fail_config(exc)
        return cls(conf, place.directory, Quarantine(place))

    def note(self, action: str, mail_id: str, **more: object) -> None:
        """Who did it, in the system's log and beside the mail."""
        try:
            log_action(self.directory, action, mail_id, login_name(), **more)
        except OSError as exc:
            click.echo(f"{mail_id}: {action}, but actions.log cannot be written: {exc.strerror}", err=True)


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """A time, or how long ago."""
    if value is None:
        return None
    try:
        return time.time() - units.parse_duration(value)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(value).timestamp()  # without a zone: this machine's
    except ValueError:
        raise click.BadParameter("is a time such as 2026-01-31T12:00, or how long ago, such as 2d") from None


def _period(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else units.parse_duration(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


@click.group()
def quarantine() -> None:
    """Find, look at, release and remove quarantined mail."""
    handler: logging.Handler = logging.NullHandler()
    if Path("/dev/log").exists():
        try:
            handler = logging.handlers.SysLogHandler("/dev/log", logging.handlers.SysLogHandler.LOG_MAIL)
            handler.ident = "scanbridge: "
        except OSError:  # nobody listens; actions.log has it
            pass
    log = logging.getLogger("scanbridge.quarantine")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [handler]


quarantine.add_command(block_sender)
quarantine.add_command(allow_sender)


@quarantine.command("list")
@config_option
@click.option("--recipient", default="", metavar="TEXT", help="Part of a recipient; with * the whole: '*@example.org'.")
@click.option("--sender", default=None, metavar="TEXT", help="Part of the envelope sender; '' for the null sender.")
@click.option("--subject", default="", metavar="TEXT", help="Part of the subject.")
@click.option("--since", callback=_moment, metavar="TIME", help="Kept since: 2026-01-31, 2026-01-31T12:00, or 2d ago.")
@click.option("--until", callback=_moment, metavar="TIME", help="Kept before then.")
@click.option("--tenant", default="", help="tenantUid.")
@click.option("--decision", default="", help="The scanner's decision, or `unavailable` and the like without one.")
@click.option("--tag", default="", help="A tag; with * a pattern: 'malware:*'.")
@click.option("--listener", default="", help="Name of the listener it came in by.")
@click.option("--state", type=click.Choice(STATES), default=None, help="Whether it was released.")
@click.option("--limit", type=click.IntRange(min=0), default=100, show_default=True, help="At most so many; 0: all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_mails(path: Path | None, as_json: bool, state: str | None, limit: int, **wanted: Any) -> None:
    """Show quarantined mail, newest first."""
    desk = Desk.open(path)
    try:
        found = desk.quarantine.search(Query(**wanted, state=state or "", limit=limit + 1 if limit else 0))
    except BridgeError as exc:
        _fail(f"scanbridge quarantine: {exc}", FAILED)
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if as_json:
        for mail in found:
            click.echo(json.dumps(mail.to_dict()))
    elif found:
        Console(width=None if sys.stdout.isatty() else _WIDE).print(table(found))
    else:
        click.echo("no such mail", err=True)
    if more:
        click.echo(f"the newest {limit}; --limit 0 shows all", err=True)


@quarantine.command()
@config_option
@click.argument("mail_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="A JSON object.")
@click.option("--raw", is_flag=True, help="The mail itself, as it is kept.")
def show(path: Path | None, mail_id: str, as_json: bool, raw: bool) -> None:
    """Show what is known of a mail, and its header section."""
    desk = Desk.open(path)
    if raw and sys.stdout.isatty():
        raise click.UsageError("a mail may hold anything, also what a terminal obeys: send it to a file or a pager")
    try:
        mail = desk.quarantine.read(mail_id)
        if raw:
            _copy(desk.quarantine.chunks(mail_id), sys.stdout.buffer)
            return
        head = _head(desk.quarantine.chunks(mail_id))
    except MailNotFound as exc:
        _fail(f"{clean(mail_id)}: {exc}", UNKNOWN)
    except (BridgeError, OSError) as exc:
        _fail(f"{clean(mail_id)}: {exc}", FAILED)
    if as_json:
        click.echo(json.dumps({**mail.to_dict(), "header": head}, indent=2))
        return
    for name, value in facts(mail):
        click.echo(f"{name + ':':12} {clean(value)}")
    click.echo()
    for line in head.splitlines():
        click.echo(clean(line.expandtabs()))


@quarantine.command("release")
@config_option
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--to", "to", multiple=True, metavar="ADDRESS", help="In place of the original recipients; repeatable.")
@click.option("--again", is_flag=True, help="Even if it was released before.")
def release_mails(path: Path | None, ids: tuple[str, ...], to: tuple[str, ...], again: bool) -> None:
    """Hand mail on to the next hop, unscanned: to its recipients, or to others.

    A mail is released once, also when two people do it at the same time.
    """
    desk = Desk.open(path)
    try:
        marks = wiring.release_marks(desk.config, resources.state_directory(desk.config.state_directory))
        order = ReleaseRequest(login_name(), tuple(map(_address, to)), again, marks)
        relay = wiring.relay(desk.config)
    except ConfigError as exc:
        fail_config(exc)
    if relay is None:
        _fail("there is no next hop: set relay.next_hop", 78)
    sys.exit(uvloop.run(_release_all(desk, ids, relay, order)))


async def _release_all(desk: Desk, ids: Iterable[str], relay: Relay, order: ReleaseRequest) -> int:
    codes = []
    try:
        for mail_id in dict.fromkeys(ids):
            try:
                delivered = await release(desk.quarantine, mail_id, relay, order)
            except BridgeError as exc:
                codes.append(_code(exc))
                click.echo(f"{clean(mail_id)}: not released: {exc}", err=True)
                if isinstance(exc, NextHopError):
                    desk.note("release failed", mail_id, to=list(order.to), reply=str(exc.reply))
            else:
                desk.note("released", mail_id, to=list(order.to), reply=str(delivered.reply))
                click.echo(f"{mail_id}: released: {clean(str(delivered.reply))}")
    finally:
        await relay.close()
    return _gravest(codes)


@quarantine.command()
@config_option
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(path: Path | None, ids: tuple[str, ...], yes: bool) -> None:
    """Remove mail for good."""
    desk = Desk.open(path)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove {len(ids)} for good?", abort=True, err=True)
    codes = []
    for mail_id in dict.fromkeys(ids):
        try:
            desk.quarantine.remove(mail_id)
        except BridgeError as exc:
            codes.append(_code(exc))
            click.echo(f"{clean(mail_id)}: not removed: {exc}", err=True)
        else:
            desk.note("removed", mail_id)
            click.echo(f"{mail_id}: removed")
    sys.exit(_gravest(codes))


@quarantine.command()
@config_option
@click.option(
    "--older-than",
    callback=_period,
    metavar="PERIOD",
    help="Kept longer than this, such as 30d. Default: quarantine.retention.",
)
def purge(path: Path | None, older_than: float | None) -> None:
    """Remove all old mail for good. The daemon does this by itself, once an hour."""
    desk = Desk.open(path)
    try:
        removed = desk.quarantine.purge_now(desk.config.quarantine.retention if older_than is None else older_than)
    except (BridgeError, OSError) as exc:
        _fail(f"scanbridge quarantine: {exc}", FAILED)
    for mail_id in removed:
        desk.note("purged", mail_id)
    click.echo(f"{len(removed)} removed")


@quarantine.command()
@config_option
@click.argument("mail_id", metavar="ID")
@click.argument("target", metavar="DIR|-")
def export(path: Path | None, mail_id: str, target: str) -> None:
    """Copy a mail's files into a directory, or write the mail to standard output."""
    desk = Desk.open(path)
    try:
        item = desk.quarantine.read_stored(mail_id)
        if target == "-":
            _copy(desk.quarantine.chunks(mail_id), sys.stdout.buffer)
            return
        _copy_into(desk.quarantine.chunks(mail_id), Path(target) / f"{mail_id}.eml")
        _copy_into([item.metadata], Path(target) / f"{mail_id}.json")
        if item.releases:
            _copy_into([item.releases], Path(target) / f"{mail_id}.releases")
    except MailNotFound as exc:
        _fail(f"{clean(mail_id)}: {exc}", UNKNOWN)
    except (BridgeError, OSError) as exc:
        _fail(f"{clean(mail_id)}: not exported: {exc}", FAILED)


def login_name() -> str:
    """Who sits there: the terminal's login, which `su` and `sudo` do not change; else sudo's word; else the user."""
    try:
        return os.getlogin()
    except OSError:  # no terminal
        pass
    if os.getuid() == 0 and (name := os.environ.get("SUDO_USER")):
        return clean(name)
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _fail(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)


def _code(exc: BridgeError) -> int:
    match exc:
        case MailNotFound():
            return UNKNOWN
        case MailLocked() | AlreadyReleased():
            return TAKEN
        case NextHopError() if exc.reply.is_temporary:
            return LATER
        case _:
            return FAILED


def _gravest(codes: list[int]) -> int:
    return min(codes, key=_GRAVITY.index, default=0)


def _address(text: str) -> str:
    found = parse_path(b"<%b>" % text.encode("utf-8", "surrogateescape"), syntax="not an address")
    if isinstance(found, Reply) or not found.address or found.params:
        raise click.BadParameter("is not an address", param_hint="--to")
    return found.address


def _head(chunks: Iterable[bytes]) -> str:
    """The header section, ours included."""
    content = b""
    for chunk in chunks:
        content += chunk
        if b"\r\n\r\n" in content or len(content) >= HEAD_LIMIT:
            break
    return content[:HEAD_LIMIT].partition(b"\r\n\r\n")[0].decode("utf-8", "replace")


def _copy(chunks: Iterable[bytes], target: BinaryIO) -> None:
    for chunk in chunks:
        target.write(chunk)
    target.flush()


def _copy_into(chunks: Iterable[bytes], target: Path) -> None:
    """Never over a file that is there, and never half of one."""
    with open(target, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        try:
            _copy(chunks, file)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
