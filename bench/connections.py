"""Measures the load of fifty bridges on one PostgreSQL server: `make bench-connections`.

For each bridge, opens everything that the daemon keeps in the database: late decisions, history, index and locks of the
quarantine, used release codes, personal lists, feedback, events. At a modest rate of mail, counts the connections,
transactions and statements, and measures the server's CPU time. The bridges run in one process, so their own CPU time
is not representative. A complete daemon shows what one bridge opens. Fails if a bound is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from sqlalchemy import Connection, create_engine, make_url, text  # noqa: E402

from bench.queue_cost import cpu_of  # noqa: E402
from bridge.api.scanning import AnalysisResult, Decision  # noqa: E402
from bridge.config.model import Config  # noqa: E402
from bridge.daemon import personal_wiring, wiring  # noqa: E402
from bridge.daemon.event_wiring import event_plans  # noqa: E402
from bridge.daemon.events import Events  # noqa: E402
from bridge.daemon.feedback import Feedback  # noqa: E402
from bridge.filter.outcome import Outcome, Record  # noqa: E402
from bridge.mail.action import Action  # noqa: E402
from bridge.mail.envelope import Envelope, Recipient  # noqa: E402
from bridge.mail.message import Message, Spool  # noqa: E402
from bridge.mail.reply import Reply  # noqa: E402
from bridge.mail.session import Client, Session  # noqa: E402
from bridge.mail.transaction import Transaction, new_id  # noqa: E402
from bridge.observe.metrics import Metrics  # noqa: E402
from bridge.quarantine.quarantine import Quarantine  # noqa: E402
from bridge.runtime import yaml_file  # noqa: E402
from bridge.testing import answer, eventually, result, running_bridge, until  # noqa: E402
from tests.postgresql import cluster, fresh_database  # noqa: E402
from tests.quarantine.s3_kit import BUCKET, ObjectServer, write_keys  # noqa: E402

PAGE = ROOT / "docs/understand/scale.md"
BEGIN, END = "<!-- written by make bench-connections -->", "<!-- end of connections -->"
CONNECTIONS = 20  # of a bridge at most: what the page tells operators to allow
STATEMENTS = 50  # of a bridge in a second at most, at these rates
ENVELOPE = Envelope("a@sender.example", (Recipient("b@example.org"),))
RESULT = AnalysisResult(Decision.DELIVER, "ggrid", "clean")
EVENTS = [{"name": "siem", "type": "file", "path": "events.jsonl"}]
QUARANTINED = "mail.quarantined"
CONFIG = """
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:0"}}]
relay: {{next_hop: "127.0.0.1:1"}}
state_directory: {state}
state_database: "{url}"
quarantine: {{s3: {{bucket: {bucket}, endpoint: "http://127.0.0.1:{s3}", access_key_file: access-key,
  secret_key_file: secret-key}}}}
events: [{{name: siem, type: file, path: events.jsonl, types: [{types}]}}]
"""


class LateScan:
    async def result(self) -> AnalysisResult:
        await asyncio.sleep(1.0)
        return RESULT

    def abandon(self) -> None:
        """It ends by itself."""


def message(content: bytes) -> Message:
    mail = Message(Spool(1 << 20))
    mail.write(content)
    return mail


def transaction() -> Transaction:
    session = Session("SESSION", "mx", "127.0.0.1", Client(address="192.0.2.7", helo="mx.example", ident=new_id()))
    now = asyncio.get_running_loop().time()
    return Transaction(new_id(), session, ENVELOPE, message(b"Subject: x\r\n\r\nx\r\n"), now, now + 60.0)


def record(tx: Transaction, action: Action = Action.RELAY) -> Record:
    outcome = Outcome(action, Reply(250, "2.0.0", "Ok"), RESULT)
    return Record(tx, 4096, outcome=outcome, message_id=f"<{new_id()}@sender.example>", subject=b" some words")


class Bridge:
    """What one bridge opens in the database."""

    def __init__(self, conf: Config, state: Path, counts: Counter[str]) -> None:
        state.mkdir()
        late = wiring.late_decisions(conf, state, lambda end: counts.update([end.value]))
        recorder = wiring.recorder(conf, state, lambda: False, lambda what, number: counts.update({what: number}))
        assert late is not None and recorder is not None
        self._conf, self._counts, self.late, self.recorder = conf, counts, late, recorder
        self.quarantine = Quarantine(wiring.quarantine_place(conf, state))
        self.used_tokens = wiring.used_tokens(conf, state)
        self.personal = personal_wiring.refresh(conf, state)
        metrics = Metrics(["mx"])
        self.feedback = Feedback(state, metrics, lambda: True)
        self.events = Events(metrics, lambda: True)
        self._plans = event_plans(conf, state)
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.late.start()
        self.recorder.start()
        self.events.adopt(self._plans)
        await self.personal.start()
        self._watching = [
            asyncio.create_task(self.personal.watch()),
            asyncio.create_task(self.feedback.watch(lambda: self._conf)),
        ]
        await self.quarantine.usage(3600.0)

    async def send(self, seconds: float, mails_per_s: float, offset: float) -> None:
        await asyncio.sleep(offset / mails_per_s)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._report(record(transaction()))
            await asyncio.sleep(1 / mails_per_s)

    def _report(self, mail: Record) -> None:
        self.recorder.note(mail)
        if self.events.recorder is not None:
            self.events.recorder.put(mail)

    async def hold(self, seconds: float, every_s: float, offset: float) -> None:
        """Quarantine a mail now and then, and release it: its lock, and the use of its release code."""
        await asyncio.sleep(offset * every_s)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            tx = transaction()
            await self.quarantine.keep(tx, b"", {})
            self._report(record(tx, Action.QUARANTINE))
            await asyncio.to_thread(self._release, tx.id)
            self._counts.update(["released"])
            await asyncio.sleep(every_s)

    def _release(self, mail_id: str) -> None:
        with self.quarantine.lock(mail_id) as held:
            held.check()
            self.used_tokens.take([mail_id.encode()[:24]], time.time())

    async def be_late(self, seconds: float, every_s: float, offset: float) -> list[bytes]:
        """Returns the mails, which a client sends to another bridge later."""
        late: list[bytes] = []
        await asyncio.sleep(offset * every_s)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            late.append(f"Subject: {new_id()}\r\n\r\nx\r\n".encode())
            await self.late.follow(None, ENVELOPE, message(late[-1]), LateScan(), lambda: None)
            await asyncio.sleep(every_s)
        return late

    async def stop(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self.late.stop(5.0)
        await asyncio.to_thread(self.recorder.close)
        await self.events.close()
        self.personal.close()
        self.feedback.close()
        self.used_tokens.close()
        await self.quarantine.close()


@dataclass
class Server:
    """What PostgreSQL says about one database."""

    connection: Connection
    name: str
    postmaster: int
    most: int = 0  # connections

    def look(self) -> None:
        count = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name"
        self.most = max(self.most, self.connection.execute(text(count), {"name": self.name}).scalar_one())

    def counts(self) -> Counter[str]:
        values = {"name": self.name}
        sums = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name"
        calls = "SELECT sum(calls) FROM pg_stat_statements JOIN pg_database ON oid = dbid WHERE datname = :name"
        return Counter(
            transactions=int(self.connection.execute(text(sums), values).scalar_one()),
            statements=int(self.connection.execute(text(calls), values).scalar_one() or 0),
            cpu_ms=int(1000 * cpu_of(self.postmaster)),
        )


@contextmanager
def server() -> Iterator[tuple[str, Connection, int]]:
    """A URL, a connection to look around with, and the postmaster's process id."""
    with cluster() as postgresql:
        for is_ready in (False, True):
            engine = create_engine(
                postgresql.url.format(name="postgres").replace("postgresql:", "postgresql+psycopg:"),
                isolation_level="AUTOCOMMIT",
            )
            with engine.connect() as connection:
                if is_ready:
                    connection.execute(text("CREATE EXTENSION pg_stat_statements"))
                    backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
                    status = Path(f"/proc/{backend}/status").read_text()
                    yield postgresql.url, connection, int(status.split("PPid:")[1].split()[0])
                else:
                    connection.execute(text("ALTER SYSTEM SET max_connections = 1100"))
                    connection.execute(text("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'"))
            engine.dispose()
            if not is_ready:
                postgresql.stop()
                postgresql.start()


@contextmanager
def storage(directory: Path) -> Iterator[int]:
    """The port of an object storage."""
    server = ObjectServer(directory)
    try:
        yield server.port
    finally:
        server.stop()


@dataclass
class Found:
    seconds: float
    connections: int
    idle: Counter[str]  # in a second without mail
    busy: Counter[str]
    mails: int
    late: int
    shared: int  # late decisions that another bridge found
    outcomes: Counter[str] = field(default_factory=Counter)


async def measure(given: argparse.Namespace, url: str, connection: Connection, postmaster: int) -> Found:
    database = fresh_database(url)
    looking = Server(connection, str(make_url(database).database), postmaster)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory, storage(Path(directory) / "s3") as port:
        place = Path(directory)
        (place / "token").write_text("0123456789abcdef" * 4)
        write_keys(place)
        types = QUARANTINED + (", mail.decided" if given.all_events else "")
        text = CONFIG.format(state=place, url=database, bucket=BUCKET, s3=port, types=types)
        conf = yaml_file.load(place / "bridge.yml", Config, text)
        bridges = [Bridge(conf, place / str(number), counts) for number in range(given.bridges)]
        for bridge in bridges:
            await bridge.start()
        await asyncio.sleep(5.0)  # the schema, and what else is done only at the start
        idle = await watch(looking, given.seconds / 2)
        first = [0.0 if given.at_once else number / len(bridges) for number in range(len(bridges))]
        sending = [one.send(given.seconds, given.mails_per_s, at) for one, at in zip(bridges, first, strict=True)]
        late = [one.be_late(given.seconds, given.late_every_s, at) for one, at in zip(bridges, first, strict=True)]
        holding = [one.hold(given.seconds, given.held_every_s, at) for one, at in zip(bridges, first, strict=True)]
        work = [*sending, *holding]
        *_, mails, busy = await asyncio.gather(*work, asyncio.gather(*late), watch(looking, given.seconds))
        await eventually(lambda: not any(bridge.late.running for bridge in bridges), "the late scans")
        await asyncio.sleep(2 * bridges[0].late.settings.refresh_s)  # a bridge knows of others' decisions after one
        shared = 0
        for number, sent in enumerate(mails):
            other = bridges[(number + 1) % len(bridges)]
            shared += [await other.late.look_up(None, ENVELOPE, message(mail)) for mail in sent].count(RESULT)
        for bridge in bridges:
            await bridge.stop()
    return Found(given.seconds, looking.most, idle, busy, counts["written"], sum(map(len, mails)), shared, counts)


async def watch(looking: Server, seconds: float) -> Counter[str]:
    """What happened meanwhile."""
    began, end = looking.counts(), time.monotonic() + seconds
    while time.monotonic() < end:
        looking.look()
        await asyncio.sleep(0.2)
    return Counter({what: (number - began[what]) / seconds for what, number in looking.counts().items()})  # type: ignore[misc]


def connections_of_a_daemon(url: str, connection: Connection, postmaster: int) -> int:
    """A complete daemon, one worker, that has delivered a mail and quarantined another."""
    database = fresh_database(url)
    looking = Server(connection, str(make_url(database).database), postmaster)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_bridge(Path(directory), {"state_database": database, "events": EVENTS}) as bridge,
    ):
        bridge.scanner.reply_to[b"bad"] = answer(200, result("quarantine"))
        for word in (b"good", b"bad"):
            with bridge.client() as client:
                client.reply()
                client.say(b"EHLO x", b"MAIL FROM:<a@example.org>", b"RCPT TO:<b@example.org>", b"DATA")
                assert client.say(b"Subject: " + word + b"\r\n\r\nx\r\n.")[0].startswith(b"250")
                looking.look()
        until(lambda: bridge.quarantined, "a mail in the quarantine")
        looking.look()
    return looking.most


def lines(given: argparse.Namespace, found: Found, of_a_daemon: int) -> list[str]:
    number = given.bridges
    row_ms = (found.busy["cpu_ms"] - found.idle["cpu_ms"]) * found.seconds / max(1, found.mails)
    numbers = {
        "connections": (found.connections, CONNECTIONS),
        "transactions/s without mail": (found.idle["transactions"], ""),
        "statements/s without mail": (found.idle["statements"], ""),
        "transactions/s": (found.busy["transactions"], ""),
        "statements/s, with every BEGIN and COMMIT": (found.busy["statements"], STATEMENTS),
        "rows of the history/s": (found.mails / found.seconds, ""),
        "mails quarantined and released/s": (found.outcomes["released"] / found.seconds, ""),
    }
    return [
        f"`make bench-connections` runs everything that {number} bridges keep in PostgreSQL for {given.seconds:g} s: "
        "late decisions, history, index and locks of the quarantine, used release codes, personal lists, feedback, "
        "and events.",
        f"Each bridge has up to {given.mails_per_s:g} mails a second, a late scan every {given.late_every_s:g} s, and "
        f"a mail that is quarantined and released every {given.held_every_s:g} s; "
        f"there is an event for {'every mail' if given.all_events else 'each quarantined mail'}.",
        "",
        "| | all bridges | each bridge | at most, each |",
        "|---|---|---|---|",
        *(f"| {what} | {all_:.0f} | {all_ / number:.1f} | {most} |" for what, (all_, most) in numbers.items()),
        "",
        f"Of {found.late} late decisions, another bridge found {found.shared}.",
        f"PostgreSQL used {row_ms:.2f} ms of CPU time for each mail, everything included (`fsync` off).",
        f"A complete bridge that had delivered one mail and quarantined another had {of_a_daemon} connections.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridges", type=int, default=50, help="number of bridges (default: 50)")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the measurement (default: 20)")
    parser.add_argument(
        "--mails-per-s", type=float, default=10.0, help="mails per second through each bridge (default: 10)"
    )
    parser.add_argument("--late-every-s", type=float, default=5.0, help="seconds between late scans of each bridge")
    parser.add_argument(
        "--held-every-s", type=float, default=10.0, help="seconds between quarantined mails of each bridge"
    )
    parser.add_argument("--all-events", action="store_true", help="create an event for every mail, not only for some")
    parser.add_argument("--at-once", action="store_true", help="start the late scans of all bridges at the same time")
    parser.add_argument("--write", action="store_true", help=f"write the result to {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    with server() as (url, connection, postmaster):
        found = asyncio.run(measure(given, url, connection, postmaster))
        written = lines(given, found, connections_of_a_daemon(url, connection, postmaster))
    print("\n".join(written), found.outcomes, sep="\n")
    if given.write:
        page = PAGE.read_text()
        begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
        PAGE.write_text(page[:begin] + "\n\n" + "\n".join(written) + "\n\n" + page[end:])
    bounds = (
        found.connections <= CONNECTIONS * given.bridges,
        found.busy["statements"] <= STATEMENTS * given.bridges,
        found.shared == found.late,
    )
    return 0 if all(bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
