"""PostgreSQL fails over: a real primary and a streaming standby behind one address, and mail flows all the time."""

from __future__ import annotations

import asyncio
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from bridge.history.postgresql import PostgresHistory
from bridge.history.query import HistoryQuery
from bridge.history.store import HistoryError
from bridge.quarantine.locks import PostgresLocks
from bridge.quarantine.quarantine import QuarantineSettings
from bridge.quarantine.release import AlreadyReleased, ReleaseRequest, release
from bridge.quarantine.store import LockLost, RecordChanged
from bridge.relay.relay import SmtpRelay
from bridge.runtime.database import Database
from bridge.testing import Background, RunningBridge, answer, result, running_bridge, until
from tests.postgresql import PostgreSql, fresh_database
from tests.quarantine.quarantine_kit import HEAD, SOON_S, Overtaken, desk, let_go, make_tx, waiting_hop
from tests.quarantine.s3_kit import ObjectServer, faulty_server, s3_config, s3_settings, write_keys
from tests.relay.scripted_hop import ScriptedHop

_BLOCK = 65536
_CLIENTS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Address:
    """One TCP address for whichever server is the primary now, as a load balancer or a virtual IP has."""

    def __init__(self, target: str) -> None:
        self.target = target  # a UNIX socket; "": nobody answers
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def point_to(self, target: str) -> None:
        """Connections to the old server end."""
        with self._lock:
            self.target = target
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.point_to("")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            with self._lock:
                if not self.target:
                    return
                server.connect(self.target)
                self._open |= {client, server}
            try:
                _copy_both_ways(client, server)
            finally:
                with self._lock:
                    self._open -= {client, server}


def _copy_both_ways(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(_BLOCK)  # type: ignore[union-attr]
                if not data:
                    return
                key.data.sendall(data)


class Pair:
    """A primary, its standby, and the address of the one that takes writes."""

    def __init__(self, primary: PostgreSql, standby: PostgreSql) -> None:
        self._primary, self._standby = primary, standby
        self.address = Address(primary.socket)
        name = fresh_database(primary.url).partition("@/")[2].partition("?")[0]
        self.url = f"postgresql://tester@127.0.0.1:{self.address.port}/{name}"
        self._direct = {server: Database(server.url.format(name=name)) for server in (primary, standby)}

    def lose_the_primary(self) -> None:
        """Replication is asynchronous: what the standby does not have yet would be lost, so it gets the time."""
        self.address.point_to("")
        until(lambda: self._ask(self._primary, f"SELECT count(*) = 0 {_CLIENTS}"), "the last transaction to end")
        self._replicate()
        self._primary.stop()

    def promote_the_standby(self) -> None:
        self._standby.promote()
        self.address.point_to(self._standby.socket)

    def split(self) -> tuple[Database, Database]:
        """The standby takes writes, and nobody has stopped the primary: both, for those who still reach them."""
        self._replicate()
        self._standby.promote()
        return self._direct[self._primary], self._direct[self._standby]

    def _replicate(self) -> None:
        written = self._ask(self._primary, "SELECT pg_current_wal_lsn()")
        until(lambda: self._ask(self._standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "the standby")

    def _ask(self, server: PostgreSql, question: str) -> object:
        """In a database that the standby has had from the start."""
        engine = Database(server.url.format(name="postgres")).engine(connections=1)
        try:
            with engine.connect() as connection:
                return connection.execute(text(question)).scalar()
        finally:
            engine.dispose()


@contextmanager
def running(server: PostgreSql) -> Iterator[PostgreSql]:
    is_up = False
    try:
        server.start()
        is_up = True
        yield server
    finally:
        if is_up:
            with suppress(AssertionError):  # it was stopped in the test
                server.stop()
        server.remove()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with running(PostgreSql()) as primary, running(PostgreSql(copy_of=primary)) as standby:
        made = Pair(primary, standby)
        try:
            yield made
        finally:
            made.address.close()


class Sender(threading.Thread):
    """Sends one mail after the other, each with its own subject, and remembers the answers."""

    def __init__(self, bridge: RunningBridge) -> None:
        super().__init__()
        self._bridge = bridge
        self._is_over = threading.Event()
        self.answers: list[bytes] = []

    def run(self) -> None:
        with self._bridge.client() as client:
            client.open()
            while not self._is_over.is_set():
                self.answers.append(client.mail(b"Subject: mail %d\r\n\r\nx\r\n" % len(self.answers)))

    def more(self, count: int = 5) -> None:
        """Wait until so many more mails were answered."""
        enough = len(self.answers) + count
        until(lambda: len(self.answers) >= enough or not self.is_alive(), "more mail")

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def test_a_failover_costs_no_mail_and_no_row(pair: Pair, tmp_path: Path) -> None:
    """No mail is deferred while there is no server, and afterwards each has a row.

    The new primary knows nothing of the locks, so the holder of one must notice before it sends a mail.
    """
    place = Database(pair.url)
    locks = PostgresLocks(place)
    with running_bridge(tmp_path, {"state_database": pair.url}) as bridge, locks.hold("mail 1") as held:
        held.check()
        sender = Sender(bridge)
        sender.start()
        try:
            sender.more()
            pair.lose_the_primary()
            sender.more()
            bridge.scanner.reply = answer(200, result("quarantine"))
            sender.more()
            bridge.scanner.reply = answer(200, result("deliver"))
            pair.promote_the_standby()
            sender.more()
        finally:
            sender.stop()
        with pytest.raises(LockLost):
            held.check()
        assert {reply.split(b" ", 1)[0] for reply in sender.answers} == {b"250"}
        history = PostgresHistory(place, busy_s=30.0)
        sent = {f"mail {number}" for number in range(len(sender.answers))}
        until(lambda: _subjects(history) == sorted(sent), "a row for each mail")
        delivered = [mail.fields("Subject")[0] for mail in bridge.next_hop.mails]
        kept = {path.stem for path in bridge.quarantined}
        assert len(delivered) == len(set(delivered)) == len(sent) - len(kept) and kept
    history.close()
    with locks.hold("mail 1") as held:
        held.check()


def test_a_failover_while_the_next_hop_received_a_mail_let_another_machine_release_it_too(
    pair: Pair, tmp_path: Path
) -> None:
    """The lock was gone with the connection, and an attempt without an answer was no reason not to send the mail."""
    write_keys(tmp_path)
    storage = ObjectServer(tmp_path / "s3")
    shared = {"quarantine": s3_config(storage.port), "state_database": pair.url}
    try:
        with desk(tmp_path, shared) as first, waiting_hop(first.bridge) as hop:
            mail_id = first.send()
            first.use(hop.url)
            second = first.elsewhere(tmp_path / "second.yml")
            running = first.start("release", mail_id)
            assert hop.heard.acquire(timeout=SOON_S)
            pair.lose_the_primary()
            assert second.call("release", mail_id).exit_code == 1, "without a lock, nothing is released"
            pair.promote_the_standby()
            refused = second.call("release", mail_id)
            assert refused.exit_code == 75 and "was cut off, or is still running" in refused.stderr
            assert [mail["state"] for mail in second.listed()] == ["interrupted"]
            let_go(first.bridge, hop)
            output, problems = running.communicate(timeout=SOON_S)
            assert (running.returncode, problems) == (0, b""), output
            for machine in (first, second):
                assert machine.call("release", mail_id).exit_code == 4
                assert [mail["state"] for mail in machine.listed()] == ["released"]
            assert len(hop.mails) == 1
    finally:
        storage.stop()


def test_two_primaries_let_two_machines_release_a_mail(pair: Pair, tmp_path: Path) -> None:
    """Each held the lock, at its own server. Storage that compares versions lets one of them send the mail."""
    background, request = Background(), ReleaseRequest("anna")
    hop, tx = ScriptedHop(), make_tx()
    background.run(hop.__aenter__())
    try:
        with faulty_server() as storage:
            first, second = (
                Overtaken(QuarantineSettings(tmp_path, place, s3=s3_settings(storage.port, "x")))
                for place in pair.split()
            )

            async def release_elsewhere() -> None:
                relay = SmtpRelay(hop.settings())
                await release(second, tx.id, relay, request)
                await relay.close()

            async def work() -> None:
                await first.keep(tx, HEAD, {})
                first.meanwhile = lambda: background.run(release_elsewhere())
                relay = SmtpRelay(hop.settings())
                with pytest.raises(RecordChanged, match="nothing was sent"):
                    await release(first, tx.id, relay, request)
                with pytest.raises(AlreadyReleased):
                    await release(first, tx.id, relay, request)
                await relay.close()
                for each in (first, second):
                    await each.close()

            asyncio.run(work())
        assert len(hop.contents) == 1
    finally:
        tx.message.close()
        background.run(hop.__aexit__())
        background.close()


def _subjects(history: PostgresHistory) -> list[str]:
    try:
        return sorted(entry.row.subject for entry in history.find(HistoryQuery(limit=100_000)))
    except HistoryError:  # a connection to the server that is gone
        return []
