"""PostgreSQL fails over: a real primary and a streaming standby behind one address, and mail flows all the time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

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
from tests.postgresql_pair import Pair
from tests.quarantine.quarantine_kit import HEAD, SOON_S, Overtaken, desk, let_go, make_tx, waiting_hop
from tests.quarantine.s3_kit import ObjectServer, faulty_server, s3_config, s3_settings, write_keys
from tests.relay.scripted_hop import ScriptedHop


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
