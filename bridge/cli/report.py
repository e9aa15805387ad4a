"""`scanbridge report`: say that a mail is spam, or that it is not."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.config_option import config_option, fail_config
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_json
from bridge.errors import BridgeError, ConfigError

if TYPE_CHECKING:
    from bridge.cli.quarantine.session import Session
    from bridge.cli.reporting import ReportedMail

_KIND = click.Choice(["spam", "ham"])


@click.command(cls=Command)
@config_option
@click.argument("kind", type=_KIND)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--by",
    "person",
    metavar="NAME",
    default="",
    help="Name of the person reporting the mail. Default: your login name.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
def report(path: Path | None, kind: str, files: tuple[str, ...], person: str, as_json: bool) -> None:
    """Report mail as spam, or as ham (not spam).

    FILES are mails saved by a mail program (.eml); `-` is standard input. The configuration determines where
    they go: to rspamd (feedback.rspamd) or the included scanning service (feedback.scanner), both of which learn from
    them; to an address (feedback.report_to); or to several of these. If the same person reports a mail twice, the
    report counts only once. Exit code 1 if any file could not be reported.
    """
    from bridge.cli.quarantine.session import Session
    from bridge.cli.reporting import MAX_REPORTED, Reporter
    from bridge.feedback.report import ReportKind

    session = Session.open(path)
    try:
        reporter = Reporter.of(session)
    except ConfigError as exc:
        fail_config(exc)
    failed = False
    for name in files:
        content, problem = _read(name, MAX_REPORTED)
        if problem:
            say(f"{name}: {problem}", err=True)
            failed = True
            continue
        try:
            mail = _mail(session, content)
        except OSError as exc:
            say(f"{name}: {exc.strerror}", err=True)
            failed = True
            continue
        with closing(mail.content):
            done = reporter.report_mail(ReportKind(kind), mail, person or session.by)
        failed |= not done.is_done
        if as_json:
            say_json({"file": name, "id": done.mail_id, "state": str(done.state), "text": done.text})
        else:
            say(f"{name}: {done.text}", err=not done.is_done)
    reporter.close()
    sys.exit(1 if failed else 0)


def _read(name: str, limit: int) -> tuple[bytes, str]:
    """The content, and what is wrong with it."""
    from bridge.cli.mail_file import mbox_problem
    from bridge.runtime import root_as_owner

    try:
        if name == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with root_as_owner.as_operator(), open(name, "rb") as file:
                content = file.read(limit + 1)
    except OSError as exc:
        return b"", exc.strerror or type(exc).__name__
    if not content.strip():
        return b"", "not reported: the file is empty"
    if len(content) > limit:
        return b"", f"not reported: larger than {limit >> 20} MiB"
    problem = mbox_problem(content)
    return content, f"not reported: {problem}" if problem else ""


def _mail(session: Session, content: bytes) -> ReportedMail:
    """Without our header fields, and with our id if the history knows this mail."""
    from bridge.cli.mail_file import as_sent
    from bridge.cli.reporting import ReportedMail
    from bridge.daemon.wiring import header_editor
    from bridge.filter.headers import message_id

    content = as_sent(content)
    head, end, body = content.partition(b"\r\n\r\n")
    head += b"\r\n" if end else b""
    own_id = _field(head, f"{session.config.headers.prefix}Id")
    stripped = header_editor(session.config).strip(head) or head
    plain = stripped + (b"\r\n" + body if end else body)
    return ReportedMail.of_file(plain, _known_id(session, own_id, message_id(head, head.lower())))


def _field(head: bytes, name: str) -> str:
    for line in head.split(b"\r\n"):
        found, colon, value = line.partition(b":")
        if colon and found.strip().lower() == name.lower().encode():
            return value.strip().decode("ascii", "replace")
    return ""


def _known_id(session: Session, own_id: str, message_id: str) -> str:
    """Our id for the mail; "" if the history does not know it. A field of the mail is trusted only if both agree."""
    from bridge.daemon import history_place
    from bridge.history.query import HistoryQuery

    conf, state = session.config, session.state
    if not conf.history.enabled or not message_id:
        return ""
    try:
        if not history_place.has_server(conf) and not history_place.history_directory(state).is_dir():
            return ""
        written = history_place.redaction(conf, state).message_id(message_id)
        store = history_place.history(conf, state)
        try:
            found = [entry for entry in store.find(HistoryQuery(what=written, limit=100)) if not entry.kind.stage]
        finally:
            store.close()
    except BridgeError:  # the history is not needed to learn
        return ""
    ids = [entry.row.id for entry in found if entry.row.message_id == written]
    return own_id if own_id in ids else next(iter(ids), "")
