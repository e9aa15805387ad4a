"""The quarantine in object storage: a real S3 server on loopback, and one that fails in every way."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import inspect

from bridge.errors import StoreError, StoreFull
from bridge.quarantine import s3_store
from bridge.quarantine.locks import FileLocks
from bridge.quarantine.quarantine import MailNotFound, Quarantine, QuarantineSettings, Query
from bridge.runtime.database import Database, probe
from bridge.testing import eventually, free_port
from tests.quarantine.quarantine_kit import CONTENT, HEAD, SOON_S, Desk, desk, let_go, make_tx, waiting_hop
from tests.quarantine.s3_kit import (
    ACCESS,
    SECRET,
    FaultyServer,
    ObjectServer,
    faulty_server,
    s3_config,
    s3_settings,
    write_keys,
)

LARGE = b"Subject: large\r\n\r\n" + b"0123456789abcdef\r\n" * 40_000  # it lies in a file, not in memory


@pytest.fixture
def here(tmp_path: Path, object_server: ObjectServer) -> Iterator[Desk]:
    write_keys(tmp_path)
    with desk(tmp_path, {"quarantine": s3_config(object_server.port, prefix=f"kept/{tmp_path.name}")}) as made:
        yield made


def test_every_command_works_on_mail_in_a_bucket(here: Desk, tmp_path: Path, object_server: ObjectServer) -> None:
    """Byte for byte, and no part of the mail is stored on this machine."""
    small = here.send(CONTENT, b"b@example.org", b"c@example.org")
    large = here.send(LARGE, sender=b"")
    stored = object_server.objects / "kept" / tmp_path.name
    assert sorted(path.name for path in stored.iterdir()) == sorted(
        f"{mail_id}.{suffix}" for mail_id in (small, large) for suffix in ("eml", "json")
    )
    assert {path.name for path in here.directory.iterdir()} <= {"actions.log", "claims.lock"}
    assert [mail["id"] for mail in here.listed()] == [large, small]
    assert [mail["id"] for mail in here.listed("--sender", "", "--tag", "malware:*")] == [large]
    assert json.loads(here.call("show", "--json", small).stdout)["recipients"] == ["b@example.org", "c@example.org"]
    for mail_id, content in ((small, CONTENT), (large, LARGE)):
        raw = here.call("show", "--raw", mail_id).stdout_bytes
        assert raw.endswith(content) and raw == (stored / f"{mail_id}.eml").read_bytes()
    assert here.call("release", large).exit_code == 0
    assert here.call("release", large).exit_code == 4
    (mail,) = here.bridge.next_hop.mails
    assert mail.content.partition(b"\r\n")[2].endswith(LARGE) and mail.commands[2].startswith(
        b"RCPT TO:<b@example.org>"
    )
    assert here.call("export", large, str(tmp_path)).exit_code == 0
    for suffix in ("eml", "json", "releases"):
        assert (tmp_path / f"{large}.{suffix}").read_bytes() == (stored / f"{large}.{suffix}").read_bytes()
    assert here.call("delete", "--yes", small).exit_code == 0
    assert here.call("show", small).exit_code == 3
    assert here.call("purge", "--older-than", "0s", "--yes").stdout == "1 deleted\n"
    assert here.listed() == [] and not list(stored.glob("*"))
    actions = [json.loads(line)["action"] for line in (here.directory / "actions.log").read_text().splitlines()]
    assert actions == ["released", "removed", "purged"]


def test_a_running_release_keeps_others_out_of_the_bucket(here: Desk) -> None:
    """Object storage has no locks, so a lock file on this machine is used."""
    mail_id = here.send()
    with waiting_hop(here.bridge) as hop:
        here.use(hop.url)
        first = here.start("release", mail_id)
        assert hop.heard.acquire(timeout=SOON_S)
        assert here.call("release", mail_id).exit_code == 4
        assert here.call("delete", "--yes", mail_id).exit_code == 4
        first.kill()
        first.communicate(timeout=SOON_S)
        let_go(here.bridge, hop)
        assert [mail["state"] for mail in here.listed()] == ["interrupted"]
        assert here.call("release", mail_id).exit_code == 75 and len(hop.mails) == 1
        assert here.call("release", "--again", mail_id).exit_code == 0


async def test_incomplete_mails_are_removed_and_lost_rows_restored(tmp_path: Path, object_server: ObjectServer) -> None:
    """Objects without a row, rows without an object, and leftovers of a crash; nothing that may still be written."""
    where = QuarantineSettings(
        tmp_path, Database.file(tmp_path / "state.sqlite"), s3=s3_settings(object_server.port, tmp_path.name)
    )
    quarantine = Quarantine(where)
    ids = []
    for _ in range(3):
        tx = make_tx()
        await quarantine.keep(tx, HEAD, {})
        ids.append(tx.id)
    stored = object_server.objects / tmp_path.name
    others = object_server.store(tmp_path.name)
    others.delete([f"{ids[0]}.json", f"{ids[1]}.eml"])
    others.put("C1.releases", b"[]")
    others.put("notours.txt", b"x")
    (tmp_path / "state.sqlite").unlink()
    assert await quarantine.reconcile() == 0
    assert [mail.id for mail in quarantine.search(Query())] == [ids[2]]
    assert where.s3 is not None
    old = Quarantine(replace(where, s3=replace(where.s3, leftover_age_s=0.0)))
    assert await old.reconcile() == 3
    assert sorted(path.name for path in stored.iterdir()) == sorted([f"{ids[2]}.eml", f"{ids[2]}.json", "notours.txt"])
    with pytest.raises(MailNotFound), quarantine.lock(ids[0]):
        pass


async def test_mail_in_clear_text_went_through_a_proxy_of_the_environment(
    tmp_path: Path, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even to a bucket on this machine; nobody answers at this proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(object_server.port, tmp_path.name)))
    await quarantine.keep(tx := make_tx(), HEAD, {})
    assert quarantine.read(tx.id).id == tx.id


async def test_a_clock_days_ahead_removed_a_mail_that_another_machine_was_writing(
    tmp_path: Path, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its .eml was there and its .json was not, for a moment; the writer's client got 250 for the .json alone."""
    where = QuarantineSettings(tmp_path, s3=s3_settings(object_server.port, tmp_path.name))
    writer = Quarantine(where)
    await writer.keep(tx := make_tx(), HEAD, {})
    others = object_server.store(tmp_path.name)
    metadata = bytes(others.get(f"{tx.id}.json").bytes())
    others.delete(f"{tx.id}.json")
    ahead = time.time() + 3 * s3_store.LEFTOVER_AGE_S
    with monkeypatch.context() as patch:
        patch.setattr(s3_store, "time", SimpleNamespace(time=lambda: ahead))
        assert await Quarantine(where).reconcile() == 0
    others.put(f"{tx.id}.json", metadata)
    assert b"".join(writer.chunks(tx.id)).startswith(HEAD)


async def test_a_leftover_that_was_the_newest_object_stayed_until_other_mail_came(
    tmp_path: Path, object_server: ObjectServer
) -> None:
    """Its age was measured from the newest object."""
    where = replace(s3_settings(object_server.port, tmp_path.name), leftover_age_s=1.0)
    object_server.store(tmp_path.name).put("LEFT1.eml", b"x")
    store = s3_store.S3Store(where, FileLocks(tmp_path))
    assert store.clean() == 0
    assert await eventually(store.clean, "the object to be old enough") == 1
    assert list(object_server.store(tmp_path.name).list()) == []


async def test_a_bucket_has_a_limit_too(tmp_path: Path, object_server: ObjectServer) -> None:
    quarantine = Quarantine(QuarantineSettings(tmp_path, None, 1000, s3=s3_settings(object_server.port, tmp_path.name)))
    await quarantine.keep(make_tx(), HEAD, {})
    with pytest.raises(StoreFull, match="of 1000 bytes are used"):
        await quarantine.keep(make_tx(b"x" * 900), HEAD, {})
    assert len(list((object_server.objects / tmp_path.name).iterdir())) == 2
    assert (await quarantine.usage()).mails == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret_key": "wrong-wrong-wrong"}, "403 SignatureDoesNotMatch"),
        ({"bucket": "nosuchbucket"}, "the bucket does not exist"),
        ({"endpoint": "nobody"}, "unreachable"),
    ],
    ids=["wrong secret", "no bucket", "unreachable"],
)
async def test_a_wrong_setup_is_reported_without_its_secrets(
    tmp_path: Path, object_server: ObjectServer, change: dict[str, str], words: str
) -> None:
    if "endpoint" in change:
        change = {"endpoint": f"http://127.0.0.1:{free_port()}"}
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=replace(s3_settings(object_server.port, "x"), **change)))
    with pytest.raises(StoreError, match=words) as caught:
        await quarantine.keep(make_tx(), HEAD, {})
    assert "wrong-wrong" not in str(caught.value) and ACCESS not in str(caught.value)
    await quarantine.close()
    assert SECRET not in repr(quarantine._settings) and ACCESS not in repr(quarantine._settings)


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


def first_of(kind: str, what: int | str):  # type: ignore[no-untyped-def]
    return lambda method, name: what if method == "PUT" and name.endswith(kind) else 0


@pytest.mark.parametrize("kind", [".eml", ".json"])
@pytest.mark.parametrize(
    ("fault", "error"),
    [(500, StoreError), (403, StoreError), (507, StoreFull), (400, StoreFull), ("cut", StoreError)],
    ids=str,
)
async def test_a_server_that_fails_is_an_error_and_leaves_nothing(
    tmp_path: Path, faulty: FaultyServer, kind: str, fault: int | str, error: type[StoreError]
) -> None:
    """Whether the mail or its metadata fails: everything stored is removed, and the server's text is not repeated."""
    faulty.fault = first_of(kind, fault)
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    with pytest.raises(StoreError) as caught:
        await quarantine.keep(make_tx(), HEAD, {})
    assert type(caught.value) is error and SECRET not in str(caught.value)
    await quarantine.close()
    assert faulty.objects == {}


async def test_the_second_of_two_mails_with_one_id_replaced_the_first_in_a_bucket(
    tmp_path: Path, faulty: FaultyServer
) -> None:
    """The second is deferred, so that it gets another id; the first stays as it was."""
    first = make_tx(b"the first")
    settings = s3_settings(faulty.port, "x")
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=settings))
    await quarantine.keep(first, HEAD, {})
    for content in (b"the second", b"THE FIRST"):
        with pytest.raises(StoreError, match="another mail with this id"):
            await quarantine.keep(replace(make_tx(content), id=first.id), HEAD, {})
    await quarantine.close()
    assert b"".join(s3_store.S3Store(settings, FileLocks(tmp_path)).chunks(first.id)) == HEAD + b"the first"


@pytest.mark.parametrize("writes", [1, 2])
async def test_a_mail_whose_answer_was_lost_was_taken_for_another(
    tmp_path: Path, faulty: FaultyServer, writes: int
) -> None:
    """obstore sends it again, and it is there already."""
    faulty.loses_answers = writes
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    await quarantine.keep(make_tx(), HEAD, {})
    await quarantine.close()
    assert sorted(name.rpartition(".")[2] for name in faulty.objects) == ["eml", "json"]


@pytest.mark.parametrize("status", [400, 501])
async def test_a_server_without_conditions_keeps_mail_too(tmp_path: Path, faulty: FaultyServer, status: int) -> None:
    faulty.refuses_conditions = status
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    await quarantine.keep(make_tx(), HEAD, {})
    await quarantine.close()
    assert len(faulty.objects) == 2


async def test_a_server_that_reports_missing_objects_kept_the_rest_of_a_mail(
    tmp_path: Path, faulty: FaultyServer
) -> None:
    """The metadata was not there, and the content that was there stayed for a day, and counted towards the limit."""
    faulty.fault, faulty.reports_missing = first_of(".json", 403), True
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    with pytest.raises(StoreError):
        await quarantine.keep(make_tx(), HEAD, {})
    await quarantine.close()
    assert faulty.objects == {}


@pytest.mark.parametrize("kind", [".eml", ".json"])
async def test_a_server_that_hangs_costs_no_more_than_the_deadline(
    tmp_path: Path, faulty: FaultyServer, kind: str
) -> None:
    """The event loop keeps running in the meantime, and stored objects are removed."""
    faulty.fault = first_of(kind, "hang")
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    tx = replace(make_tx(), deadline=asyncio.get_running_loop().time() + 0.5)
    turns, began = 0, time.monotonic()
    keeping = asyncio.create_task(quarantine.keep(tx, HEAD, {}))
    while not keeping.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert 0.4 < time.monotonic() - began < 50 and turns > 1  # it would be 1 if the loop had stood still
    with pytest.raises(StoreError, match="deadline"):
        await keeping
    await quarantine.close()
    assert faulty.objects == {}


async def test_a_client_that_goes_away_leaves_nothing_in_the_bucket(tmp_path: Path, faulty: FaultyServer) -> None:
    faulty.fault = first_of(".json", "hang")
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=s3_settings(faulty.port, "x")))
    keeping = asyncio.create_task(quarantine.keep(make_tx(), HEAD, {}))
    for _ in range(2):
        assert await asyncio.to_thread(faulty.heard.acquire, timeout=SOON_S)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    await quarantine.close()
    assert faulty.objects == {}


async def test_all_mail_on_its_way_to_slow_storage_was_in_memory(tmp_path: Path, faulty: FaultyServer) -> None:
    """A few large mails at once could make the kernel kill the bridge; now they wait for each other."""
    faulty.fault = first_of(".eml", "hang")
    settings = replace(s3_settings(faulty.port, "x"), max_in_memory=2 * len(LARGE) + len(LARGE) // 2)
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=settings))
    sent = [asyncio.create_task(quarantine.keep(make_tx(LARGE), HEAD, {})) for _ in range(2)]
    for _ in sent:
        assert await asyncio.to_thread(faulty.heard.acquire, timeout=SOON_S)
    faulty.fault = lambda method, name: 0
    gone = asyncio.create_task(quarantine.keep(make_tx(LARGE), HEAD, {}))
    late = asyncio.create_task(quarantine.keep(replace(make_tx(), deadline=time.monotonic() + 0.2), HEAD, {}))
    waiting = asyncio.create_task(quarantine.keep(make_tx(LARGE), HEAD, {}))
    await asyncio.wait({late})
    with pytest.raises(StoreError, match="deadline"):
        late.result()
    gone.cancel()
    await asyncio.wait({gone})
    assert not faulty.objects and not waiting.done()
    faulty.go_on.set()  # cuts the connections; obstore sends both mails again
    await asyncio.gather(*sent, waiting)
    await quarantine.close()
    assert sorted(map(len, faulty.objects.values()))[3:] == [len(HEAD + LARGE)] * 3


async def test_a_mail_that_is_larger_than_the_room_takes_all_of_it(tmp_path: Path, faulty: FaultyServer) -> None:
    settings = replace(s3_settings(faulty.port, "x"), max_in_memory=1000)
    quarantine = Quarantine(QuarantineSettings(tmp_path, s3=settings))
    await asyncio.gather(*(quarantine.keep(make_tx(LARGE), HEAD, {}) for _ in range(3)))
    await quarantine.close()
    assert len(faulty.objects) == 6


def test_a_daemon_starts_and_answers_451_while_its_storage_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """452 when it is full; once there is room, mail is stored again without a restart."""
    caplog.set_level(logging.DEBUG)
    write_keys(tmp_path)
    server = ObjectServer(tmp_path / "s3")
    server.stop()
    try:
        with desk(tmp_path, {"quarantine": s3_config(server.port)}) as here:
            with here.bridge.client() as client:
                client.open()
                assert client.mail().startswith(b"451 4.3.0 ")
            server.start(server.port)
            mail_id = here.send()
            assert server.names == [f"{mail_id}.eml", f"{mail_id}.json"]
    finally:
        server.stop()
    assert SECRET not in caplog.text and ACCESS not in caplog.text


def test_a_full_bucket_is_answered_with_452(tmp_path: Path, faulty: FaultyServer) -> None:
    write_keys(tmp_path)
    faulty.fault = lambda method, name: 507 if method == "PUT" else 0
    with desk(tmp_path, {"quarantine": s3_config(faulty.port)}) as here, here.bridge.client() as client:
        client.open()
        assert client.mail().startswith(b"452 4.3.1 ")
    assert faulty.objects == {}


def test_probe_leaves_nothing_and_reports_a_wrong_key(object_server: ObjectServer) -> None:
    """`scanbridge check` writes and removes an object; a wrong key is reported but not shown."""
    good = s3_settings(object_server.port, "probe")
    s3_store.probe(good)
    assert not list(object_server.objects.glob("probe/*"))
    with pytest.raises(StoreError) as caught:
        s3_store.probe(replace(good, secret_key="wrong-wrong-wrong"))
    assert "403" in str(caught.value) and "wrong-wrong" not in str(caught.value)


def test_probe_of_a_database_leaves_nothing(database: Database) -> None:
    """The migration rolls back completely, so it can be run again."""
    probe(database)
    probe(database)
    engine = database.engine(wait_s=5.0, connections=1)
    assert not inspect(engine).has_table("scanbridge_probe")
    engine.dispose()
