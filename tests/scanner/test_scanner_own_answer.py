"""An answer belongs to the request that asked for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from bridge.api.scanning import Decision
from bridge.errors import ScanError
from bridge.service.analysis.inspection_state import GTUBE
from tests.scanner.fault_server import Call, answer, faults, result, scanner_of, submit
from tests.service.service_kit import mail, service

GREEN = b'{"messageQueueStatus": "GREEN"}'


def echoed(call: Call, status: int = 200, body: bytes | None = None) -> bytes:
    assert call.request is not None
    return answer(status, body, f"X-Scan-Request-Id: {call.request.fields['x-scan-request-id']}")


async def test_each_request_has_its_own_id() -> None:
    """Mails and status requests."""
    async with faults() as server, scanner_of(server) as scanner:
        for _ in range(3):
            await submit(scanner)
        server.script = answer(200, GREEN)
        await scanner.status(scanner.hosts[0], 5)
        ids = [request.fields["x-scan-request-id"] for request in server.requests]
        assert len(set(ids)) == 4 and all(len(number) == 36 for number in ids)


async def test_the_second_answer_to_one_mail_was_taken_for_the_next_mails() -> None:
    """A scanner that repeats our id: its second answer comes when the next mail has been sent."""

    async def one_behind(call: Call) -> None:
        call.say(echoed(call, body=result("deliver")))
        if len(call.server.requests) == 1:  # once more, and then nothing: the next mail waits for its own answer
            again = echoed(call, body=result("deliver"))
            await call.reader.readuntil(b"\r\n\r\n")
            call.say(again)
            await call.until_gone()

    async def script(call: Call) -> None:
        if call.request.connection == 1:
            await one_behind(call)
        else:
            call.say(echoed(call, body=result("bounce")))

    async with faults(script) as server, scanner_of(server) as scanner:
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert (await submit(scanner)).decision is Decision.BOUNCE
        assert server.connections == 2


@pytest.mark.parametrize("extra", [answer(200, result("drop")), b"HTTP/1.1 200 OK\r\n", b"x", b"\r\n\r\nHTTP"])
async def test_bytes_that_have_arrived_before_the_request_are_no_answer(extra: bytes) -> None:
    """They wait in the kernel, and the event loop has not seen them yet, when the next mail is sent."""
    calls: list[Call] = []

    async def script(call: Call) -> None:
        calls.append(call)
        call.say(answer(200, result("deliver" if len(calls) == 1 else "bounce")))

    async with faults(script) as server, scanner_of(server) as scanner:
        await submit(scanner)
        calls[0].say(extra)  # written at once, read by us in the next turn of the loop
        assert (await submit(scanner)).decision is Decision.BOUNCE
        assert server.connections == 2


async def test_a_wrong_id_is_refused() -> None:
    """On a new connection there is nobody else to ask."""
    wrong = answer(200, result("deliver"), "X-Scan-Request-Id: 0123456789abcdef")
    async with faults(wrong) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanError, match="belongs to another request"):
            await submit(scanner)


async def test_a_host_that_has_repeated_our_id_must_go_on_doing_so() -> None:
    """An answer without it comes from somebody else: the mail is sent again, and then deferred."""

    async def once(call: Call) -> None:
        call.say(echoed(call) if len(call.server.requests) == 1 else answer())

    async with faults(once) as server, scanner_of(server) as scanner:
        await submit(scanner)
        with pytest.raises(ScanError, match="does not contain the request id"):
            await submit(scanner)
        assert len(server.requests) == 3


async def test_a_refusal_of_a_proxy_needs_no_id() -> None:
    """Its 413 is believed on a connection that has no other request."""

    async def once(call: Call) -> None:
        call.say(echoed(call) if len(call.server.requests) == 1 else answer(413, b""))

    async with faults(once) as server, scanner_of(server) as scanner:
        await submit(scanner)
        with pytest.raises(ScanError, match="413"):
            await submit(scanner)
        assert server.connections == 2


async def test_a_service_that_was_replaced_by_one_without_ids_is_used_again() -> None:
    """Its next status answer shows that."""

    async def script(call: Call) -> None:
        body = GREEN if "status" in call.request.line else result()
        call.say(echoed(call, body=body) if len(call.server.requests) == 1 else answer(200, body))

    async with faults(script) as server, scanner_of(server) as scanner:
        await submit(scanner)
        await scanner.status(scanner.hosts[0], 5)
        assert (await submit(scanner)).decision is Decision.DELIVER


async def test_a_late_answer_of_another_request_is_refused() -> None:
    """Also after the deadline."""
    from bridge.scanner.client import ScanGoesOn

    async def script(call: Call) -> None:
        await call.server.gone.wait()
        call.say(answer(200, result("deliver"), "X-Scan-Request-Id: 0123456789abcdef"))

    async with faults(script) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanGoesOn) as caught:
            await submit(scanner, deadline_s=0.05, keep_late=True)
        server.gone.set()
        with pytest.raises(ScanError, match="belongs to another request"):
            await caught.value.scan.result()


def test_our_service_repeats_the_id_in_every_answer(tmp_path) -> None:
    """Decisions, refusals, status, errors; and nothing that is no id."""
    with service(tmp_path) as running:
        for path, status in (("/v1/messageQueue/submitEmail", 401), ("/v1/admin/status", 401), ("/nowhere", 404)):
            found = running.request("POST", path, b"", {"X-Scan-Request-Id": "abc-123"})
            assert (found.status, found.headers["X-Scan-Request-Id"]) == (status, "abc-123")
        for bad in ("", "a" * 65, "a b", "<x>"):
            assert (
                running.request("POST", "/nowhere", b"", {"X-Scan-Request-Id": bad}).headers.get("X-Scan-Request-Id")
                is None
            )
        assert running.submit(mail()).headers.get("X-Scan-Request-Id") is None


async def test_our_service_and_our_client_agree(tmp_path) -> None:
    """Many mails over few connections, each with its own decision."""
    config_of = await asyncio.to_thread(lambda: service(tmp_path))
    running = await asyncio.to_thread(config_of.__enter__)
    try:
        from tests.service.service_kit import TOKEN

        async with scanner_of(f"http://127.0.0.1:{running.port}", token=TOKEN) as scanner:
            contents = [mail() if number % 2 else mail(GTUBE) for number in range(20)]
            found = [(await submit(scanner, content)).verdict for content in contents]
            assert found == ["spam", "clean"] * 10
            assert scanner.hosts[0].echoes
    finally:
        await asyncio.to_thread(config_of.__exit__, None, None, None)


def test_request_ids_drawn_before_a_fork_are_not_used_by_the_child() -> None:
    """Two workers with the same ids could take each other's answers, and a sender could know a boundary."""
    program = (
        "import os\n"
        "from bridge.scanner import requests\n"
        "requests.new_id()\n"
        "child = os.fork()\n"
        "os.write(1, requests.new_id() + b' ')\n"
        "if child: os.waitpid(child, 0)\n"
    )
    drawn = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert len(drawn) == 2 and drawn[0] != drawn[1]
