"""Events that go to their file at once, not to the outbox first: in order, none lost, and only if none waits there."""

from __future__ import annotations

import asyncio
import fcntl
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.daemon.event_wiring import event_plans
from bridge.events.delivery import Delivery, DeliverySettings, SinkPlan
from bridge.events.direct import DirectFile, Lines
from bridge.events.outbox import Outbox
from bridge.events.recorder import Plan, Recorder, RecorderSettings
from bridge.events.sinks.file import FileSink
from bridge.runtime.database import Database
from bridge.testing import until
from tests.events.events_kit import ROOMY, Lost, entry, lines, mail, put, waiting
from tests.events.test_event_config import load

DECIDED = frozenset({"mail.decided"})


class Hanging(FileSink):
    """A disk that does not answer until it is told to."""

    let_go = threading.Event()

    def append(self, lines: bytes) -> None:
        self.let_go.wait(30)
        super().append(lines)


class Bridge:
    """A recorder and a delivery for one file."""

    def __init__(self, directory: Path, direct: type[FileSink] = FileSink) -> None:
        self.path = directory / "out" / "events.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        self.database = directory / "events.sqlite"
        self.place = Database.file(self.database)
        self.lost = Lost()
        self.delivered = 0

        def open_directly() -> Lines:
            return direct(self.path)

        plan = SinkPlan("s", lambda: FileSink(self.path), open_directly=open_directly)
        settings = DeliverySettings((plan,), first_pause_s=0.05, longest_pause_s=0.2)
        self.delivery = Delivery(settings, Outbox(self.place), on_delivered=self._count)
        self.recorder = Recorder(
            RecorderSettings((Plan("s", DECIDED, ROOMY),), "bridge.example", batch_s=0.02),
            Outbox(self.place),
            on_lost=self.lost,
            on_written=self.delivery.wake,
            direct=self.delivery.direct_files(),
        )

    def _count(self, _sink: str, number: int) -> None:
        self.delivered += number

    def start(self) -> None:
        self.delivery.start()
        until(lambda: self.delivery._may_deliver("s", 2.0), "the lease")
        self.recorder.start()

    def close(self) -> None:
        self.recorder.close()
        self.delivery.close()

    def send(self, *ids: str) -> None:
        for mail_id in ids:
            self.recorder.put(mail(mail_id=mail_id))

    def ids(self) -> list[str]:
        return [event["data"]["id"] for event in lines(self.path)] if self.path.exists() else []

    def stored(self) -> int:
        """How many events have ever been in the outbox."""
        with closing(sqlite3.connect(self.database)) as connection:
            found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'event_outbox'").fetchone()
        return found[0] if found else 0


@contextmanager
def running(directory: Path, direct: type[FileSink] = FileSink) -> Iterator[Bridge]:
    bridge = Bridge(directory, direct)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.close()


def test_events_reach_their_file_without_the_outbox(tmp_path: Path) -> None:
    """All of them, in order, and counted as delivered."""
    ids = [f"M{number}" for number in range(1200)]
    with running(tmp_path) as bridge:
        bridge.send(*ids)
        until(lambda: bridge.delivered == len(ids), "the events")
        assert bridge.ids() == ids and bridge.stored() == 0 and not bridge.lost


def test_what_is_left_at_the_end_is_written(tmp_path: Path) -> None:
    with running(tmp_path) as bridge:
        bridge.send("M1", "M2")
    assert bridge.ids() == ["M1", "M2"] and waiting(bridge.place) == 0


def test_a_file_that_fails_is_left_to_the_outbox(tmp_path: Path) -> None:
    """Its events wait there, keep their order, and those that come later do not overtake them."""
    with running(tmp_path) as bridge:
        bridge.send("M1")
        until(lambda: bridge.ids() == ["M1"], "the first event")
        moved = tmp_path / "moved"
        bridge.path.parent.rename(moved)
        bridge.send("M2", "M3")
        until(lambda: bridge.stored() == 2, "the events in the outbox")
        bridge.send("M4")
        until(lambda: bridge.stored() == 3, "the next one behind them")
        moved.rename(bridge.path.parent)
        until(lambda: bridge.ids() == ["M1", "M2", "M3", "M4"], "all events, in order")
        until(lambda: waiting(bridge.place) == 0, "an empty outbox")
        bridge.send("M5")
        until(lambda: bridge.ids()[4:] == ["M5"], "the direct way again")
        assert bridge.stored() == 3 and not bridge.lost


def test_an_event_that_waits_is_not_overtaken(tmp_path: Path) -> None:
    """A command has put it into the outbox before the daemon started."""
    bridge = Bridge(tmp_path)
    put(bridge.place, entry(body=json.dumps({"data": {"id": "EARLY"}}).encode()))
    bridge.recorder.start()
    bridge.send("M1")
    until(lambda: bridge.stored() == 2, "both in the outbox")
    bridge.delivery.start()
    until(lambda: bridge.ids() == ["EARLY", "M1"], "both in order")
    bridge.close()


def test_without_the_lease_nothing_is_written_directly(tmp_path: Path) -> None:
    """Another process delivers."""
    bridge = Bridge(tmp_path)
    other = Outbox(bridge.place)
    assert other.hold_lease("s", "another")
    other.close()
    bridge.delivery.start()
    bridge.recorder.start()
    bridge.send("M1")
    until(lambda: bridge.stored() == 1, "the event in the outbox")
    assert bridge.ids() == []
    bridge.close()


def test_a_disk_that_hangs_does_not_stop_the_recorder(tmp_path: Path) -> None:
    """Its events take the other way; when the disk answers, they may be there twice, with the same id."""
    Hanging.let_go.clear()
    with running(tmp_path, Hanging) as bridge:
        bridge.send("M1")
        until(lambda: bridge.ids() == ["M1"], "the first event, through the outbox")
        bridge.send("M2")
        until(lambda: bridge.ids() == ["M1", "M2"], "the second one, without waiting")
        assert bridge.stored() == 2
        Hanging.let_go.set()
        until(lambda: len(bridge.ids()) == 3, "the write that hung")
        found = lines(bridge.path)
        assert found[2] == found[0] and not bridge.lost


@pytest.mark.parametrize(
    ("more", "is_direct"),
    [({}, True), ({"workers": 2}, False), ({"state_database": "postgresql://h/d"}, False)],
)
def test_only_a_single_process_writes_directly(tmp_path: Path, more: dict[str, Any], is_direct: bool) -> None:
    """With several, those whose events wait in the outbox would be overtaken."""
    conf = load(tmp_path, {"name": "s", "type": "file", "path": "e.jsonl"}).model_copy(update=more)
    plans = event_plans(conf, tmp_path)
    assert plans is not None and (plans.delivery.plans[0].open_directly is not None) is is_direct
    ocsf = event_plans(load(tmp_path, {"name": "s", "type": "file", "path": "e.jsonl", "format": "ocsf"}), tmp_path)
    assert ocsf is not None and ocsf.delivery.plans[0].open_directly is None


async def test_a_cancelled_write_cut_off_later_events(tmp_path: Path) -> None:
    """Its thread goes on: it waits for other writers, and takes back nothing but its own bytes."""
    path = tmp_path / "events.jsonl"
    sink = FileSink(path)
    await sink.deliver([entry(body=b'"first"')])
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = asyncio.create_task(sink.deliver([entry(body=b'"late"')]))
        await asyncio.to_thread(until, sink._using.locked, "the thread that writes")
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        await sink.close()  # the descriptor is in use
        other.write(b'"other"\n')
        other.flush()
        assert path.read_bytes() == b'"first"\n"other"\n'
        fcntl.flock(other, fcntl.LOCK_UN)
    await asyncio.to_thread(until, lambda: path.read_bytes() == b'"first"\n"other"\n"late"\n', "the late event")
    await sink.deliver([entry(body=b'"next"')])
    assert path.read_bytes().splitlines()[3] == b'"next"'
    await sink.close()


def test_each_reload_left_a_thread_behind(tmp_path: Path) -> None:
    def threads() -> int:
        return sum(thread.name == "event-file" for thread in threading.enumerate())

    before = threads()
    for number in range(3):
        file = DirectFile(FileSink(tmp_path / "events.jsonl"), lambda _: True, lambda _: None)
        assert file.write([entry(str(number))])
        file.close()
    until(lambda: threads() == before, "the threads to end")
