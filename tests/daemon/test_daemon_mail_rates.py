"""Limits for each client that several real bridges, or workers, count together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, inspect, select

from bridge.daemon.rate_exchange import RateExchange
from bridge.filter.mail_rates import LIMIT as NAME
from bridge.filter.mail_rates import MailRates
from bridge.filter.rate_store import FILE, RateStore, mail_rate
from bridge.runtime.database import Database
from bridge.testing import SmtpClient, eventually, until
from tests.daemon.process_kit import Bridge, parts, running, scanbridge, start, write_config
from tests.daemon.workers.workers_kit import clients_of_all, number
from tests.postgresql import fresh_database
from tests.rewriting import rewrite

LIMIT = 39  # unlimited, two of them would accept all mail; limited each by itself, twice as much; each mail is reported
BLOCK = 5
ADMISSION = {"max_in_processing": 20, "throttle_threshold": 20}


def accepts(client: SmtpClient) -> bool:
    """Whether a mail is accepted. If not, it is refused at MAIL."""
    reply = client.say(b"MAIL FROM:<a@client.example>")[0]
    if reply == b"451 4.7.1 Too much mail from your address, try again later":
        return False
    assert reply.startswith(b"250"), reply
    assert client.say(b"RCPT TO:<b@example.org>", b"DATA")[1].startswith(b"354")
    assert client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"250")
    return True


@contextmanager
def two_bridges(directory: Path, database: str, **sections: Any) -> Iterator[tuple[Bridge, Bridge]]:
    with parts() as (_, scanner, next_hop), ExitStack() as stack:
        found = []
        for name in ("one", "two"):
            (directory / name).mkdir()
            config = write_config(
                directory / name, scanner.url, next_hop.url, state_database=database,
                limits={NAME: LIMIT}, **sections,
            )  # fmt: skip
            found.append(start(*config))
            stack.callback(found[-1].end)
        yield found[0], found[1]


def counted(place: Database) -> int:
    """All mails that the database knows of; 0 before the first exchange."""
    if place.path is not None and not place.path.exists():
        return 0
    engine = place.reading_engine()
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(mail_rate.name):
                return 0
            return int(connection.execute(select(func.coalesce(func.sum(mail_rate.c.mails), 0))).scalar_one())
    finally:
        engine.dispose()


def accepted_by_all(clients: Sequence[SmtpClient], place: Database) -> int:
    """Each client sends some mails at a time, until one of them is refused at each bridge."""
    total, is_refused = 0, False
    while not is_refused:
        blocks = [sum(accepts(client) for _ in range(BLOCK)) for client in clients]
        total, is_refused = total + sum(blocks), max(blocks) < BLOCK
        _await_counts(place, total)
    return total


def _await_counts(place: Database, total: int) -> None:
    until(lambda: counted(place) >= total, "the bridges to tell their counts")


@pytest.fixture
def opened() -> Iterator[Callable[..., SmtpClient]]:
    with ExitStack() as stack:

        def open_client(bridge: Bridge, source: str = "127.0.0.1") -> SmtpClient:
            client = stack.enter_context(SmtpClient(bridge.port, source))
            client.open()
            return client

        yield open_client


def test_two_bridges_accept_the_limit_of_a_client_together(
    postgresql: str, tmp_path: Path, opened: Callable[..., SmtpClient]
) -> None:
    """Each of them counted alone: a client got through twice as much, by turns."""
    database = fresh_database(postgresql)
    with two_bridges(tmp_path, database) as bridges:
        total = accepted_by_all([opened(bridge) for bridge in bridges], Database(database))
        assert LIMIT <= total <= LIMIT + 4 * BLOCK, "not the limit of each of them"
        for bridge in bridges:
            assert number(bridge, "scanbridge_limits_hit_total", limit=NAME) >= 1
            assert number(bridge, "scanbridge_saturated_replies_total") == 0
            assert accepts(opened(bridge, "127.0.0.2")), "another client"
        config = bridges[0].directory / "bridge.yml"
        rule = f"limits.{NAME}"
        until(lambda: rule in scanbridge("history", "-c", config, "--rule", rule, "--json").stdout, "the history")


def test_mail_goes_on_without_the_database(
    fragile_postgresql: Any, tmp_path: Path, opened: Callable[..., SmtpClient]
) -> None:
    """Each bridge limits clients by its own counts, and shares them again when the database is back."""
    database = fresh_database(fragile_postgresql.url)
    with two_bridges(tmp_path, database, history={"enabled": False}) as (one, two):
        before = opened(one, "127.0.0.2")
        assert accepts(before) and accepts(before)
        until(lambda: counted(Database(database)) == 2, "the first counts")
        fragile_postgresql.stop()
        try:
            assert accepts(before)
            assert one.has_logged("mail rates are not shared (") and "; each bridge uses only its own counts" in one.log
            for bridge in (one, two):
                client = opened(bridge)
                total = sum(accepts(client) for _ in range(2 * LIMIT))
                assert LIMIT <= total < 2 * LIMIT
        finally:
            fragile_postgresql.start()
        until(lambda: accepts(before) and "mail rates are shared again" in one.log, "the database to be used again")
    assert "postgresql:" not in one.log and "tester" not in one.log


def test_a_frozen_database_delays_no_mail(
    fragile_postgresql: Any, tmp_path: Path, opened: Callable[..., SmtpClient]
) -> None:
    """Its connections stay open, so nothing fails: the exchange waits, and nothing else does.

    The log said nothing about that: the limit was no longer that of all bridges, and nobody knew.
    """
    database = fresh_database(fragile_postgresql.url)
    off: dict[str, Any] = {"history": {"enabled": False}, "late_decisions": {"store": "memory"}}
    with two_bridges(tmp_path, database, **off) as (one, _):
        client = opened(one)
        assert accepts(client) and accepts(client)
        until(lambda: counted(Database(database)) == 2, "the first counts")
        with fragile_postgresql.frozen():
            total = 2 + sum(accepts(client) for _ in range(2 * LIMIT))
            assert one.has_logged("mail rates are not shared (the database has not answered")
        assert one.has_logged("mail rates are shared again")
        assert LIMIT <= total < 2 * LIMIT


def test_workers_count_together_in_a_file(tmp_path: Path) -> None:
    """Without PostgreSQL, those of one bridge do."""
    with (
        running(tmp_path, workers=2, limits={NAME: LIMIT}, admission=ADMISSION) as (bridge, _, _),
        ExitStack() as stack,
    ):
        clients = [found[0] for found in clients_of_all(bridge, stack).values()]
        total = accepted_by_all(clients, Database.file(tmp_path / "state" / FILE))
        assert len(clients) == 2 and LIMIT <= total <= LIMIT + 4 * BLOCK


async def test_counts_that_could_not_be_told_do_not_wait_for_another_mail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that had counted its last mail while the file was locked never told the others."""
    place, rates = Database.file(tmp_path / FILE), MailRates(LIMIT)
    exchange = RateExchange(rates, RateStore(place))
    watching = asyncio.create_task(exchange.watch())
    try:
        assert rates.lets_in("192.0.2.1")
        await eventually(lambda: counted(place) == 1, "the first count")
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert rates.lets_in("192.0.2.1")
            await eventually(lambda: "mail rates are not shared" in caplog.text, "the exchange to fail")
            other.execute("ROLLBACK")
        await eventually(lambda: counted(place) == 2, "the second count")
    finally:
        watching.cancel()
        exchange.close()


def test_a_reload_changes_the_limit(tmp_path: Path, opened: Callable[..., SmtpClient]) -> None:
    with running(tmp_path, limits={NAME: 3}) as (bridge, _, _):
        client = opened(bridge)
        assert sum(accepts(client) for _ in range(10)) == 3
        config = tmp_path / "bridge.yml"
        rewrite(config, config.read_text().replace(f"{NAME}: 3", f"{NAME}: 5"))
        assert scanbridge("reload", "-c", config).returncode == 0
        assert 2 <= sum(accepts(client) for _ in range(10)) <= 4
        assert not (tmp_path / "state" / FILE).exists(), "one process needs no database"
