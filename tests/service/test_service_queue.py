"""Analyses through a queue in NATS: with TLS, credentials and accounts, and workers that come, go and die."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from nats.js.errors import NotFoundError

from bridge.service.cluster.queue import NOT_WANTED
from bridge.service.cluster.wire import JobHead, WorkerSign, read_job
from tests.nats_kit import NatsServer
from tests.service.cluster_kit import SlowRspamd, Submitting, ever_queued, in_queue, nats_with_accounts, worker
from tests.service.service_kit import (
    CONFIG,
    EICAR,
    GTUBE,
    attached,
    mail,
    multipart,
    parameters_json,
    service,
    submit_head,
    until,
    wait_for,
)
from tests.warm_commands import warm_commands

MIB = 1024 * 1024
GREEN, RED = {"messageQueueStatus": "GREEN"}, {"messageQueueStatus": "RED"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with nats_with_accounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
def text(cluster, tmp_path, request):
    """A configuration for this test alone."""

    def make(**options: str) -> str:
        name = f"q{abs(hash(request.node.nodeid)) % 10**9}"
        return cluster.config(name, tmp_path, **options)

    return make


@pytest.fixture
def rspamd():
    slow = SlowRspamd()
    yield slow
    slow.close()


def test_a_mail_goes_to_a_worker_byte_for_byte_and_nothing_is_left(text, tmp_path):
    """Small mail in the queue itself, large mail by reference; each is gone once it is answered."""
    with worker(tmp_path, text()), service(tmp_path, text()) as front:
        assert front.submit(mail()).json["decision"] == "deliver"
        assert front.submit(mail(GTUBE), sender="", remoteAddress="192.0.2.1", senderHelo="x").json["verdict"] == "spam"
        large = front.submit(attached(b"x" * (2 * MIB) + EICAR))
        assert (large.status, large.json["decision"]) == (200, "quarantine"), large.body
        many = tuple(f"user{i}@example.net" for i in range(40_000))  # parameters larger than a message may be
        assert front.submit(mail(), to=many).json["decision"] == "deliver"
        assert front.status().json == GREEN
        wait_for(lambda: in_queue(front) == (0, 0))
        metrics = front.request("GET", "/metrics").body.decode()
        assert "scanservice_workers 1.0" in metrics and "scanservice_worker_slots 20.0" in metrics


def test_without_a_worker_the_answer_is_503_at_once_and_the_status_red(text, tmp_path):
    """A worker that joins changes that, and one that leaves, without any change of the configuration."""
    with service(tmp_path, text()) as front:
        answer = front.submit(mail())
        assert (answer.status, answer.json["error"]) == (503, "no_worker")
        assert answer.headers["Retry-After"]
        assert ever_queued(front) == 0  # so it waited for nobody
        assert front.status().json == RED
        assert front.request("GET", "/readyz").status == 503
        with worker(tmp_path, text()):
            wait_for(lambda: front.status().json == GREEN)
            assert front.submit(mail()).status == 200 and ever_queued(front) == 1
            assert front.request("GET", "/readyz").status == 200
        assert front.submit(mail()).status == 503
        assert front.status().json == RED


def test_a_worker_killed_in_the_middle_of_a_scan_is_replaced(text, tmp_path, rspamd):
    """The client only waits longer, and gets one answer, from the other worker."""
    configuration = text(analyzers=rspamd.analyzers)
    (tmp_path / "service.yml").write_text(configuration)
    command = ["service", "worker", "-c", "service.yml"]
    with open(os.devnull, "wb") as nowhere:
        out = nowhere.fileno()
        process = warm_commands(os.getpid()).start(command, dict(os.environ), tmp_path, out, out)
    try:
        with service(tmp_path, configuration) as front:
            wait_for(lambda: front.status().json == GREEN)
            small, large = Submitting(front, mail()), Submitting(front, attached(b"x" * MIB))
            wait_for(lambda: len(rspamd.mails) == 2)
            with worker(tmp_path, configuration):
                process.kill()
                process.wait()
                wait_for(lambda: len(rspamd.mails) == 4)
                rspamd.answer(2)
                rspamd.answer(3)
                assert small.result().json["decision"] == "deliver", small.answer.body
                assert large.result().json["decision"] == "deliver"
                wait_for(lambda: in_queue(front) == (0, 0))
        assert len(rspamd.mails) == 4
    finally:
        process.kill()
        process.wait()


def test_a_worker_told_to_stop_finishes_its_mail(text, tmp_path, rspamd):
    """Meanwhile it takes no more: for new mail, it is no longer there."""
    configuration = text(analyzers=rspamd.analyzers)
    with service(tmp_path, configuration) as front, worker(tmp_path, configuration) as leaving:
        wait_for(lambda: front.status().json == GREEN)
        client = Submitting(front, mail())
        wait_for(lambda: len(rspamd.mails) == 1)
        stopping = threading.Thread(target=leaving.stop, args=(30.0,))
        stopping.start()
        wait_for(lambda: front.status().json == RED)
        rspamd.answer(0)
        assert client.result().status == 200
        stopping.join(60)


def test_a_worker_that_cannot_finish_in_time_hands_its_mail_back(text, tmp_path, rspamd):
    """Another one gets it at once."""
    configuration = text(analyzers=rspamd.analyzers)
    with service(tmp_path, configuration) as front, worker(tmp_path, configuration) as leaving:
        wait_for(lambda: front.status().json == GREEN)
        client = Submitting(front, mail())
        wait_for(lambda: len(rspamd.mails) == 1)
        with worker(tmp_path, configuration):
            leaving.stop(0.0)
            wait_for(lambda: len(rspamd.mails) == 2)
            rspamd.answer(1)
            assert client.result().status == 200


def _connected_client(front, content: bytes) -> socket.socket:
    """A client that has sent its mail and waits."""
    body = multipart(parameters_json(), content)
    connection = socket.create_connection(("127.0.0.1", front.port))
    connection.sendall(submit_head(len(body)) + body)
    return connection


def test_work_whose_client_has_gone_is_dropped(text, tmp_path, rspamd):
    """A running analysis is cancelled, and a waiting one never begins."""
    one = text(analyzers=rspamd.analyzers, guard=", mainWorkerCount: 1, maxGuardRequestsInProcessing: 3")
    with service(tmp_path, one) as front, worker(tmp_path, one):
        wait_for(lambda: front.status().json == GREEN)
        with _connected_client(front, mail()):
            wait_for(lambda: len(rspamd.mails) == 1)
            with _connected_client(front, attached(b"y" * MIB)):
                wait_for(lambda: in_queue(front)[0] == 2 and in_queue(front)[1] > 0)
        wait_for(lambda: in_queue(front) == (0, 0))
        wait_for(lambda: rspamd.is_gone(0))
        client = Submitting(front, mail())
        wait_for(lambda: len(rspamd.mails) == 2)
        rspamd.answer(1)
        assert client.result().status == 200


def test_the_limits_are_those_of_all_workers_together(text, tmp_path, rspamd):
    """At the limit 503 and RED; another worker raises it."""
    one = text(analyzers=rspamd.analyzers, guard=", mainWorkerCount: 1")
    with service(tmp_path, one) as front, service(tmp_path, one) as other, worker(tmp_path, one):
        wait_for(lambda: front.status().json == other.status().json == GREEN)
        clients = [Submitting(front, mail())]
        wait_for(lambda: len(rspamd.mails) == 1)
        assert (front.submit(mail()).json["error"], front.status().json) == ("saturated", RED)
        wait_for(lambda: other.status().json == RED)  # it does not have the mail, but knows of it
        assert other.submit(mail()).json["error"] == "saturated"
        with worker(tmp_path, one):
            wait_for(lambda: other.status().json != RED)
            clients.append(Submitting(other, mail()))
            wait_for(lambda: len(rspamd.mails) == 2)
            rspamd.answer(0)
            rspamd.answer(1)
            assert [client.result().status for client in clients] == [200, 200]


@asynccontextmanager
async def _taken(cluster, front, count: int):
    """The waiting job, begun and lost `count` times by a worker that we play."""
    queue = front.server._site._backend
    client = await cluster.connect()
    try:
        source = await client.jetstream().pull_subscribe_bind(queue._names.consumer, queue._names.stream)
        for _ in range(count):
            (message,) = await source.fetch(1, timeout=60)
            await message.nak()
        yield client, read_job(message.data)[0], queue._names
    finally:
        await client.close()


def _queued(front, content: bytes) -> Submitting:
    """A client whose mail is in the queue, although there is no worker: the service is told that there is one."""
    queue = front.server._site._backend

    def placed() -> Submitting | None:
        front.loop.call_soon_threadsafe(queue.members.worker, WorkerSign("pretended", 1, 0, 10, 10))
        client = Submitting(front, content)
        wait_for(lambda: client.answer is not None or in_queue(front)[0] == 1)
        return client if client.answer is None else None

    return until(placed, "a mail in the queue")


def test_a_mail_that_kills_workers_is_incomplete(cluster, text, tmp_path):
    """It is begun three times; the fourth worker answers without looking at it."""

    async def kill_three() -> None:
        async with _taken(cluster, front, 3):
            pass

    with service(tmp_path, text()) as front:
        client = _queued(front, mail())
        asyncio.run(kill_three())
        with worker(tmp_path, text()):
            answer = client.result().json
        assert (answer["decision"], answer["verdict"]) == ("undecided", "incomplete")
        assert answer["tags"] == ["failed:worker", "incomplete"]
        wait_for(lambda: in_queue(front) == (0, 0))


def test_the_first_of_two_answers_counts(cluster, text, tmp_path):
    """The second worker reads that no one waits, and an answer to another mail is ignored."""

    async def answer_twice() -> list[bytes]:
        async with _taken(cluster, front, 1) as (client, head, names):
            subject, said = names.answers(head.node, head.ggrid), []
            for ggrid, decision in (("another", "drop"), (head.ggrid, "bounce"), (head.ggrid, "deliver")):
                data = json.dumps({"ggrid": ggrid, "decision": decision}).encode()
                said.append((await client.request(subject, data, timeout=60)).data)
            return said

    with service(tmp_path, text()) as front:
        client = _queued(front, mail())
        said = asyncio.run(answer_twice())
        assert client.result().json["decision"] == "bounce"
        assert said[2] == NOT_WANTED or client.answer.json["decision"] == "bounce"


def test_a_job_of_a_dead_service_is_dropped(cluster, text, tmp_path, rspamd):
    """A service that was killed waits for nothing; its large mail is removed from the object store, too."""
    configuration = text(analyzers=rspamd.analyzers)

    async def leave_behind() -> None:
        names, client = front.server._site._backend._names, await cluster.connect()
        job = JobHead(str(uuid4()), "gone", "2026-11-16", 3, None)
        store = await client.jetstream().object_store(names.bucket)
        await store.put(job.ggrid, b"x" * MIB)
        await client.jetstream().publish(names.jobs, job.to_bytes())
        source = await client.jetstream().pull_subscribe_bind(names.consumer, names.stream)
        (message,) = await source.fetch(1, timeout=60)
        await message.nak()  # it was begun once; it would also be asked for after a wait
        await client.close()

    with service(tmp_path, configuration) as front:
        wait_for(lambda: in_queue(front) == (0, 0))
        asyncio.run(leave_behind())
        assert in_queue(front)[1] > 1
        with worker(tmp_path, configuration):
            wait_for(lambda: in_queue(front) == (0, 0))
        assert not rspamd.mails


def test_another_account_can_neither_read_nor_answer(cluster, text, tmp_path):
    """Subjects, streams and objects of one account do not exist in another."""
    seen: list[bytes] = []

    async def listen_and_forge() -> str:
        async def note(message) -> None:
            seen.append(message.data)

        others = await cluster.connect("others")
        await others.subscribe(">", cb=note)
        async with _taken(cluster, front, 1) as (_, head, names):
            forged = json.dumps({"ggrid": head.ggrid, "decision": "drop"}).encode()
            try:
                await others.request(names.answers(head.node, head.ggrid), forged, timeout=0.5)
            except TimeoutError:  # they are their own only listener
                pass
            for stream in (names.stream, f"OBJ_{names.bucket}"):
                with pytest.raises(NotFoundError):
                    await others.jetstream().stream_info(stream)
        seen.remove(forged)
        await others.close()
        return head.ggrid

    with service(tmp_path, text()) as front:
        client = _queued(front, mail(b"a secret\r\n"))
        asyncio.run(listen_and_forge())
        with worker(tmp_path, text()):
            assert client.result().json["decision"] == "deliver"
    assert not any(b"secret" in data or b"ggrid" in data for data in seen)


def test_a_full_queue_refuses_mail(text, tmp_path, rspamd):
    """With 503, so that the client keeps it; the mail that is in the queue is analyzed."""
    small = text(more=", max_size: 1MiB", analyzers=rspamd.analyzers, guard=", mainWorkerCount: 9")
    with service(tmp_path, small) as front, worker(tmp_path, small):
        wait_for(lambda: front.status().json == GREEN)
        content = mail(b"x" * 998 + b"\r\n") * 400
        clients = [Submitting(front, content), Submitting(front, content)]
        wait_for(lambda: len(rspamd.mails) == 2)
        assert (front.submit(content).json["error"], front.submit(content).status) == ("saturated", 503)
        assert front.submit(attached(b"x" * 2 * MIB)).json["error"] == "payload_too_large"  # it never fits
        wait_for(lambda: in_queue(front)[1] == 0)
        rspamd.answer(0)
        rspamd.answer(1)
        assert [client.result().status for client in clients] == [200, 200]


def test_nats_may_restart_and_forget_everything(tmp_path, rspamd):
    """Mail that waits is sent again, and answered once; mail that comes meanwhile waits for a moment."""
    server = NatsServer(tmp_path, "-js", "-sd", str(tmp_path / "store"))
    server.start()
    core = f'core: {{nats: {{servers: ["{server.url}"]}}}}'
    text = CONFIG.replace("core: {}", core) + f"analyzers: {rspamd.analyzers}\n"
    with service(tmp_path, text) as front, worker(tmp_path, text):
        try:
            wait_for(lambda: front.status().json == GREEN)
            clients = [Submitting(front, mail()), Submitting(front, attached(b"x" * MIB))]
            wait_for(lambda: len(rspamd.mails) == 2)
            server.stop()
            clients.append(Submitting(front, mail()))
            server.start()
            wait_for(lambda: len(rspamd.mails) >= 3)
            rspamd.answer_all()
            assert [client.result().status for client in clients] == [200, 200, 200]
            wait_for(lambda: in_queue(front) == (0, 0))
        finally:
            server.stop()
