"""Events of a running daemon, as a real process: from mail, lists, scanner and commands to their receiver."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.runtime import yaml_file
from bridge.testing import answer, result, until
from tests.daemon.process_kit import MAIL, Bridge, get, parts, running, scanbridge, start, write_config
from tests.events.events_kit import SECRET, Receiver, lines
from tests.lists.lists_kit import running_service
from tests.postgresql import fresh_database
from tests.rewriting import rewrite

FILE = {"name": "log", "type": "file", "path": "events.jsonl"}


def hook(directory: Path, receiver: Receiver, **more: Any) -> dict[str, Any]:
    (directory / "secret").write_text(SECRET + "\n")
    return {"name": "hook", "type": "webhook", "url": receiver.url, "secret_file": "secret", "timeout": "1s", **more}


def metric(bridge: Bridge, name: str, **labels: str) -> float:
    """The sum of all series with these labels."""
    total = 0.0
    for line in get(bridge.admin, "/metrics")[1].splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


def file_of(bridge: Bridge, name: str = "events.jsonl") -> Path:
    return bridge.directory / "state" / name


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_without_sinks_there_is_nothing(tmp_path: Path) -> None:
    """No file, no thread, no series of sinks."""
    with running(tmp_path) as (bridge, _, _):
        bridge.send()
        names = {(path / "comm").read_text().strip() for path in Path(f"/proc/{bridge.process.pid}/task").iterdir()}
        assert not file_of(bridge, "events.sqlite").exists() and not [name for name in names if "event" in name]
        assert not re.search(r"(?m)^scanbridge_events\w*{", get(bridge.admin, "/metrics")[1])


@pytest.mark.parametrize("workers", [1, 2])
def test_what_happens_to_mail_reaches_a_webhook(tmp_path: Path, receiver: Receiver, workers: int) -> None:
    """Whichever worker processed it; a mail's own events are in order, and equal to its log line."""
    with running(tmp_path, events=[hook(tmp_path, receiver)], workers=workers) as (bridge, scanner, _):
        for decision in ("deliver", "quarantine", "bounce", "drop", "undecided") * 3:
            scanner.reply = answer(200, result(decision))
            bridge.send()
        until(lambda: len(set(receiver.ids())) >= 24, "all events")
        logged = {line.split()[0].removeprefix("id="): line for line in bridge.mail_lines(15)}
        until(lambda: metric(bridge, "scanbridge_events_delivered_total", sink="hook") == 24, "the metric")
        assert metric(bridge, "scanbridge_events_total") == 24 and not metric(bridge, "scanbridge_events_lost_total")
    by_mail: dict[str, list[str]] = {}
    for event in {event["id"]: event for event in receiver.events}.values():  # a slow machine may send one twice
        by_mail.setdefault(event["data"]["id"], []).append(event["type"])
        line = logged[event["data"]["id"]]
        assert f"action={event['data']['action']} " in line and f"decision={event['data']['decision']} " in line
    decided, refused, kept = "mail.decided", "mail.refused", "mail.quarantined"
    assert sorted(map(tuple, by_mail.values())) == sorted(
        [(decided,)] * 6 + [(decided, refused)] * 6 + [(decided, kept)] * 3
    )


def test_events_in_the_outbox_survive_a_kill(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver is away; the daemon is killed with -9; after its restart, everything arrives."""
    receiver.stop()
    with parts() as (_, scanner, next_hop):
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url, events=[hook(tmp_path, receiver)])
        bridge = start(config, port, admin)
        try:
            for _ in range(5):
                bridge.send()
            until(lambda: _waiting(config) == 5, "the events to be in the outbox")
            bridge.process.send_signal(signal.SIGKILL)
            bridge.wait()
            receiver.let_go.clear()
            receiver.start()
            bridge = start(config, port, admin)
            until(lambda: len(receiver.events) >= 5, "all events")
        finally:
            bridge.end()
    assert len(set(receiver.ids())) == 5


@pytest.mark.long
def test_a_killed_worker_costs_nothing_that_was_in_the_outbox(tmp_path: Path, receiver: Receiver) -> None:
    """Another one delivers: it takes the lease over, and the killed one's events with it."""
    receiver.answer = lambda receiver, event: 503
    events = [hook(tmp_path, receiver)]
    with running(tmp_path, events=events, workers=2) as (bridge, _, _):
        for _ in range(6):
            bridge.send()
        until(lambda: _waiting(tmp_path / "bridge.yml") == 6, "the events to be in the outbox")
        first = min(worker["pid"] for worker in json.loads(get(bridge.admin, "/status")[1])["workers"])
        os.kill(first, signal.SIGKILL)
        receiver.answer = lambda receiver, event: 200
        until(lambda: len(set(receiver.ids())) >= 6, "all events", 120)
    assert len(set(receiver.ids())) == 6


def _waiting(config: Path) -> int:
    shown = scanbridge("events", "status", "-c", config, "--json").stdout
    return sum(row["waiting"] for row in json.loads(shown)) if shown else 0


def test_what_is_in_memory_is_written_when_the_daemon_stops(tmp_path: Path) -> None:
    """And delivered after the next start, if the receiver was away."""
    with running(tmp_path, events=[FILE]) as (bridge, _, _):
        for _ in range(20):
            bridge.send()
        bridge.signal()
        assert bridge.wait() == 0
        path = tmp_path / "state" / "events.jsonl"
        assert len(lines(path)) + _waiting(tmp_path / "bridge.yml") == 20


def test_a_release_is_an_event(tmp_path: Path, receiver: Receiver) -> None:
    """Written by the command, delivered by the daemon, after the mail's other events; with hidden addresses."""
    events = [hook(tmp_path, receiver, types=["mail.quarantined", "mail.released"])]
    with running(tmp_path, events=events, log={"addresses": "hashed"}) as (bridge, scanner, _):
        scanner.reply = answer(200, result("quarantine"))
        bridge.send()
        until(lambda: len(receiver.events) == 1, "the first event")
        mail_id = receiver.events[0]["data"]["id"]
        done = scanbridge("quarantine", "release", "-c", tmp_path / "bridge.yml", mail_id)
        assert done.returncode == 0, done.stderr
        until(lambda: len(receiver.events) == 2, "the second event")
        kept, released = receiver.events
    assert (kept["type"], released["type"]) == ("mail.quarantined", "mail.released")
    assert released["data"]["id"] == mail_id and released["data"]["reply"].startswith("250")
    assert released["data"]["recipients"] == kept["data"]["recipients"]  # the same pseudonym: the same key
    assert released["data"]["recipients"][0].startswith("~") and released["data"]["recipient_count"] == 1


def test_the_state_of_the_scanner_is_an_event(tmp_path: Path) -> None:
    """Saturated, up, a token that is refused, down."""
    events = [{**FILE, "types": ["scanner.state"]}]
    with parts() as (background, scanner, next_hop):
        bridge = start(*write_config(tmp_path, scanner.url, next_hop.url, events=events))

        def next_state(state: str) -> dict[str, Any]:
            return until(
                lambda: next((one for one in lines(file_of(bridge)) if one["data"]["state"] == state), {}), state
            )

        green = scanner.status
        scanner.status = answer(200, b'{"messageQueueStatus": "RED"}')
        assert next_state("saturated")["data"]["host"] == scanner.url
        scanner.status = green
        assert next_state("up")["data"]["state_before"] == "saturated"
        scanner.status = answer(401)
        assert "token" in next_state("token_refused")["data"]["problem"]
        scanner.status = None  # ends the open connections, and there are no others
        background.run(scanner.stop())
        down = next_state("down")
        assert down["data"]["problem"] and down["type"] == "scanner.state"
        bridge.end()


def test_an_event_of_the_scanner_quoted_a_mail(tmp_path: Path) -> None:
    """In the form that the log has."""
    events = [{**FILE, "types": ["scanner.state"]}]
    with running(tmp_path, events=events, log={"addresses": "hashed"}) as (bridge, scanner, _):
        scanner.reply = answer(200, b"of a@client.example")
        bridge.send()
        scanner.status = answer(200, b"of a@client.example")
        until(lambda: file_of(bridge).exists() and lines(file_of(bridge)), "the event")
        (event, *_) = lines(file_of(bridge))
        assert event["data"]["state"] == "down" and "of ~" in event["data"]["problem"]
        assert "a@client.example" not in file_of(bridge).read_text()


def test_a_changed_list_is_an_event(tmp_path: Path) -> None:
    """Its name and how many entries it has now; a refresh that changes nothing is none."""
    (tmp_path / "service").mkdir()
    with running_service(tmp_path / "service") as service:
        service.add("blocked-senders", {"a@example.org": ""})
        (tmp_path / "key").write_text(service.settings().api_key + "\n")
        with parts() as (_, scanner, next_hop):
            config, port, admin = write_config(
                tmp_path, scanner.url, next_hop.url,
                events=[{**FILE, "types": ["list.changed"]}],
                lists={"url": service.settings().url, "api_key_file": "key", "refresh": "1s"},
                listeners=[{"name": "mx", "address": "127.0.0.1:0", "lists": {"block": ["blocked-senders"]}}],
            )  # fmt: skip
            bridge = start(config, port, admin)
            try:
                first = until(lambda: lines(file_of(bridge)), "the first copy")[0]
                assert first["data"] == {"list": "blocked-senders", "entries": 1}
                service.add("blocked-senders", {"b@example.org": "", "c@example.org": ""})
                second = until(lambda: lines(file_of(bridge))[1:], "the second copy")[0]
                assert second["data"] == {"list": "blocked-senders", "entries": 3, "entries_before": 1}
                until(lambda: metric(bridge, "scanbridge_list_refreshes_total", outcome="ok") >= 3, "more refreshes")
                assert len(lines(file_of(bridge))) == 2
            finally:
                bridge.end()


def change(config: Path, **sections: Any) -> None:
    text = config.read_text()
    start_of = text.index("events:")
    rewrite(config, text[:start_of] + yaml_file.dump(sections))


def test_a_reload_changes_the_sinks(tmp_path: Path) -> None:
    """One more, one less, none; no event is lost, and a mistake changes nothing."""
    with running(tmp_path, events=[FILE]) as (bridge, _, _):
        config = tmp_path / "bridge.yml"
        bridge.send()
        change(config, events=[{**FILE, "path": "no/such/directory"}])
        assert scanbridge("reload", "-c", config).returncode == 1
        bridge.send()
        until(lambda: len(lines(file_of(bridge))) == 2, "both events")
        change(config, events=[FILE, {**FILE, "name": "second", "path": "second.jsonl"}])
        assert scanbridge("reload", "-c", config).returncode == 0
        bridge.send()
        until(
            lambda: len(lines(file_of(bridge))) == 3 and len(lines(file_of(bridge, "second.jsonl"))) == 1, "the third"
        )
        change(config, events=[])
        assert scanbridge("reload", "-c", config).returncode == 0
        bridge.send()
        assert len(bridge.mail_lines(4)) == 4
    assert len(lines(file_of(bridge))) == 3


@contextmanager
def locked(path: Path) -> Iterator[None]:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        holder.execute("ROLLBACK")
        holder.close()


def test_mail_does_not_wait_for_a_locked_outbox(tmp_path: Path) -> None:
    """Many clients send while the database is locked: every mail is accepted, and no event is missing afterwards."""
    with running(tmp_path, events=[FILE]) as (bridge, _, next_hop):
        bridge.send()
        until(lambda: len(lines(file_of(bridge))) == 1, "the first event")
        with locked(file_of(bridge, "events.sqlite")):
            _send_many(bridge, clients=4, each=50)
            until(lambda: json.loads(get(bridge.admin, "/status")[1])["events_problem"], "the problem to be seen")
            warnings = json.loads(get(bridge.admin, "/status")[1])["warnings"]
            assert any("events cannot be recorded" in text for text in warnings)
        until(lambda: len(lines(file_of(bridge))) == 201, "all events")
        assert len(next_hop.mails) == 201 and not metric(bridge, "scanbridge_events_lost_total")
        assert not json.loads(get(bridge.admin, "/status")[1])["problems"]


def _send_many(bridge: Bridge, clients: int, each: int) -> None:
    replies: Counter[bytes] = Counter()

    def send() -> None:
        with bridge.client() as client:
            for _ in range(each):
                replies[client.mail(MAIL)[:3]] += 1

    threads = [threading.Thread(target=send) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {b"250": clients * each}


def test_a_limit_loses_and_counts_exactly(tmp_path: Path, receiver: Receiver) -> None:
    """The receiver is away and the outbox small: mail goes on, and delivered and lost make up the whole."""
    receiver.stop()
    with running(tmp_path, events=[hook(tmp_path, receiver, max_events=30)]) as (bridge, _, _):
        _send_many(bridge, clients=2, each=50)
        until(lambda: metric(bridge, "scanbridge_events_lost_total", reason="outbox") == 70, "the lost events")
        assert metric(bridge, "scanbridge_events_total") == 100
        receiver.let_go.clear()
        receiver.start()
        scanbridge("events", "retry", "--all", "-c", tmp_path / "bridge.yml")
        until(lambda: len(receiver.events) == 30, "those that were kept")
        until(lambda: metric(bridge, "scanbridge_events_waiting") == 0, "the gauge")


def test_postgresql_is_used_if_it_is_the_state_database(tmp_path: Path, receiver: Receiver, postgresql: str) -> None:
    """There is no file then."""
    url = fresh_database(postgresql)
    with running(tmp_path, events=[hook(tmp_path, receiver)], state_database=url) as (bridge, _, _):
        for _ in range(3):
            bridge.send()
        until(lambda: len(receiver.events) == 3, "all events")
        assert not file_of(bridge, "events.sqlite").exists()


def test_status_shows_a_sink_that_fails(tmp_path: Path, receiver: Receiver) -> None:
    """In `status`, on the admin page, and in its own command."""
    receiver.answer = lambda receiver, event: 500
    with running(tmp_path, events=[hook(tmp_path, receiver)]) as (bridge, _, _):
        bridge.send()
        shown = until(
            lambda: (
                text
                if "it answered 500" in (text := scanbridge("status", "-c", tmp_path / "bridge.yml").stdout)
                else ""
            ),
            "the sink's problem",
        )
        assert re.search(r"(?m)^event sink +hook: 1 event waiting \(127\.0\.0\.1:\d+: it answered 500\)$", shown)
        done = scanbridge("events", "status", "-c", tmp_path / "bridge.yml")
        assert done.returncode == 1 and "hook (webhook): 1 waiting" in done.stdout


@pytest.mark.parametrize("scanner_reply", ["deliver", "bounce"])
def test_a_door_list_refusal_and_a_scan_have_one_shape(tmp_path: Path, scanner_reply: str) -> None:
    """A receiver needs one parser."""
    with running(tmp_path, events=[FILE]) as (bridge, scanner, _):
        scanner.reply = answer(200, result(scanner_reply))
        with bridge.client() as client:
            client.say(b"MAIL FROM:<a@client.example> SIZE=999999999")
        bridge.send()
        found = until(lambda: lines(file_of(bridge)) if len(lines(file_of(bridge))) >= 2 else [], "events")
    early = found[0]
    assert (early["type"], early["data"]["stage"], early["data"]["reply"]["code"]) == ("mail.refused", "mail", 552)
    assert found[1]["data"]["stage"] == "content" and set(early["data"]) <= set(found[1]["data"]) | {"error", "problem"}


@pytest.mark.parametrize("level", ["debug", pytest.param("info", marks=pytest.mark.long)])
def test_the_url_of_a_webhook_is_not_shown(tmp_path: Path, receiver: Receiver, level: str) -> None:
    """The HTTP client logged each request with its URL, and the URLs of some receivers contain a token."""
    sink = {**hook(tmp_path, receiver), "url": receiver.url + "/open?token=sesame"}
    with running(tmp_path, events=[sink], log={"level": level}) as (bridge, _, _):
        bridge.send()
        until(lambda: metric(bridge, "scanbridge_events_delivered_total", sink="hook") == 1, "the delivery")
        shown = [get(bridge.admin, path)[1] for path in ("/status", "/metrics", "/")]
        shown += [scanbridge(*command, "-c", tmp_path / "bridge.yml").stdout for command in SHOWING]
        receiver.answer = lambda receiver, event: 500
        bridge.send()
        until(lambda: "it answered 500" in bridge.log, "a failure in the log")
        assert not [text for text in (*shown, bridge.log) if "sesame" in text]
        assert "/open" not in bridge.log, "a path may be a secret, too"


SHOWING = (("config", "show"), ("config", "show", "--json"), ("check",), ("status",), ("events", "status"))
