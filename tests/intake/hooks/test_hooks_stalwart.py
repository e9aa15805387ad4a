"""Stalwart's dialect, played as its source writes it; a real Stalwart was not available."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.testing import RunningBridge, answer, result
from tests.intake.hooks.hooks_kit import MailServer, hooks_bridge

HEAD = [["From", " a@example.com\r\n"], ["Subject", " long\r\n subject\r\n"], ["To", ""]]
BODY = 'Grüße\r\n"quoted" \\ \t\r\n.\r\n\U0001f600 end'
MAIL = f"From: a@example.com\r\nSubject: long\r\n subject\r\nTo:\r\n\r\n{BODY}".encode()


@pytest.fixture(scope="module", params=["tempfail", "scan"])
def bridge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    hooks = {"lossy_content": request.param}
    with hooks_bridge(tmp_path_factory.mktemp("stalwart"), profile="stalwart-hooks", hooks=hooks) as running:
        running.lossy = request.param  # type: ignore[attr-defined]
        yield running


def ask(server: MailServer, stage: str = "data", message: dict[str, Any] | None = None, **context: Any) -> Any:
    given = {
        "stage": stage,
        "client": {"ip": "192.0.2.9", "port": 4444, "ptr": None, "helo": "far.example", "activeConnections": 1},
        "sasl": {"login": "someone"},
        "server": {"name": "Stalwart", "port": 25, "ip": "192.0.2.1"},
        "queue": {"id": "1f"},
        "protocol": {"version": 1},
    }
    mail = {"headers": HEAD, "contents": BODY, "size": len(MAIL), **(message or {})}
    asked = {
        "context": {**given, **context},
        "envelope": {"from": {"address": "a@example.com"}, "to": [{"address": "b@example.org"}]},
        "message": mail,
    }
    if stage.lower() != "data":
        del asked["message"]
    status, found = server.send("POST", "/mta-hooks/stalwart", asked)
    return found if status == 200 else status


@pytest.mark.parametrize("stage", ["data", "DATA"])
def test_the_mail_is_rebuilt_byte_for_byte(bridge: RunningBridge, server: MailServer, stage: str) -> None:
    """Header fields and body, as they were before Stalwart took them apart."""
    found = ask(server, stage, protocol={"version": "1.0"})
    assert found["action"] == "accept"
    assert {"type": "addHeader", "name": "X-Scan-Decision", "value": "deliver"} in found["modifications"]
    submitted = bridge.scanner.submissions[-1]
    assert submitted.email == MAIL
    assert submitted.parameters["borderMtaData"]["senderHelo"] == "far.example"


@pytest.mark.parametrize(
    ("decision", "action", "status"),
    [
        ("bounce", "reject", 550),
        ("undecided", "reject", 451),
        ("drop", "discard", None),
        ("quarantine", "discard", None),
    ],
)
def test_every_decision(
    bridge: RunningBridge, server: MailServer, decision: str, action: str, status: int | None
) -> None:
    """A reply has code and text together, and the enhanced code in both spellings."""
    bridge.scanner.reply = answer(200, result(decision))
    found = ask(server)
    assert found["action"] == action
    if status is not None:
        said = found["response"]
        assert said["status"] == status and said["message"] and said["disconnect"] is False
        assert said["enhancedStatus"] == said["enhanced_status"] == f"{status // 100}.7.1"


@pytest.mark.parametrize(
    "message",
    [
        {"contents": BODY.replace("ü", "\ufffd")},
        {"size": len(MAIL) + 1},
        {"size": None},
        {"headers": [["From", " \ufffd\r\n"], *HEAD[1:]]},
    ],
    ids=["replaced", "another size", "no size", "replaced in a field"],
)
def test_a_copy_that_is_not_exact_is_deferred_or_scanned(
    bridge: RunningBridge, server: MailServer, message: dict[str, Any]
) -> None:
    """What is delivered would not be what was scanned: the operator says which is better."""
    count = len(bridge.scanner.submissions)
    found = ask(server, message=message)
    if bridge.lossy == "scan":  # type: ignore[attr-defined]
        assert found["action"] == "accept" and len(bridge.scanner.submissions) == count + 1
    else:
        assert found["response"]["status"] == 451 and len(bridge.scanner.submissions) == count


def test_forged_fields_are_numbered_by_name(bridge: RunningBridge, server: MailServer) -> None:
    """As in milter: the second field of a name is deleted before the first."""
    fields = [["X-Scan-Id", " 1\r\n"], ["A", " b\r\n"], ["x-scan-id", " 2\r\n"]]
    found = ask(
        server, message={"headers": fields, "size": len(f"X-Scan-Id: 1\r\nA: b\r\nx-scan-id: 2\r\n\r\n{BODY}".encode())}
    )
    deleted = [change for change in found["modifications"] if change["type"] == "deleteHeader"]
    assert [(change["name"], change["index"]) for change in deleted] == [("X-Scan-Id", 2), ("X-Scan-Id", 1)]


def test_other_stages_and_bad_requests(server: MailServer) -> None:
    """Nothing is decided before MAIL; a body without its header section is no mail."""
    assert [ask(server, stage) for stage in ("connect", "EHLO", "auth", "mail", "RCPT")] == [{"action": "accept"}] * 5
    for message in (
        {"headers": None},
        {"headers": [["a"]]},
        {"headers": [[1, 2]]},
        {"contents": None},
        {"contents": 5},
    ):
        assert ask(server, message=message) == 400
    late = b'{"context":{"stage":"data"},"envelope":{"from":{"address":""}},"message":{"contents":"x","headers":[]}}'
    assert server.send("POST", "/mta-hooks/stalwart", late)[0] == 400
