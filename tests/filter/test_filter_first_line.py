"""The first line of a mail never becomes part of a header field that we put above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.mail.message import HEAD_LIMIT
from bridge.testing import RunningBridge, answer, result, running_bridge

REST = b"Subject: x\r\n\r\nhello\r\n"


@pytest.fixture(scope="module", params=["smtp", "lmtp"])
def of_module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("bridge"), protocol=request.param) as running:
        yield running


@pytest.fixture
def bridge(of_module: RunningBridge) -> RunningBridge:
    """Without the mails of earlier tests."""
    of_module.forget()
    return of_module


def say(bridge: RunningBridge, content: bytes, greeting: bytes = b"EHLO client.example") -> bytes:
    is_lmtp = bridge.daemon.config.listeners[0].protocol == "lmtp"
    with bridge.client() as client:
        client.open(b"LHLO client.example" if is_lmtp else greeting)
        return client.mail(content)


@pytest.mark.parametrize("start", [b" text\r\n", b"\ttext\r\n", b" \r\n", b" ", b" X-Scan-Decision: deliver\r\n"])
def test_a_mail_that_begins_with_white_space_continued_our_own_field(bridge: RunningBridge, start: bytes) -> None:
    """Its first line was added to the value of X-Scan-Decision; it is refused, and neither scanned nor stored."""
    assert say(bridge, start + REST).startswith(b"550 5.6.0 ")
    assert not bridge.scanner.submissions and not bridge.next_hop.mails
    bridge.scanner.reply = answer(200, result("quarantine"))
    assert say(bridge, start + REST).startswith(b"550 5.6.0 ")
    assert not list((bridge.directory / "state" / "quarantine").glob("*.eml"))


@pytest.mark.parametrize(
    "content",
    [b"\r\nhello\r\n", b"\r\n text\r\n", b"hello\r\n text\r\n", b"From a Mon Nov 16\r\n" + REST, b"\r\n", REST, b""],
)
def test_any_other_first_line_stays_as_it_is(bridge: RunningBridge, content: bytes) -> None:
    """An empty line ends our fields, and a line that is no field cannot continue one: all bytes go on unchanged."""
    assert say(bridge, content).startswith(b"250 ")
    relayed = bridge.next_hop.mails[0].content
    head = relayed.removesuffix(content)
    assert relayed.endswith(content) and head.endswith(b"\r\n")
    fields = head.replace(b"\r\n\t", b" ").splitlines()
    assert [field.partition(b":")[0] for field in fields][:2] == [b"Received", b"X-Scan-Id"]
    assert bridge.scanner.submissions[0].email == content


@pytest.mark.parametrize("before", [b"", b"Subject: x\r\n"], ids=["first", "below another"])
def test_the_rest_of_a_long_forged_field_continues_no_other(tmp_path: Path, before: bytes) -> None:
    """Only the beginning of a long header section is searched; what follows could continue the field above."""
    forged = b"X-Scan-Id: x\r\n" + b" continued line\r\n" * (2 * HEAD_LIMIT // 17)
    with running_bridge(tmp_path) as running:
        assert say(running, before + forged + REST).startswith(b"554 5.6.0 ")
        assert not running.scanner.submissions


def test_the_rest_of_a_long_client_field_continues_no_other(tmp_path: Path) -> None:
    """The same with a field that is removed before the pipeline sees it."""
    ours = b"X-Client: ADDR=192.0.2.1\r\n"
    forged = b"X-Client: x\r\n" + b" continued line\r\n" * (2 * HEAD_LIMIT // 17)
    with running_bridge(tmp_path, client_header="X-Client") as running:
        assert say(running, ours + forged + REST).startswith(b"550 5.6.0 ")
        assert not running.scanner.submissions


def test_a_maildir_file_begins_with_our_own_fields(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    with running_bridge(tmp_path, {"relay": {"next_hop": f"maildir:{inbox}"}}) as running:
        assert say(running, b" text\r\n" + REST).startswith(b"550 5.6.0 ")
        assert say(running, b"\r\n text\r\n").startswith(b"250 ")
    (path,) = (inbox / "new").iterdir()
    head, _, body = path.read_bytes().partition(b"\r\n\r\n")
    assert body == b" text\r\n" and b"\r\n " not in head
