"""Large mail in the queue of analyses: it waits for its turn if the object store has no room, and stops no other."""

from __future__ import annotations

import asyncio
import time

import nats as nats_client
import pytest
from nats.js.api import StorageType

from bridge.service.cluster import jetstream
from bridge.service.cluster.space import Space
from tests.nats_kit import nats_server
from tests.service.cluster_kit import SlowRspamd, Submitting, in_queue, worker
from tests.service.service_kit import CONFIG, mail, service, wait_for

GREEN = {"messageQueueStatus": "GREEN"}
LARGE = mail(b"x" * 998 + b"\r\n") + (b"y" * 998 + b"\r\n") * 2000  # 2 MB; the store has 3 MiB


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nats")
    with nats_server(directory, "-js", "-sd", str(directory / "store")) as server:
        yield server


@pytest.fixture
def rspamd():
    slow = SlowRspamd()
    yield slow
    slow.close()


@pytest.fixture
def text(nats, rspamd, tmp_path, request):
    def make(core: str = "") -> str:
        name = f"q{abs(hash(request.node.nodeid)) % 10**9}"
        settings = f'{{servers: ["{nats.url}"], name: {name}, max_size: 3MiB}}'
        changed = CONFIG.replace("core: {}", f"core: {{nats: {settings}{core}}}")
        changed = changed.replace("sqlite:///service.sqlite", f"sqlite:///{tmp_path}/service.sqlite")
        return changed + f"analyzers: {rspamd.analyzers}\n"

    return make


def test_two_large_mails_get_their_turns_and_small_mail_passes(text, tmp_path, rspamd):
    """They filled the store together, and both were refused."""
    with service(tmp_path, text()) as front, worker(tmp_path, text()):
        wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
        clients = [Submitting(front, LARGE) for _ in range(3)]
        wait_for(lambda: len(rspamd.mails) == 1)
        small = Submitting(front, mail())
        wait_for(lambda: len(rspamd.mails) == 2)
        rspamd.answer(1)
        assert small.result().status == 200
        assert front.status().json == GREEN
        rspamd.answer_all()
        assert [client.result().status for client in clients] == [200, 200, 200]
        wait_for(lambda: in_queue(front) == (0, 0))


def test_large_mail_of_two_api_nodes_gets_its_turns(text, tmp_path, rspamd):
    """Neither knows what the other has reserved; NATS tells both what is in the store."""
    with service(tmp_path, text()) as one, service(tmp_path, text()) as other, worker(tmp_path, text()):
        wait_for(lambda: one.status().json == other.status().json == GREEN and in_queue(one) == (0, 0))
        clients = [Submitting(front, LARGE) for front in (one, other, one, other)]
        wait_for(lambda: len(rspamd.mails) == 1)
        rspamd.answer_all()
        assert [client.result().status for client in clients] == [200, 200, 200, 200]
        wait_for(lambda: in_queue(one) == (0, 0))


def test_a_large_mail_waits_for_room_only_so_long(text, tmp_path, rspamd):
    """Then its answer is about this mail, not about the service: smaller mail is analyzed."""
    short = text(", longRequestTimeout: 8000")
    with service(tmp_path, short) as front, worker(tmp_path, short):
        wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
        Submitting(front, LARGE)
        wait_for(lambda: len(rspamd.mails) == 1)
        answer = front.submit(LARGE)
        assert (answer.status, answer.json["error"]) == (503, "no_room")
        assert answer.headers["Retry-After"]
        small = Submitting(front, mail())
        wait_for(lambda: len(rspamd.mails) == 2)
        rspamd.answer(1)
        assert small.result().status == 200
        rspamd.answer_all()


def test_a_mail_that_never_fits_is_refused_at_once(text, tmp_path):
    """With 413, which is final: sending it again does not help."""
    with service(tmp_path, text()) as front, worker(tmp_path, text()):
        wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
        began = time.monotonic()
        answer = front.submit(LARGE * 2)
        assert (answer.status, answer.json["error"]) == (413, "payload_too_large")
        assert "max_size" in answer.json["message"]
        assert time.monotonic() - began < 20
        assert in_queue(front) == (0, 0)


def test_a_mail_that_nats_refuses_despite_room_in_its_stream_is_not_sent_again_and_again(tmp_path, rspamd, monkeypatch):
    """Another stream has filled the memory of the server. The mail was uploaded without a pause until its timeout."""
    (tmp_path / "nats.conf").write_text(f'jetstream {{store_dir: "{tmp_path}/store", max_memory_store: 8MB}}')
    uploads = []
    put = jetstream.put

    async def counted(*arguments):
        uploads.append(time.monotonic())
        await put(*arguments)

    monkeypatch.setattr(jetstream, "put", counted)
    with nats_server(tmp_path, "-c", str(tmp_path / "nats.conf")) as nats:
        core = f'core: {{nats: {{servers: ["{nats.url}"], max_size: 3MiB}}, longRequestTimeout: 20000}}'
        text = CONFIG.replace("core: {}", core) + f"analyzers: {rspamd.analyzers}\n"
        with service(tmp_path, text) as front, worker(tmp_path, text):
            wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
            asyncio.run(_fill(nats.url, 7_000_000))
            began = time.monotonic()
            answer = front.submit(LARGE)
            assert (answer.status, answer.json["error"]) == (503, "no_room")
            assert time.monotonic() - began < 15  # it may wait for ten seconds
            assert 2 <= len(uploads) <= 6
            wait_for(lambda: in_queue(front) == (0, 0))


async def _fill(url: str, size: int) -> None:
    client = await nats_client.connect(url)
    other = client.jetstream()
    await other.add_stream(name="other", subjects=["other"], storage=StorageType.MEMORY)
    for _ in range(size // 500_000):
        await other.publish("other", bytes(500_000))
    await client.close()


def test_a_mail_whose_upload_fails_in_an_unknown_way_leaves_its_room(text, tmp_path, rspamd, monkeypatch):
    """Its reservation stayed, so that later mail found no room until a restart."""
    short = text(", longRequestTimeout: 8000")
    with service(tmp_path, short) as front, worker(tmp_path, short):
        wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
        with monkeypatch.context() as patch:
            patch.setattr(jetstream, "put", _fail)
            assert "failed:analysis" in front.submit(LARGE).json["tags"]
        rspamd.answer_all()
        answer = front.submit(LARGE)
        assert answer.status == 200 and "failed:analysis" not in answer.json["tags"]


async def _fail(*_arguments) -> None:
    raise ValueError("not an error of NATS")


def test_the_wait_for_room_does_not_shorten_the_time_for_a_new_leader(text, tmp_path, rspamd, monkeypatch):
    """A mail that had waited long was refused at the first error of NATS."""
    put, failures = jetstream.put, [TimeoutError()]

    async def fails_once(*arguments):
        if len(rspamd.mails) == 1 and failures:
            raise failures.pop()
        await put(*arguments)

    with service(tmp_path, text()) as front, worker(tmp_path, text()):
        wait_for(lambda: front.status().json == GREEN and in_queue(front) == (0, 0))
        monkeypatch.setattr(front.server._site._backend, "_place_s", 2.0)
        first = Submitting(front, LARGE)
        wait_for(lambda: len(rspamd.mails) == 1)
        monkeypatch.setattr(jetstream, "put", fails_once)
        second = Submitting(front, LARGE)
        time.sleep(2.5)
        rspamd.answer_all()
        assert (first.result().status, second.result().status, failures) == (200, 200, [])


async def test_small_mail_overtakes_only_for_a_time() -> None:
    """A steady stream of small mail took all room that became free, and the large one never got its turn."""
    room = Space(160, overtaking_s=60.0)
    assert await room.take(100, 1, 5)
    large = asyncio.create_task(room.take(120, 60, 5))
    await asyncio.sleep(0)
    assert await room.take(10, 0.01, 5)
    room._overtaking_s = 0.005  # only now: on a busy machine, the line above may take longer
    await asyncio.sleep(0.02)
    small = asyncio.create_task(room.take(10, 60, 5))
    await asyncio.sleep(0.01)
    assert not small.done()
    room.give_back(100)
    assert await asyncio.wait_for(large, 60)
    assert await asyncio.wait_for(small, 60)


async def test_turns_come_in_the_order_of_arrival_but_small_mail_need_not_wait() -> None:
    """A mail that needs a sixteenth of the space or less passes those that wait, if it fits."""
    space, order = Space(160), []

    async def take(size: int) -> None:
        assert await space.take(size, 60, 5)
        order.append(size)

    await take(100)
    tasks = [asyncio.create_task(take(size)) for size in (90, 30, 10, 11)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [100, 10]
    space.give_back(100)
    await asyncio.gather(*tasks)
    assert order == [100, 10, 90, 30, 11]


async def test_only_so_many_wait_and_only_so_long() -> None:
    """Those who give up, or whose client has gone, keep no space and stop no one behind them."""
    space = Space(100)
    assert await space.take(80, 1, 3)
    assert not await space.take(50, 0.01, 3)
    waiting = [asyncio.create_task(space.take(size, 60, 3)) for size in (60, 20, 70)]
    await asyncio.sleep(0)
    assert not await space.take(50, 60, 3)
    waiting[0].cancel()
    assert await waiting[1]  # it fits, and was behind the one that left
    space.give_back(80)
    waiting[2].cancel()  # at the moment in which its turn has come
    await asyncio.gather(*waiting, return_exceptions=True)
    space.give_back(20)
    assert await space.take(100, 0.01, 3)
    assert not space.can_hold(101)
