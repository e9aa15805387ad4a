"""The queue in bad times: a cluster whose leader dies, workers that die or reload, content that no one removes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from bridge.service.cluster import jetstream
from bridge.service.cluster.queue import WANTED
from bridge.service.cluster.wire import JobHead
from tests.nats_kit import nats_cluster, nats_server
from tests.rewriting import rewrite
from tests.service.cluster_kit import SlowRspamd, Submitting, in_queue, worker
from tests.service.service_kit import CONFIG, attached, mail, parameters_json, service, until, wait_for
from tests.warm_commands import WarmProcess, warm_commands

MIB = 1024 * 1024
GREEN = {"messageQueueStatus": "GREEN"}


@pytest.fixture
def nats(tmp_path):
    with nats_server(tmp_path, "-js", "-sd", str(tmp_path / "store")) as server:
        yield server


@pytest.fixture
def rspamd():
    slow = SlowRspamd()
    yield slow
    slow.close()


def configuration(servers: list[str], more: str = "", core: str = "", analyzers: str = "{}") -> str:
    nats = f"nats: {{servers: {json.dumps(servers)}{more}}}{core}"
    return CONFIG.replace("core: {}", f"core: {{{nats}}}") + f"analyzers: {analyzers}\n"


@contextmanager
def worker_process(directory, text: str) -> Iterator[WarmProcess]:
    (directory / "service.yml").write_text(text)
    command = ["service", "worker", "-c", "service.yml"]
    with (directory / "worker.log").open("ab") as log:
        out = log.fileno()
        process = warm_commands(os.getpid()).start(command, dict(os.environ), directory, out, out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_no_client_waits_longer_than_its_mail_takes(nats, tmp_path):
    """One answer in a hundred came together with NATS' confirmation, and was held back for eight seconds."""
    plain = configuration([nats.url])
    with service(tmp_path, plain) as front, worker(tmp_path, plain):
        wait_for(lambda: front.status().json == GREEN)

        def timed(_: int) -> float:
            started = time.monotonic()
            assert front.submit(mail()).status == 200
            return time.monotonic() - started

        with ThreadPoolExecutor(6) as clients:
            assert max(clients.map(timed, range(240))) < 6


@pytest.mark.long
def test_a_cluster_whose_leader_dies_or_freezes_answers_every_mail(tmp_path):
    """Clients wait during the election; once it is over, every mail is answered quickly, and nothing is left."""
    with nats_cluster(tmp_path) as servers:
        plain = configuration([server.url for server in servers], ", replicas: 3, max_size: 16MiB")

        def leader():
            found = [server.leader("scanbridge-jobs") for server in servers]
            return next((server for server in servers if server.name in found), None)

        with service(tmp_path, plain) as front, worker(tmp_path, plain), worker(tmp_path, plain):
            wait_for(lambda: front.status().json == GREEN)

            def timed(i: int) -> tuple[int, float]:
                started = time.monotonic()
                return front.submit(attached(b"x" * MIB) if i % 10 == 0 else mail()).status, time.monotonic() - started

            with ThreadPoolExecutor(4) as clients:
                for stop, back in (("stop", "start"), ("freeze", "thaw")):
                    lost = until(leader, "the stream's leader")
                    getattr(lost, stop)()
                    assert {status for status, _ in clients.map(timed, range(40))} <= {200, 503}
                    getattr(lost, back)()
                    until(lost.is_ready, "the server to return")
                quiet = list(clients.map(timed, range(400)))
            assert {status for status, _ in quiet} == {200}
            assert max(seconds for _, seconds in quiet) < 6
            wait_for(lambda: in_queue(front) == (0, 0))


def test_content_whose_upload_failed_is_removed_with_the_next_one(nats, tmp_path):
    """An attempt that ended with its connection left chunks behind that no one could find."""
    plain = configuration([nats.url])

    async def upload_twice(queue) -> bytes:
        session, name = queue._link.session, str(uuid4())

        def cut_off() -> Iterator[bytes]:
            yield b"y" * MIB
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await jetstream.put(session, queue._names, name, cut_off())
        assert (await session.stream.stream_info(f"OBJ_{queue._names.bucket}")).state.messages == 4
        await jetstream.put(session, queue._names, name, [b"x" * MIB, b"end"])
        content = b"".join([chunk async for chunk in jetstream.get(session, queue._names, name)])
        by_library = await (await session.stream.object_store(queue._names.bucket)).get(name)
        assert by_library.data == content
        await jetstream.remove(session, queue._names, name)
        return content

    with service(tmp_path, plain) as front:
        wait_for(lambda: in_queue(front) == (0, 0))
        assert front.call(upload_twice(front.server._site._backend)) == b"x" * MIB + b"end"
        assert in_queue(front) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [("", "JetStream is not enabled"), ("jetstream {store_dir: %s, max_mem: 1MB}", "insufficient memory resources")],
)
def test_nobody_said_why_no_mail_could_be_queued(settings, said, tmp_path, caplog):
    """The log had the name of an exception for each mail, and no more."""
    (tmp_path / "nats.conf").write_text(settings.replace("%s", str(tmp_path / "store")))
    with nats_server(tmp_path, "-c", str(tmp_path / "nats.conf")) as server:
        plain = configuration([server.url])
        with service(tmp_path, plain) as front, worker(tmp_path, plain):
            wait_for(lambda: front.status().json == GREEN)
            front.server._site._backend._place_s = 0.1
            assert front.submit(mail()).json["error"] == "queue_unavailable"
            assert front.submit(mail()).json["error"] == "queue_unavailable"
    found = [record.getMessage() for record in caplog.records if "cannot keep mail" in record.getMessage()]
    assert len(found) == 2 and all(said in text for text in found), found  # the API node and the worker, once each


def test_large_mail_did_not_fit_through_a_server_that_takes_small_messages(tmp_path):
    """Its chunks were larger than NATS' `max_payload`: it was deferred until its sender gave up."""
    (tmp_path / "nats.conf").write_text(f"max_payload: 20000\njetstream {{store_dir: {tmp_path / 'store'}}}")
    with nats_server(tmp_path, "-c", str(tmp_path / "nats.conf")) as server:
        plain = configuration([server.url])
        with service(tmp_path, plain) as front, worker(tmp_path, plain):
            wait_for(lambda: front.status().json == GREEN)
            assert front.submit(attached(b"x" * MIB)).json["decision"] == "deliver"
            wait_for(lambda: in_queue(front) == (0, 0))


def test_content_that_no_one_removes_expires(nats, tmp_path):
    """After `longRequestTimeout`, when no one can be waiting for it."""
    short = configuration([nats.url], core=", longRequestTimeout: 2000")

    async def leave(queue) -> None:
        await jetstream.put(queue._link.session, queue._names, str(uuid4()), [b"x" * MIB])

    with service(tmp_path, short) as front:
        wait_for(lambda: in_queue(front) == (0, 0))
        front.call(leave(front.server._site._backend))
        assert in_queue(front)[1] == 5
        wait_for(lambda: in_queue(front) == (0, 0))


@pytest.mark.long
def test_a_mail_analyzed_twice_has_one_record(nats, tmp_path):
    """A worker dies after the analysis, before the job is acknowledged: another does it again."""
    plain = configuration([nats.url])
    job = JobHead(str(uuid4()), "node", "2026-11-16T00:00:00.000Z", len(mail()), parameters_json())
    records = create_engine(f"sqlite:///{tmp_path}/service.sqlite")

    def count() -> int:
        with records.connect() as connection:
            return connection.execute(text("select count(*) from analysis where ggrid=:g"), {"g": job.ggrid}).scalar()

    async def put(queue) -> None:
        await queue._link.session.stream.publish(queue._names.jobs, job.to_bytes() + mail())

    async def wait_as_node(queue, answers: list[bytes]) -> None:
        async def take(message) -> None:
            answers.append(message.data)
            await message.respond(WANTED)

        await queue._link.session.client.subscribe(queue._names.answers("node"), cb=take)

    with service(tmp_path, plain) as front:
        with worker_process(tmp_path, plain) as first:
            wait_for(lambda: front.status().json == GREEN)
            front.call(put(front.server._site._backend))  # no node confirms that it has the answer
            wait_for(lambda: count() == 1)
            first.kill()
            first.wait()
        answers: list[bytes] = []
        front.call(wait_as_node(front.server._site._backend, answers))
        with worker(tmp_path, plain):
            wait_for(lambda: [answer for answer in answers if answer])
            wait_for(lambda: in_queue(front)[0] == 0)
        assert json.loads(answers[-1])["ggrid"] == job.ggrid
        assert count() == 1
    records.dispose()


def test_a_worker_that_reloads_finishes_its_mail_and_takes_more(nats, tmp_path, rspamd):
    """SIGHUP: mail in work is answered by the old analyzers, new mail by the new ones.

    The free slots of the old worker once used up all deliveries of a new mail, which then no worker got.
    """
    new = SlowRspamd()
    try:
        with (
            worker_process(tmp_path, configuration([nats.url], analyzers=rspamd.analyzers)) as process,
            service(tmp_path, configuration([nats.url])) as front,
        ):
            wait_for(lambda: front.status().json == GREEN)
            members = front.server._site._backend.members
            (old,) = members.workers
            begun = [Submitting(front, mail()), Submitting(front, attached(b"x" * MIB))]
            wait_for(lambda: len(rspamd.mails) == 2)
            rewrite(tmp_path / "service.yml", configuration([nats.url], analyzers=new.analyzers))
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: {sign.id for sign in members.workers} - {old.id})
            wait_for(lambda: old.id not in {sign.id for sign in members.workers})
            later = Submitting(front, mail())
            wait_for(lambda: len(new.mails) == 1, 15)
            new.answer(0)
            assert later.result().status == 200
            assert (len(rspamd.mails), len(new.mails)) == (2, 1)
            rspamd.answer_all()
            assert [client.result().status for client in begun] == [200, 200]
            assert process.poll() is None
    finally:
        new.close()
