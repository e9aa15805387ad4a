"""MTA Hooks as a client: the introduction, the requests, and every kind of answer."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from bridge.api.scanning import AnalysisRequest, BorderMtaData, Decision, QueueStatus
from bridge.errors import (
    MessageTooLarge,
    Saturated,
    ScanError,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
)
from bridge.scanner.client import ScanGoesOn
from bridge.scanner.dialects.mta_hooks import HooksSettings, MtaHooks
from bridge.testing import eventually
from tests.scanner import spoken
from tests.scanner.fault_server import MAIL, TOKEN, Call, FaultServer, answer, faults, scanner_of, submit
from tests.scanner.spoken import SPOKEN, discovery, registration


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    spoken.choose(SPOKEN[2])
    yield
    spoken.choose(SPOKEN[0])


class HooksServer:
    """Answers each path; counts what it was asked."""

    def __init__(self, **answers: bytes) -> None:
        self.answers = {
            "/.well-known/mta-hooks": answer(200, discovery()),
            "/register": answer(201, registration()),
            "/register/us:1": answer(200, b"{}"),
            "/hook": answer(200, b"{}"),
        }
        self.asked: list[str] = []

    async def __call__(self, call: Call) -> None:
        assert call.request is not None
        path = call.request.line.split(" ")[1]
        self.asked.append(path)
        call.say(self.answers.get(path, answer(404, b"")))


def serving(server: HooksServer) -> Any:
    return faults(server, introduces=False)


async def test_the_bridge_introduces_itself_once() -> None:
    """Discovery and registration come before the first mail, and not again before the next."""
    hooks = HooksServer()
    async with serving(hooks) as server, scanner_of(server) as scanner:
        for _ in range(3):
            assert (await submit(scanner)).decision is Decision.DELIVER
        assert hooks.asked == ["/.well-known/mta-hooks", "/register", "/hook", "/hook", "/hook"]
        told = json.loads(server.requests[1].body)
        assert told["inbound"]["stages"] == ["data"] and told["outbound"] is None and told["timeoutMs"] == 60000
        assert all(request.fields["authorization"] == f"Bearer {TOKEN}" for request in server.requests)


async def test_many_mails_at_once_share_one_introduction() -> None:
    """Each of them would need its own registration, and a host has few."""
    hooks = HooksServer()
    async with serving(hooks) as server, scanner_of(server) as scanner:
        await asyncio.gather(*(submit(scanner) for _ in range(20)), scanner.status(scanner.hosts[0], 5))
        assert hooks.asked.count("/register") == 1 and hooks.asked.count("/hook") == 20


async def test_a_mail_arrives_as_the_draft_says() -> None:
    """The content in base64, the envelope and the client as JSON; the null sender is null."""
    hooks = HooksServer()
    border = BorderMtaData("", ("b@example.org", "c@example.org"), "192.0.2.1", "client.example")
    for size in (0, 1, 2, 3, 100_000, 1_000_003):
        content = bytes(range(256)) * (size // 256 + 1)
        async with serving(hooks) as server, scanner_of(server) as scanner:
            await submit(
                scanner, content[:size], request=AnalysisRequest(border, mail_id="Q1"), memory_per_mail=500_000
            )
            request = server.requests[-1]
        told = json.loads(request.body)
        assert base64.b64decode(told["rawMessage"], validate=True) == content[:size]
        assert int(request.fields["content-length"]) == len(request.body)
    assert request.fields["x-mta-hooks-registration"] == "us:1" and len(request.fields["x-mta-hooks-request-id"]) > 30
    assert told["envelope"]["from"] == {"address": None, "parameters": {}}
    assert [recipient["address"] for recipient in told["envelope"]["to"]] == ["b@example.org", "c@example.org"]
    assert told["client"] == {"ip": "192.0.2.1", "ehlo": "client.example", "ptr": None}
    assert (told["stage"], told["action"], told["queue"], told["protocol"]) == (
        "data", "accept", {"id": "Q1"}, {"version": "1.0"},
    )  # fmt: skip


@pytest.mark.parametrize("status", [404, 410])
async def test_a_host_that_has_forgotten_us_is_told_again(status: int) -> None:
    """Once per mail, and the mail loses nothing."""
    hooks = HooksServer()
    async with serving(hooks) as server, scanner_of(server) as scanner:
        await submit(scanner)
        hooks.asked.clear()
        hooks.answers["/hook"] = answer(status, b"{}")
        with pytest.raises(ScanError):
            await submit(scanner)
        assert hooks.asked[:4] == ["/hook", "/.well-known/mta-hooks", "/register", "/hook"]
        hooks.answers["/hook"] = answer(200, b"{}")
        assert (await submit(scanner)).decision is Decision.DELIVER


async def test_a_registration_that_ends_is_renewed() -> None:
    """Before its end, not after a refused mail."""
    hooks = HooksServer()
    ends = datetime.now(UTC) + timedelta(seconds=5.3)
    hooks.answers["/register"] = answer(201, registration(expiresAt=ends.isoformat()))
    async with serving(hooks) as server, scanner_of(server) as scanner:
        await submit(scanner)
        await eventually(lambda: not scanner.hosts[0].dialect.is_ready, "the end of the registration")
        hooks.answers["/register"] = answer(201, registration())
        await submit(scanner)
        assert hooks.asked.count("/register") == 2


@pytest.mark.parametrize("ahead_s", [-600, 300.0, 600.0, 86400.0])
async def test_a_clock_that_was_ahead_ended_every_registration_at_once(ahead_s: float) -> None:
    """All mail was deferred: the host's registrations last for five minutes, and both times are those of its clock."""
    hooks = HooksServer()
    host_now = datetime.now(UTC) - timedelta(seconds=ahead_s)
    times = {"createdAt": host_now.isoformat(), "expiresAt": (host_now + timedelta(minutes=5)).isoformat()}
    hooks.answers["/register"] = answer(201, registration(**times))
    async with serving(hooks) as server, scanner_of(server) as scanner:
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert hooks.asked.count("/register") == 1


async def test_a_jump_of_the_clock_did_not_end_a_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it keep one alive."""
    hooks, now = HooksServer(), time.time
    ends = datetime.now(UTC) + timedelta(minutes=5)
    hooks.answers["/register"] = answer(201, registration(expiresAt=ends.isoformat()))
    async with serving(hooks) as server, scanner_of(server) as scanner:
        await submit(scanner)
        monkeypatch.setattr(time, "time", lambda: now() + 86400)
        assert (await submit(scanner)).decision is Decision.DELIVER
        assert hooks.asked.count("/register") == 1


async def test_the_status_is_that_of_the_registration() -> None:
    """After the introduction, the host is asked for the state of the registration."""
    hooks = HooksServer()
    async with serving(hooks) as server, scanner_of(server) as scanner:
        for _ in range(2):
            assert await scanner.status(scanner.hosts[0], 5) is QueueStatus.GREEN
        assert hooks.asked[-1] == "/register/us:1"
        hooks.answers["/register/us:1"] = answer(410, b"")
        assert await scanner.status(scanner.hosts[0], 5) is QueueStatus.GREEN
        assert hooks.asked.count("/register") == 2 and len(server.requests) == len(hooks.asked)


OTHERS = "http://127.0.0.1:1/register"
WRONG: dict[str, tuple[str, bytes, type[ScanError]]] = {
    "no hooks": ("/.well-known/mta-hooks", answer(404, b""), ScanUnavailable),
    "not JSON": ("/.well-known/mta-hooks", answer(200, b"<html>"), ScanMalformed),
    "deep": ("/.well-known/mta-hooks", answer(200, b"[" * 100_000), ScanMalformed),
    "another version": ("/.well-known/mta-hooks", answer(200, discovery(version="2.0")), ScanMalformed),
    "another stage": (
        "/.well-known/mta-hooks", answer(200, discovery(capabilities={"inbound": {"stages": ["rcpt"]}})), ScanMalformed,
    ),
    "elsewhere": (
        "/.well-known/mta-hooks", answer(200, discovery(endpoints={"registration": OTHERS})), ScanMalformed,
    ),
    "a path with a line end": (
        "/.well-known/mta-hooks", answer(200, discovery(endpoints={"registration": "/a\r\nX: y"})), ScanMalformed,
    ),
    "refused": ("/register", answer(401, b""), ScanRefused),
    "200 instead of 201": ("/register", answer(200, registration()), ScanUnavailable),
    "not active": ("/register", answer(201, registration(status="pending")), ScanMalformed),
    "a bad id": ("/register", answer(201, registration(registrationId="a\r\nX: y")), ScanMalformed),
    "a hook elsewhere": ("/register", answer(201, registration(hookEndpoint="http://evil.example/")), ScanMalformed),
    "other stages": (
        "/register", answer(201, registration(negotiated={"inbound": {"stages": ["rcpt"], "properties": []}})),
        ScanMalformed,
    ),
    "without the mail": (
        "/register", answer(201, registration(negotiated={"inbound": {"stages": ["data"], "properties": ["/stage"]}})),
        ScanMalformed,
    ),
    "already over": ("/register", answer(201, registration(expiresAt="2020-01-01T00:00:00Z")), ScanUnavailable),
    "no time": ("/register", answer(201, registration(expiresAt="soon")), ScanMalformed),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_introduction_sends_no_mail(name: str) -> None:
    """The token goes to no other server, and the mail is deferred."""
    path, wrong, error = WRONG[name]
    hooks = HooksServer()
    hooks.answers[path] = wrong
    async with serving(hooks) as server, scanner_of(server) as scanner:
        with pytest.raises(error) as caught:
            await scanner.status(scanner.hosts[0], 5)
        assert TOKEN not in str(caught.value)
        with pytest.raises(ScanError):
            await submit(scanner)
        assert "/hook" not in hooks.asked
        hooks.answers = HooksServer().answers
        assert (await submit(scanner)).decision is Decision.DELIVER


async def test_an_introduction_in_circles_ends() -> None:
    """A host that forgets us with each registration costs a bounded number of requests."""
    hooks = HooksServer()
    hooks.answers["/register/us:1"] = answer(410, b"")
    hooks.answers["/hook"] = answer(410, b"")
    async with serving(hooks) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanError):
            await submit(scanner)
        assert len(hooks.asked) < 20


async def test_an_answer_to_the_introduction_is_never_a_late_decision() -> None:
    """`{}` would be one that delivers the mail."""

    async def slow(call: Call) -> None:
        assert call.request is not None
        await call.pause(0.3)
        call.say(answer(200, b"{}"))

    async with faults(slow, introduces=False) as server, scanner_of(server) as scanner:
        with pytest.raises(ScanTimeout) as caught:
            await submit(scanner, deadline_s=0.1, keep_late=True)
        assert not isinstance(caught.value, ScanGoesOn) and scanner.in_flight == 0
        server.gone.set()


def setting(action: Any, **response: Any) -> bytes:
    found = [{"path": "/action", "value": action}]
    if response:
        found.append({"path": "/response", "value": response})
    return json.dumps({"set": found}).encode()


DECISIONS = [
    (b"{}", Decision.DELIVER),
    (b'{"set": [], "add": [], "delete": []}', Decision.DELIVER),
    (setting("accept"), Decision.DELIVER),
    (setting("discard"), Decision.DROP),
    (setting("quarantine"), Decision.QUARANTINE),
    (setting("reject"), Decision.BOUNCE),
    (setting("reject", code=554, enhancedCode="5.7.1", message="no"), Decision.BOUNCE),
    (setting("reject", code=451, enhancedCode="4.7.1", message="later"), Decision.UNDECIDED),
    (setting("disconnect"), Decision.UNDECIDED),
]


@pytest.mark.parametrize(("body", "decision"), DECISIONS)
async def test_each_action_is_a_decision(body: bytes, decision: Decision) -> None:
    """As the table in docs/operate/dialects.md says."""
    async with faults(answer(200, body)) as server, scanner_of(server) as scanner:
        assert (await submit(scanner)).decision is decision


async def test_a_full_host_is_saturated() -> None:
    """`451 4.3.2` inside a 200, and 429, say so."""
    for full in (answer(200, setting("reject", code=451, enhancedCode="4.3.2", message="full")), answer(429, b"")):
        async with faults(full) as server, scanner_of(server) as scanner:
            with pytest.raises(Saturated):
                await submit(scanner)


def adding(**field: Any) -> bytes:
    return json.dumps({"add": [{"path": "/message/headers", "value": field}]}).encode()


NOT_UNDERSTOOD = {
    "unknown key": b'{"set": [], "action": "accept"}',
    "a list": b"[]",
    "an envelope": b'{"set": [{"path": "/envelope/from", "value": {"address": "x@y"}}]}',
    "a deleted recipient": b'{"delete": [{"path": "/envelope/to/0"}]}',
    "a deleted field": b'{"delete": [{"path": "/message/headers/0"}]}',
    "a changed field": b'{"set": [{"path": "/message/headers/0/value", "value": "x"}]}',
    "an added recipient": b'{"add": [{"path": "/envelope/to", "value": {"address": "x@y"}}]}',
    "a field with more": adding(name="X", value="y", other=1),
    "a response without a refusal": setting("accept", code=550),
    "a refusal with 250": setting("reject", code=250),
    "no action": setting(None),
    "a number": setting(5),
    "an operation": b'{"set": [{"op": "replace", "path": "/action", "value": "discard"}]}',  # draft -02
    "a patch": b'[{"op": "replace", "path": "/action", "value": "discard"}]',
    "two actions": b'{"set": [{"path": "/action", "value": "discard"}, {"path": "/action", "value": "accept"}]}',
    "two lists": b'{"set": [{"path": "/action", "value": "discard"}], "set": []}',
    "two values": b'{"set": [{"path": "/action", "value": "discard", "value": "accept"}]}',
    "deep": b'{"set": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("body", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
async def test_an_answer_that_is_not_understood_is_no_decision(body: bytes) -> None:
    """Half of what a scanner wants may be the opposite of it."""
    async with faults(answer(200, body)) as server, scanner_of(server) as scanner:
        with pytest.raises((ScanMalformed, ScanError)):
            await submit(scanner)


async def test_fields_are_added_if_allowed() -> None:
    """Otherwise they are left out, and the decision stands."""
    body = adding(name="X-Seen", value="yes")
    for allowed, added in ((frozenset(["add_headers"]), (("X-Seen", "yes"),)), (frozenset[str](), None)):
        made = partial(MtaHooks, settings=HooksSettings(allowed=allowed))
        async with faults(answer(200, body)) as server, scanner_of(server, dialect=made) as scanner:
            found = await submit(scanner)
            assert (found.changes.add if found.changes else None) == added


async def test_a_mail_above_the_hosts_limit_is_not_sent() -> None:
    """It said in its discovery document how much it takes."""
    hooks = HooksServer()
    hooks.answers["/.well-known/mta-hooks"] = answer(200, discovery(limits={"maxMessageSize": 20}))
    async with serving(hooks) as server, scanner_of(server) as scanner:
        with pytest.raises(MessageTooLarge):
            await submit(scanner, MAIL)
        assert (await submit(scanner, MAIL[:20])).decision is Decision.DELIVER
        assert isinstance(server, FaultServer) and hooks.asked.count("/hook") == 1
