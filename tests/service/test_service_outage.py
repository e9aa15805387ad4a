"""The database is unavailable at the start or in between, and comes back. And a service on a Unix socket."""

from __future__ import annotations

import signal
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from bridge.runtime import yaml_file
from bridge.service.lists.store import GLOBAL, PAGE, Entry, ListStore
from bridge.service.settings import ServiceConfig, Timings
from bridge.service.store import Store, StoreUnavailable
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    Lists,
    ServiceProcess,
    fresh_database,
    mail,
    make_key,
    service,
    service_processes,
    wait_for,
)


def _config(url: str) -> str:
    return CONFIG.replace("sqlite:///service.sqlite", url)


@contextmanager
def stopped(postgresql):
    postgresql.stop()
    try:
        yield
    finally:
        postgresql.start()


def _refused(answer) -> None:
    assert (answer.status, answer.json["error"]) == (503, "storage_unavailable")
    assert answer.headers["Retry-After"].isdigit()


def test_scans_continue_while_postgresql_is_down(tmp_path, fragile_postgresql):
    """The lists in memory are used, list calls get 503, no restart is needed, and no record is lost."""
    url = fresh_database(fragile_postgresql.url)
    with service(tmp_path, _config(url), with_key=True) as running:
        lists = Lists(running)
        lists.add("blocked-senders", "evil@bad.example")
        wait_for(lambda: running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce")
        with stopped(fragile_postgresql):
            during = [running.submit(mail(), sender=sender).json for sender in ("evil@bad.example", "a@example.org")]
            assert [answer["decision"] for answer in during] == ["bounce", "deliver"]
            _refused(lists.add("blocked-senders", "more@bad.example"))
            _refused(lists.delete("blocked-senders", "evil@bad.example"))
            _refused(lists.call("listEntries", {"listName": "blocked-senders"}))
            assert lists.call("getLists", {}).status == 200
            assert Lists(running, "f" * 64).call("getLists", {}).status == 401
            wait_for(lambda: running.request("GET", "/readyz").status == 503)
            assert running.request("GET", "/livez").status == 200
            assert b"scanservice_lists_current 0.0" in running.request("GET", "/metrics").body
            assert running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce"
        wait_for(lambda: lists.add("blocked-senders", "more@bad.example").status == 200)
        wait_for(lambda: running.submit(mail(), sender="more@bad.example").json["decision"] == "bounce")
        wait_for(lambda: running.request("GET", "/readyz").status == 200)
        wait_for(lambda: {answer["ggrid"] for answer in during} <= _recorded(url))


def _recorded(url: str) -> set[str]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection:
            return set(connection.execute(text("SELECT ggrid FROM analysis")).scalars())
    finally:
        engine.dispose()


def test_a_service_that_starts_before_postgresql_waits_for_it(tmp_path, fragile_postgresql):
    """Without the lists it is not known what is blocked, so no mail is scanned until they are loaded."""
    config = yaml_file.load(tmp_path / "service.yml", ServiceConfig, _config(fresh_database(fragile_postgresql.url)))
    key, store = make_key(config), Store(config.database_url)
    store.open()
    ListStore(store, []).add(GLOBAL, "blocked-senders", [Entry("evil@bad.example", "evil@bad.example")])
    store.close()
    with ExitStack() as stack:
        with stopped(fragile_postgresql):
            running = stack.enter_context(service(tmp_path, _config(config.database_url)))
            lists = Lists(running, key)
            _refused(running.submit(mail(), sender="evil@bad.example"))
            _refused(lists.add("blocked-senders", "more@bad.example"))
            _refused(lists.call("getLists", {}))
            assert running.status().json == {"messageQueueStatus": "RED"}
            assert running.request("GET", "/readyz").json["error"] == "not_ready"
            assert running.request("GET", "/livez").status == 200
        decisions: list[str] = []
        wait_for(lambda: _decided(running, decisions))
        assert decisions == ["bounce"]
        assert lists.add("blocked-senders", "more@bad.example").json == {"modifiedEntries": 1}
        assert running.status().json == {"messageQueueStatus": "GREEN"}
        wait_for(lambda: running.request("GET", "/readyz").status == 200)


def _decided(running, decisions: list[str]) -> bool:
    """Whether a scan was answered; its decision is appended to `decisions`."""
    answer = running.submit(mail(), sender="evil@bad.example")
    if answer.status == 200:
        decisions.append(answer.json["decision"])
    return answer.status == 200


def test_a_service_stops_while_postgresql_is_down(tmp_path, fragile_postgresql):
    """A service that has never reached its database also exits when asked to."""
    url = fresh_database(fragile_postgresql.url)
    (tmp_path / "service.yml").write_text(_config(url))
    with stopped(fragile_postgresql), service_processes(tmp_path, 1) as [running]:
        wait_for(lambda: "scanning no mail until it is readable" in running.log())
        assert "Traceback" not in running.log()


def test_a_database_that_cannot_recover_is_an_error_at_start_up(tmp_path):
    """Waiting does not turn a file of another format into a database."""
    (tmp_path / "service.sqlite").write_bytes(b"this is no database, and will not be one" * 100)
    with pytest.raises(StoreUnavailable, match="cannot use the database"), service(tmp_path):
        pass


def test_a_stream_that_loses_its_database_is_cut_off(tmp_path, fragile_postgresql):
    """The reader can tell that the stream is incomplete; no second response is sent within the first."""
    url = fresh_database(fragile_postgresql.url)
    with service(tmp_path, _config(url), with_key=True) as running:
        lists = Lists(running)
        lists.fill("blocked-senders")
        with lists.slow_reader("blocked-senders") as slow:
            received = slow.recv(20)
            with stopped(fragile_postgresql):
                while piece := slow.recv(1 << 20):
                    received += piece
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.count(b"HTTP/1.1") == 1
        assert not received.endswith(b"0\r\n\r\n")
        assert PAGE <= received.count(b'"entry"') < 5000


@pytest.fixture
def short_directory():
    """The path of a Unix socket can have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="sb-") as directory:
        yield Path(directory)


def test_a_service_on_a_unix_socket(short_directory):
    """Both interfaces are served, the group may connect, metrics need no token, a second service is refused."""
    place = short_directory / "service.sock"
    (short_directory / "service.yml").write_text(CONFIG.replace("127.0.0.1:0", f"unix:{place}"))
    key = make_key(yaml_file.load(short_directory / "service.yml", ServiceConfig))
    with service_processes(short_directory, 1) as [running]:
        assert stat.S_IMODE(place.stat().st_mode) == 0o660
        lists = Lists(running, key)
        assert lists.add("blocked-senders", "evil@bad.example").json == {"modifiedEntries": 1}
        wait_for(lambda: running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce")
        assert running.submit(mail(b"x" * 1024 * 1024)).json["decision"] == "deliver"
        assert running.submit(mail(), token="wrong").status == 401
        assert running.status().json == {"messageQueueStatus": "GREEN"}
        assert b"scanservice_decisions_total" in running.request("GET", "/metrics").body
        second = ServiceProcess(short_directory)
        assert second.process.wait(DEADLINE_S) == 1
        assert f"cannot listen on unix:{place}" in second.log()
        second.end()
        assert running.request("GET", "/livez").status == 200


def test_a_stale_unix_socket_is_replaced(short_directory):
    """After a crash the next start needs no manual clean-up."""
    place = short_directory / "service.sock"
    (short_directory / "service.yml").write_text(CONFIG.replace("127.0.0.1:0", f"unix:{place}"))
    dead = ServiceProcess(short_directory)
    dead.wait()
    dead.end(signal.SIGKILL)
    assert place.exists()
    with service_processes(short_directory, 1) as [running]:
        assert running.submit(mail()).json["decision"] == "deliver"


@contextmanager
def locked_lists(url: str):
    """Another program changes the lists, and does not come to an end."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection:
            connection.execute(text("UPDATE clock SET value = value"))
            yield
            connection.rollback()
    finally:
        engine.dispose()


def test_list_calls_behind_a_lock_of_the_database_had_no_answer(tmp_path, postgresql):
    """They waited as long as the lock was held, and with them all other list calls, and those with unknown keys."""
    url = fresh_database(postgresql)
    with service(tmp_path, _config(url), with_key=True, timings=Timings(database_s=1.0)) as running:
        lists = Lists(running)
        lists.add("blocked-senders", "evil@bad.example")
        wait_for(lambda: running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce")
        with locked_lists(url), ThreadPoolExecutor(12) as callers:
            adding = [callers.submit(lists.add, "blocked-senders", f"u{n}@bad.example") for n in range(12)]
            for call in adding:
                _refused(call.result(DEADLINE_S))
            _refused(lists.delete("blocked-senders", "evil@bad.example"))
            assert [entry["entry"] for entry in lists.entries("blocked-senders")] == ["evil@bad.example"]
            assert Lists(running, "f" * 64).call("getLists", {}).status == 401
            assert running.submit(mail(), sender="evil@bad.example").json["decision"] == "bounce"
        wait_for(lambda: lists.add("blocked-senders", "more@bad.example").status == 200)


def test_a_service_whose_database_hangs_did_not_stop(tmp_path, fragile_postgresql):
    """A call that had no answer kept it from ending, and `/readyz` said that all was well."""
    url = fresh_database(fragile_postgresql.url)
    with ExitStack() as stack:
        timings = Timings(database_s=1.0)
        running = stack.enter_context(service(tmp_path, _config(url), with_key=True, timings=timings))
        lists = Lists(running)
        lists.add("blocked-senders", "evil@bad.example")
        stack.enter_context(fragile_postgresql.frozen())
        _refused(lists.call("listEntries", {"listName": "blocked-senders"}))
        wait_for(lambda: running.request("GET", "/readyz").status == 503)
        assert running.submit(mail()).json["decision"] == "deliver"
        running.call(running.server.stop(1))
