"""From the configuration to event sinks, as `wiring` does for everything else.

Also contains what commands need that create events themselves: `scanbridge quarantine release` is a separate process,
and writes to the same outbox as the daemon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bridge.config.events import EventSink
from bridge.config.model import Config
from bridge.daemon import named_files, wiring
from bridge.errors import ConfigError
from bridge.events.delivery import DeliverySettings, SinkPlan
from bridge.events.direct import Lines
from bridge.events.event import Event, EventType, Release, Report, released, reported
from bridge.events.outbox import Entry, Limit, Outbox, OutboxError
from bridge.events.recorder import Plan, RecorderSettings
from bridge.events.sinks.sink import Sink
from bridge.observe.redaction import Redaction
from bridge.runtime import root_as_owner, whole_file
from bridge.runtime.counted import counted
from bridge.runtime.database import Database

log = logging.getLogger(__name__)

FILE = "events.sqlite"


@dataclass(frozen=True, slots=True)
class EventPlans:
    """What one version of the configuration says about events."""

    place: Database
    recorder: RecorderSettings
    delivery: DeliverySettings


def event_plans(conf: Config, state: Path) -> EventPlans | None:
    """None without sinks. Raises ConfigError now, rather than when the first event is delivered."""
    if not conf.events:
        return None
    sinks = tuple(
        SinkPlan(
            sink.name,
            sink_maker(conf, sink, state),
            sink.format == "ocsf",
            sink.max_attempts,
            open_directly=_direct(conf, sink, state),
        )
        for sink in conf.events
    )
    if warning := events_left_behind(conf, state):
        log.warning("%s", warning)
    return EventPlans(outbox_place(conf, state), recorder_settings(conf), DeliverySettings(sinks))


def recorder_settings(conf: Config) -> RecorderSettings:
    plans = tuple(Plan(sink.name, frozenset(sink.types), Limit(sink.max_events, sink.max_size)) for sink in conf.events)
    return RecorderSettings(plans, wiring.hostname(conf), wiring.redaction(conf))


def outbox_place(conf: Config, state: Path) -> Database:
    place = wiring.state_database(conf, state, "")
    return Database.file(state / FILE) if place.is_sqlite else place


def events_left_behind(conf: Config, state: Path) -> str:
    """A warning if events wait in the state directory, although `state_database` names a server; else empty."""
    path = state / FILE
    if outbox_place(conf, state).is_sqlite or not path.exists():
        return ""
    outbox = Outbox(Database.file(path))
    try:
        waiting = sum(sink.waiting for sink in outbox.states())
    except OutboxError as exc:
        return f"{path} cannot be read, so it is unknown whether events are waiting in it: {exc}"
    finally:
        outbox.close()
    if not waiting:
        return ""
    verb = "is" if waiting == 1 else "are"
    return (
        f"{counted(waiting, 'event')} {verb} waiting in {path} from before state_database was set, and will not "
        "be sent: to send them, remove state_database, restart, and wait until `scanbridge events status` shows none"
    )


# Sinks


def sink_maker(conf: Config, sink: EventSink, state: Path) -> Callable[[], Sink]:
    """Reads the files that the sink names; the sink itself is made later, in its thread. Raises ConfigError."""
    match sink.type:
        case "file":
            return _file(sink, state)
        case "webhook":
            return _webhook(conf, sink)
        case "syslog":
            return _syslog(conf, sink)
        case "nats":
            return _nats(conf, sink)


def _file(sink: EventSink, state: Path) -> Callable[[], Sink]:
    from bridge.events.sinks.file import FileSink

    path = state / (sink.path or "")
    if not path.parent.is_dir():
        raise ConfigError(f"{_key(sink, 'path')}: there is no directory {path.parent}; create it for the daemon's user")
    return lambda: FileSink(path)


def _direct(conf: Config, sink: EventSink, state: Path) -> Callable[[], Lines] | None:
    """Not with several processes: as their events wait in the outbox, order would be lost. `delivery` makes OCSF."""
    if sink.type != "file" or sink.format == "ocsf" or wiring.worker_count(conf) > 1:
        return None
    if not outbox_place(conf, state).is_sqlite:  # other bridges share it, and perhaps the file
        return None
    from bridge.events.sinks.file import FileSink

    return lambda: FileSink(state / (sink.path or ""))


def _webhook(conf: Config, sink: EventSink) -> Callable[[], Sink]:
    from bridge.events.sinks.webhook import WebhookSettings, WebhookSink, read_secrets

    key = _key(sink, "secret_file")
    path = named_files.locate(sink.secret_file or "", conf.directory)
    try:
        with root_as_owner.as_operator():
            secrets = read_secrets(whole_file.read_text(path, "ascii"))
    except OSError as exc:
        raise ConfigError(f"{key}: {path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not plain text") from None
    except ValueError as exc:
        raise ConfigError(f"{key}: {path}: {exc}") from None
    assert sink.url is not None
    tls = named_files.client_tls(sink.ca_file, conf.directory, _key(sink, "ca_file"))
    settings = WebhookSettings(sink.url, secrets, sink.timeout, tls)
    return lambda: WebhookSink(settings)


def _syslog(conf: Config, sink: EventSink) -> Callable[[], Sink]:
    from bridge.events.sinks.syslog import SyslogSettings, SyslogSink

    assert sink.address is not None
    tls = named_files.client_tls(sink.ca_file, conf.directory, _key(sink, "ca_file")) if sink.tls else None
    settings = SyslogSettings(sink.address, sink.facility, wiring.hostname(conf), sink.timeout, tls)
    return lambda: SyslogSink(settings)


def _nats(conf: Config, sink: EventSink) -> Callable[[], Sink]:
    if find_spec("nats") is None:
        raise ConfigError(f"{_key(sink, 'type')}: the NATS client is missing: pip install 'scanbridge[nats]'")
    from bridge.events.sinks.nats import NatsSettings, NatsSink

    is_encrypted = bool(sink.ca_file) or any(server.startswith("tls:") for server in sink.servers)
    credentials = named_files.locate(sink.credentials_file, conf.directory) if sink.credentials_file else None
    if credentials is not None:
        named_files.need_readable(credentials, _key(sink, "credentials_file"))
    token = None
    if sink.token_file:
        token = named_files.read_secret(named_files.locate(sink.token_file, conf.directory), _key(sink, "token_file"))
    settings = NatsSettings(
        servers=tuple(sink.servers),
        subject=sink.subject,
        jetstream=sink.jetstream,
        timeout_s=sink.timeout,
        tls=named_files.client_tls(sink.ca_file, conf.directory, _key(sink, "ca_file")) if is_encrypted else None,
        credentials=credentials,
        token=token,
    )
    return lambda: NatsSink(settings)


def _key(sink: EventSink, name: str) -> str:
    return f"events: {sink.name}: {name}"


# For commands


def report_release(conf: Config, state: Path, release: Release) -> str:
    """Tell the sinks that want to know about released mail. Returns what went wrong; the mail is released anyway."""
    return _put(conf, state, EventType.RELEASED, lambda redaction: released(release, redaction, time.time()))


def report_report(conf: Config, state: Path, report: Report) -> str:
    """Tell the sinks that want to know about reported mail. Returns what went wrong."""
    return _put(conf, state, EventType.REPORTED, lambda redaction: reported(report, redaction, time.time()))


def _put(conf: Config, state: Path, type_: EventType, make: Callable[[Redaction], Event]) -> str:
    wanting = [sink for sink in conf.events if type_ in sink.types]
    if not wanting:
        return ""
    try:
        place = outbox_place(conf, state)
        settings = recorder_settings(conf.model_copy(update={"state_directory": str(state)}))
    except ConfigError as exc:
        return str(exc)
    event = make(settings.redaction)
    body = event.to_json(settings.source)
    entries = [Entry(sink.name, event.id, event.type, event.about, event.time, body) for sink in wanting]
    outbox = Outbox(place)
    try:
        limits = {sink.name: Limit(sink.max_events, sink.max_size) for sink in wanting}
        excess = outbox.add(entries, limits)
    except OutboxError as exc:
        return str(exc)
    finally:
        outbox.close()
    full = [name for name, number in excess.items() if number]
    return f"too many events are waiting for {', '.join(full)}" if full else ""
