"""`scanbridge events`: which events are waiting for the sinks, dead letters, and a test.

Reads and changes the outbox directly, so it works whether the daemon runs or not. What a command needs is imported when
it runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.parameters import Limit
from bridge.cli.single_values import Group
from bridge.cli.terminal import consents, say, say_json
from bridge.runtime.counted import counted

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.events.outbox import Entry, Outbox, SinkState

EXIT_FAILED, EXIT_UNCONFIRMED, EXIT_UNKNOWN = 1, 2, 3

_sink_option = click.option("--sink", metavar="NAME", help="Limit the command to this sink.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

_NOT_CONFIGURED = "not configured"


@click.group(cls=Group)
def events() -> None:
    """Show how many events are waiting for delivery; list, retry and drop dead letters.

    A dead letter is an event that its receiver refused repeatedly while accepting others. It is kept for 30 days.
    """


@events.command()
@config_option
@_json_option
def status(path: Path | None, as_json: bool) -> None:
    """Show how many events are waiting for each sink, and any problems.

    Exit code 0: every sink accepts its events. 1: at least one sink does not accept them, or has dead letters.
    """
    conf, outbox = _open(path)
    found = {state.name: state for state in _run(outbox, outbox.states)}
    rows = [_row(sink.name, sink.type, found.get(sink.name)) for sink in conf.events]
    rows += [_row(name, _NOT_CONFIGURED, state) for name, state in found.items() if _is_left(conf, state)]
    if as_json:
        say_json(rows, indent=2)
    else:
        for row in rows:
            say(_line(row))
            if row["type"] == _NOT_CONFIGURED:
                drop = f"scanbridge events drop --all --waiting --sink {row['name']}"
                say(f"  configure a sink with this name to send them, or delete them: {drop}", err=True)
    sys.exit(EXIT_FAILED if any(row["problem"] or row["dead"] for row in rows) else 0)


def _is_left(conf: Config, state: SinkState) -> bool:
    return bool(state.events) and state.name not in {sink.name for sink in conf.events}


def _row(name: str, kind: str, state: SinkState | None) -> dict[str, Any]:
    from time import time

    row: dict[str, Any] = {"name": name, "type": kind, "waiting": 0, "dead": 0, "lost": 0, "bytes": 0}
    row |= {"oldest_s": 0, "failing_s": 0, "problem": ""}
    if state is not None:
        row |= {"waiting": state.waiting, "dead": state.dead, "lost": state.lost, "bytes": state.size_bytes}
        row["oldest_s"] = round(max(time() - state.oldest_at, 0)) if state.oldest_at else 0
        row["failing_s"] = round(max(time() - state.failing_since, 0)) if state.failing_since else 0
        row["problem"] = state.problem
    return row


def _line(row: dict[str, Any]) -> str:
    parts = [f"{row['name']} ({row['type']}): {row['waiting']:,} waiting"]
    if row["oldest_s"]:
        parts.append(f"the oldest for {row['oldest_s']:,} s")
    parts += [f"{row['dead']:,} dead", f"{row['lost']:,} lost"]
    line = ", ".join(parts)
    return f"{line}; failing for {row['failing_s']:,} s: {row['problem']}" if row["problem"] else line


@events.command()
@config_option
@click.argument("event_id", metavar="[ID]", required=False)
@_sink_option
@click.option("--limit", type=Limit(1), default=100, show_default=True, help="Maximum number of results.")
@_json_option
def dead(path: Path | None, event_id: str | None, sink: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first; with an id, print that event.

    With --json, print one object per line: the event, its sink, and why it was refused.
    """
    import json

    conf, outbox = _open(path)
    _need_sink(conf, outbox, sink)
    if event_id is not None:
        entries = [entry for entry in _run(outbox, lambda: outbox.find(event_id)) if sink in (None, entry.sink)]
        if not entries:
            _fail(f"no such event: {event_id}; `scanbridge events dead` lists dead letters", EXIT_UNKNOWN)
        say_json(json.loads(entries[0].body), indent=None if as_json else 2)
        return
    entries = _run(outbox, lambda: outbox.dead(sink, limit))
    for entry in entries:
        if as_json:
            facts = {"sink": entry.sink, "attempts": entry.attempts, "problem": entry.problem}
            say_json({**facts, "event": json.loads(entry.body)})
        else:
            say(_dead_line(entry))
    if not entries and not as_json:
        say("no dead letters", err=True)


def _dead_line(entry: Entry) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(entry.time, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{entry.id}  {moment}  {entry.sink}  {entry.type}  {counted(entry.attempts, 'attempt')}: {entry.problem}"


def _choice(ids: tuple[str, ...], everything: bool) -> list[str] | None:
    """The ids, or None for all."""
    if bool(ids) == everything:
        raise click.UsageError("give event ids, or --all")
    return None if everything else list(ids)


@events.command()
@config_option
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Select all dead letters.")
@_sink_option
def retry(path: Path | None, ids: tuple[str, ...], everything: bool, sink: str | None) -> None:
    """Send dead letters again; sinks that are paused after a failure are tried again within seconds."""
    chosen = _choice(ids, everything)
    conf, outbox = _open(path)
    _need_sink(conf, outbox, sink)
    number = _run(outbox, lambda: outbox.retry(sink, chosen))
    say(f"{counted(number, 'dead letter')} will be sent again")
    sys.exit(EXIT_UNKNOWN if chosen and number < len(chosen) else 0)


@events.command()
@config_option
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Select all dead letters.")
@click.option("--waiting", is_flag=True, help="Also delete events that are still waiting; requires --sink.")
@_sink_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop(path: Path | None, ids: tuple[str, ...], everything: bool, waiting: bool, sink: str | None, yes: bool) -> None:
    """Delete dead letters permanently, after asking for confirmation.

    `--all --waiting --sink NAME` empties the outbox of a sink, for example one that is no longer configured.
    """
    chosen = _choice(ids, everything)
    if waiting and sink is None:
        raise click.UsageError("--waiting requires --sink")
    conf, outbox = _open(path)
    _need_sink(conf, outbox, sink)
    if not yes:
        what = "all dead letters" if chosen is None else counted(len(chosen), "dead letter")
        what = f"all events of {sink}, including those still waiting" if waiting and chosen is None else what
        if not consents(f"permanently delete {what}", otherwise="nothing was deleted"):
            sys.exit(EXIT_UNCONFIRMED)
    number = _run(outbox, lambda: outbox.drop(sink, chosen, waiting=waiting))
    say(f"{number:,} deleted")
    if not waiting and chosen is None and (left := _waiting(outbox, sink)):
        say(f"{counted(left, 'event')} still waiting; `--waiting --sink NAME` also deletes them", err=True)
    sys.exit(EXIT_UNKNOWN if chosen and number < len(chosen) else 0)


def _waiting(outbox: Outbox, sink: str | None) -> int:
    return sum(state.waiting for state in _run(outbox, outbox.states) if sink in (None, state.name))


@events.command()
@config_option
@click.argument("sinks", metavar="[SINK]...", nargs=-1)
def test(path: Path | None, sinks: tuple[str, ...]) -> None:
    """Send a test event directly to each sink, or to those named, bypassing the outbox.

    Exit code 0 only if all of them accept it.
    """
    import asyncio

    conf, _ = _open(path)
    names = [sink.name for sink in conf.events]
    if unknown := [name for name in sinks if name not in names]:
        _fail_unknown(unknown[0], names)
    if not names:
        _fail("no sinks are configured: set events")
    results = [asyncio.run(_test(conf, path, name)) for name in names if not sinks or name in sinks]
    sys.exit(0 if all(results) else EXIT_FAILED)


async def _test(conf: Config, path: Path | None, name: str) -> bool:
    import time

    from bridge.cli.quarantine.session import login_name
    from bridge.cli.state import state_directory
    from bridge.daemon import event_wiring, wiring
    from bridge.errors import ConfigError
    from bridge.events.event import trial
    from bridge.events.ocsf import to_ocsf
    from bridge.events.outbox import Entry

    settings = next(sink for sink in conf.events if sink.name == name)
    event = trial(name, login_name(), time.time())
    body = event.to_json(wiring.hostname(conf))
    entry = Entry(name, event.id, event.type, "", event.time, to_ocsf(body) if settings.format == "ocsf" else body)
    try:
        sink = event_wiring.sink_maker(conf, settings, state_directory(conf, path))()
    except ConfigError as exc:
        fail_config(exc)
    try:
        error = (await sink.deliver([entry])).get(entry.seq)
    finally:
        await sink.close()
    say(f"{name}: {'ok, event ' + event.id if error is None else f'FAILED: {error}'}", err=error is not None)
    return error is None


# What all of them need


def _open(path: Path | None) -> tuple[Config, Outbox]:
    from bridge.cli.state import make_state_directory
    from bridge.daemon import event_wiring
    from bridge.errors import ConfigError
    from bridge.events.outbox import Outbox

    conf = load_or_exit(path)
    try:
        state = make_state_directory(conf, path)
        place = event_wiring.outbox_place(conf, state)
    except ConfigError as exc:
        fail_config(exc)
    if not conf.events and place.path is not None and not place.path.exists():
        _fail("no sinks are configured: set events")
    return conf, Outbox(place)


def _need_sink(conf: Config, outbox: Outbox, sink: str | None) -> None:
    """A misspelled name must not look like a sink without events. Former sinks may still have some."""
    if sink is None or sink in (names := [known.name for known in conf.events]):
        return
    names += [state.name for state in _run(outbox, outbox.states)]
    if sink not in names:
        _fail_unknown(sink, names)


def _fail_unknown(sink: str, names: list[str]) -> NoReturn:
    from bridge.runtime.suggestion import did_you_mean

    hint = did_you_mean(sink, names) or f"; expected {', '.join(names)}"
    _fail(f"no such sink: {sink}{hint}", EXIT_UNKNOWN)


def _run(outbox: Outbox, work: Any) -> Any:
    from bridge.events.outbox import OutboxError

    try:
        return work()
    except OutboxError as exc:
        _fail(f"the event outbox cannot be used: {exc}")
    finally:
        outbox.close()


def _fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    say(text, err=True)
    sys.exit(code)
