"""`scanbridge history`: the recorded mails, newest first, page by page, or as they arrive."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option, configuration_used
from bridge.cli.history.filters import with_filters
from bridge.cli.parameters import Limit
from bridge.cli.single_values import Command
from bridge.cli.terminal import EXIT_INTERRUPTED, say, say_json

if TYPE_CHECKING:
    from bridge.cli.history.session import HistorySession
    from bridge.history.entry import MailEntry
    from bridge.history.query import HistoryQuery

_CURSOR = re.compile(r"\d{1,12}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?:[0-9A-Za-z]{0,64}")
_CHUNK = 1000  # mails that are read at a time
_FOLLOWED = 10  # mails that --follow shows first


class _Cursor(click.ParamType[str]):
    name = "cursor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not _CURSOR.fullmatch(str(value)):
            self.fail("not a cursor: use the one that was printed with the previous page", param, ctx)
        return str(value)


@click.command(cls=Command)
@config_option
@click.argument("what", required=False)
@with_filters
@click.option("--limit", type=Limit(), default=None, help="Mails per page (0 = no limit). Default: 100.")
@click.option("--before", type=_Cursor(), metavar="CURSOR", help="Show the page that follows this cursor.")
@click.option("--follow", "-f", is_flag=True, help="Also show new mails as they arrive, newest last.")
@click.option("--wide", is_flag=True, help="Show all columns in full, however long the lines are.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all columns as CSV, for a spreadsheet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def history(
    path: Path | None,
    what: str | None,
    wanted: dict[str, Any],
    limit: int | None,
    before: str | None,
    follow: bool,
    wide: bool,
    as_csv: bool,
    as_json: bool,
) -> None:
    """List the mails that arrived and what was done with them, one line per mail, newest first.

    WHAT is the bridge's id for the mail or the session, the mail's queue id on the mail server in front of the bridge
    or behind it, a Message-ID or a ggrid.
    To see everything about one mail, use `explain`.

    On a terminal, long columns are truncated to fit. When output is piped, nothing is truncated, and columns are
    separated by tabs.
    """
    from bridge.cli.history.session import HistorySession

    if wide + as_csv + as_json > 1:
        raise click.UsageError("choose one of --wide, --csv and --json")
    if follow and (before or "until" in wanted):
        raise click.UsageError(
            "--follow shows mails that arrive from now on: it cannot be used with --before or --until"
        )
    session = HistorySession.open(path)
    form = "json" if as_json else "csv" if as_csv else "wide" if wide else ""
    if follow:
        _follow(session, what, wanted, _FOLLOWED if limit is None else limit, form)
    else:
        _page(session, what, wanted, 100 if limit is None else limit, before, form)


def _page(
    session: HistorySession, what: str | None, wanted: dict[str, Any], limit: int, before: str | None, form: str
) -> None:
    query = session.query(wanted, **_key(session, what), before=before or "", limit=limit + 1 if limit else _CHUNK)
    found = session.read(lambda: session.store.find(query))
    if not limit and len(found) == _CHUNK:
        _show_all(session, query, found, form)
        return
    more = bool(limit) and len(found) > limit
    found = found[:limit] if limit else found
    if found or form == "csv":
        _show(found, form)
    if not found and not form:
        _say_none(session)
    if more and found:
        say(f"next page: {_next_page(session, limit, found[-1].cursor)}", err=True)


def _show_all(session: HistorySession, query: HistoryQuery, found: list[MailEntry], form: str) -> None:
    """Page by page: there may be millions."""
    from dataclasses import replace

    lines = _Lines(form)
    while found:
        lines.show(found)
        following = replace(query, before=found[-1].cursor)
        found = session.read(lambda following=following: session.store.find(following))  # type: ignore[misc]


def _key(session: HistorySession, what: str | None) -> dict[str, Any]:
    """With all spellings that `explain` tries."""
    if not what:
        return {}
    from bridge.history.query import pasted_key

    hidden, key = session.hidden, pasted_key(what)
    first, *others = map(hidden.key, hidden.spellings(key) or [key])
    return {"what": first, "spellings": tuple(others)}


def _show(found: list[MailEntry], form: str) -> None:
    from bridge.cli.history.columns import MAILS

    if form == "json":
        for entry in found:
            say_json(entry.to_dict())
    elif form == "csv":
        MAILS.show_csv(found)
    elif form == "wide":
        MAILS.show_wide(found)
    else:
        MAILS.show(found)


def _say_none(session: HistorySession) -> None:
    oldest = session.read(session.store.oldest)
    if oldest is None:
        off = "" if session.config.history.enabled else "; history.enabled is false"
        say(f"No mail has been recorded yet in {session.place}{off}{configuration_used()}", err=True)
    else:
        import time

        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(oldest))
        say(f"no matching mail ({session.place} starts on {since}){configuration_used()}", err=True)


def _next_page(session: HistorySession, limit: int, cursor: str) -> str:
    """The same command for the page after this one, as it was typed."""
    typed: list[str] = []
    context = click.get_current_context()
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        source = context.get_parameter_source(str(parameter.name))
        if source is not click.core.ParameterSource.COMMANDLINE or parameter.name in ("path", "limit", "before"):
            continue
        if isinstance(parameter, click.Argument):
            typed.append(str(value))
        elif value is True:
            typed.append(parameter.opts[0])
        else:
            typed += [parameter.opts[0], _as_typed(str(parameter.name), value)]
    return session.command("history", *typed, "--limit", str(limit), "--before", cursor)


def _as_typed(name: str, value: Any) -> str:
    """A point in time is written out: `2h` means something else by the time the next page is requested.

    With its offset, because the clock shows an hour twice when summer time ends, and with fractions of a second.
    """
    if name in ("since", "until"):
        from datetime import datetime

        return datetime.fromtimestamp(value).astimezone().isoformat(" ")
    return str(value)


def _follow(session: HistorySession, what: str | None, wanted: dict[str, Any], limit: int, form: str) -> None:
    from bridge.cli.history.follow import new_mails

    query = session.query(wanted, **_key(session, what), limit=limit)
    lines = _Lines(form)
    try:
        for entries in new_mails(session, query):
            lines.show(entries)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


class _Lines:
    """Shows mails in parts: the header comes once, and the columns have the same width in all parts."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._skipped = 0  # lines of the next part to leave out, because they were already shown: the header

    def show(self, entries: list[MailEntry]) -> None:
        from bridge.cli.history.columns import MAILS, NATURAL
        from bridge.cli.terminal import say_cells, width

        columns = width()
        if self._form == "json":
            _show(entries, self._form)
        elif self._form == "csv":
            MAILS.show_csv(entries, header=not self._skipped)
        elif columns is None or self._form == "wide":
            names = MAILS.wide if self._form == "wide" else MAILS.brief
            for row in MAILS.rows(entries, names)[self._skipped :]:
                say_cells(*row)
        else:
            for line in list(MAILS.lines_of_widths(entries, NATURAL, columns))[self._skipped :]:
                say(line)
        self._skipped = 1
