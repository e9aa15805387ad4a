"""An answer belongs to its request: core nodes, rspamd, and the processes that inspect mail."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.mail.message import Spool
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.rspamd import RspamdAnalyzer
from bridge.service.analysis.worker_pool import WorkerPool
from bridge.service.engine_settings import Rspamd
from bridge.service.settings import Timings
from tests.service.service_kit import mail, service
from tests.service.test_service_core import _front

BAD = b"Subject: bad"


@contextmanager
def scripted(*answers, status: bytes | None = None, status_with_id: bool = True):
    """An HTTP server in a thread. `answers` are taken in turn, the last one for ever; each gets the request's id.

    Yields (port, the bodies it got).
    """
    bodies: list[bytes] = []
    lock = threading.Lock()

    def reply(head: bytes, body: bytes) -> bytes:
        if b"/admin/status" in head.split(b"\r\n")[0]:
            text = status if status is not None else b'{"messageQueueStatus": "GREEN"}'
            return response(text, given(head) if status_with_id else b"")
        with lock:
            bodies.append(body)
            make = answers[min(len(bodies), len(answers)) - 1]
        return make(given(head), body)

    def serve(client: socket.socket) -> None:
        with client, client.makefile("rb") as lines, suppress(ConnectionError):
            while head := read_head(lines):
                length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
                out = reply(head, lines.read(length))
                if not out:
                    return
                client.sendall(out)
                if b"connection: close" in head.lower():
                    return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], bodies


def read_head(lines: Any) -> bytes:
    head = b""
    while (line := lines.readline()) not in (b"", b"\r\n"):
        head += line
    return head


def given(head: bytes) -> bytes:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"x-scan-request-id":
            return value.strip()
    return b""


def response(body: bytes, request_id: bytes = b"", status: int = 200) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body)]
    if request_id:
        lines.append(b"X-Scan-Request-Id: " + request_id)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def decided(decision: str) -> bytes:
    return json.dumps({"ggrid": "g", "verdict": "v", "tags": [], "decision": decision}).encode()


def test_a_node_that_answers_twice_does_not_decide_on_the_next_mail(tmp_path: Path) -> None:
    """With our id the second answer is recognised; without it, each mail has its own connection."""

    def twice(request_id: bytes, _body: bytes) -> bytes:
        return 2 * response(decided("deliver"), request_id)

    def bounce(request_id: bytes, _body: bytes) -> bytes:
        return response(decided("bounce"), request_id)

    for with_id in (True, False):

        def node_answer(make, with_id=with_id):
            return lambda request_id, body: make(request_id if with_id else b"", body)

        answers = [node_answer(twice), node_answer(twice), node_answer(bounce)]
        with scripted(*answers, status_with_id=with_id) as (port, bodies):
            place = tmp_path / str(with_id)
            place.mkdir()
            with service(place, _front(port)) as front:
                found = [front.submit(mail()).json["decision"] for _ in range(3)]
        assert found[:1] == ["deliver"] and "deliver" not in found[2:], found
        assert len(bodies) == 3


@pytest.mark.parametrize("how", ["500", "nonsense", "closed"])
def test_a_mail_that_breaks_a_node_excluded_it_for_everybody(tmp_path: Path, how: str) -> None:
    """Two nodes fail on it, the third does not get it, and all three go on."""

    def on_bad(request_id: bytes, body: bytes) -> bytes:
        if BAD not in body:
            return response(decided("deliver"), request_id)
        return {"500": response(b"", request_id, 500), "nonsense": response(b"[]", request_id), "closed": b""}[how]

    with scripted(on_bad) as (a, in_a), scripted(on_bad) as (b, in_b), scripted(on_bad) as (c, in_c):
        slow = Timings(probe_interval_s=3600.0)
        with service(tmp_path, _front(a, b, c), timings=slow) as front:
            for number in range(4):
                answer = front.submit(b"Subject: bad\r\n\r\nx\r\n")
                assert (answer.status, answer.json["decision"]) == (200, "undecided")
                assert set(answer.json["tags"]) == {"failed:core", "incomplete"}
                assert sum(map(len, (in_a, in_b, in_c))) == 2 * (number + 1)
            for _ in range(6):
                assert front.submit(mail()).json["decision"] == "deliver"
            backend_nodes = [len(bodies) for bodies in (in_a, in_b, in_c)]
            assert sum(backend_nodes) == 8 + 6


async def test_rspamd_that_answers_twice_does_not_decide_on_the_next_mail() -> None:
    """One connection for each mail."""
    from bridge.api.scanning import AnalysisRequest, BorderMtaData
    from bridge.service.analysis.engine import Mail

    def action(name: str):
        body = json.dumps({"action": name, "score": 1.0}).encode()
        return lambda _id, _body: 2 * response(body)

    with scripted(action("no action"), action("reject")) as (port, _bodies):
        analyzer = RspamdAnalyzer(Rspamd(url=f"http://127.0.0.1:{port}"))
        stored = StoredMail(Spool(1 << 20))
        stored.write(b"x")
        request = AnalysisRequest(BorderMtaData("a@b", ("c@d",)))
        found = [await analyzer.analyze(Mail("g", request, stored)) for _ in range(2)]
        await analyzer.close()
    assert [set(findings.tags) for findings in found] == [{"rspamd:no-action"}, {"rspamd:reject"}]


async def test_a_process_that_says_more_than_its_answer_is_replaced() -> None:
    """What it said would be the next mail's answer."""
    pool = WorkerPool("bridge.service.analysis.inspector_process", 1, 1 << 30, {})
    stored = StoredMail(Spool(1 << 20))
    stored.write(mail())
    try:
        await pool.ask(stored, Limits().to_dict(), 10.0, Inspection.from_dict)
        (process,) = pool._idle
        # The test holds the process's side of the socket, as a mail that took control of it would.
        theirs = Path(f"/proc/{process._process.pid}/fd")
        assert theirs.exists()
        process._socket.close()
        process._socket, other = socket.socketpair()
        process._socket.setblocking(False)
        other.sendall(b'{"tags": ["forged"]}\n')
        found = await pool.ask(stored, Limits().to_dict(), 10.0, Inspection.from_dict)
        assert "forged" not in found.tags and pool._idle[0] is not process
        other.close()
    finally:
        await pool.stop()


async def test_a_process_that_answers_after_its_time_is_killed() -> None:
    """Its answer reaches nobody."""
    pool = WorkerPool("bridge.service.analysis.inspector_process", 1, 1 << 30, {})
    stored = StoredMail(Spool(1 << 20))
    stored.write(mail())
    try:
        await pool.ask(stored, Limits().to_dict(), 10.0, Inspection.from_dict)
        (process,) = pool._idle
        with pytest.raises(Exception, match="timeout"):
            await pool.ask(stored, Limits().to_dict(), 0.0, Inspection.from_dict)
        await asyncio.sleep(0)
        assert not process.is_alive() and not pool._idle
    finally:
        await pool.stop()
