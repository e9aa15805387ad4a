"""A model of an SMTP session against the listener: no order of commands loses, invents or mixes up mail."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.testing import RunningBridge, running_bridge, until

ADDRESSES = st.sampled_from([b"a@x.example", b'"a b"@x.example', b"b@[192.0.2.1]", b"postmaster", b"A+b@X.example"])
BAD = st.sampled_from([b"<a b@c>", b"<a@b", b"<a(c)@d>", b"<\xff@d>", b"<a\0@d>", b"", b"<=?utf-8?q?=0A?=@d>"])
LINES = st.lists(st.sampled_from([b"text", b".", b"..", b"", b"MAIL FROM:<x@y>", b"\xff\x80", b"QUIT"]), max_size=5)


class Session(RuleBasedStateMachine):
    """The commands sent so far, and the mails that must have resulted."""

    bridge: RunningBridge  # set by the test
    sessions = sent = 0  # of all runs

    def __init__(self) -> None:
        super().__init__()
        self.bridge.next_hop.mails.clear()
        self.client = self.bridge.client()
        self.client.reply()
        self.greeted = False
        self.sender: bytes | None = None
        self.recipients: list[bytes] = []
        self.mails: list[tuple[bytes, list[bytes], bytes]] = []

    def teardown(self) -> None:
        """Whatever came before, a mail is delivered afterwards."""
        self.greet(b"EHLO")
        self.whole_mail(b"a@x.example", [b"b@y.example"], [b"the last line"])
        self.next_hop_has_exactly_our_mails()
        self.client.close()
        type(self).sessions += 1
        type(self).sent += len(self.mails)

    def says(self, command: bytes, code: bytes) -> None:
        reply = self.client.say(command)[0]
        assert reply.startswith(code), (command, reply, code)

    def forget(self) -> None:
        self.sender, self.recipients = None, []

    @initialize(greeted=st.booleans())
    def start(self, greeted: bool) -> None:
        self.says(b"MAIL FROM:<a@x.example>", b"503")
        if greeted:
            self.greet(b"EHLO")

    @rule(verb=st.sampled_from([b"EHLO", b"HELO"]))
    def greet(self, verb: bytes) -> None:
        self.says(verb + b" client.example", b"250")
        self.greeted = True
        self.forget()

    @rule(address=ADDRESSES | st.just(b""))
    def mail(self, address: bytes) -> None:
        ready = self.greeted and self.sender is None
        self.says(b"MAIL FROM:<" + address + b">", b"250" if ready else b"503")
        if ready:
            self.sender = address

    @precondition(lambda self: self.greeted)
    @rule(path=BAD)
    def bad_mail(self, path: bytes) -> None:
        self.says(b"MAIL FROM:" + path, b"5")

    @rule(address=ADDRESSES)
    def rcpt(self, address: bytes) -> None:
        ready = self.sender is not None
        self.says(b"RCPT TO:<" + address + b">", b"250" if ready else b"503")
        if ready:
            self.recipients.append(address)

    @rule(path=BAD)
    def bad_rcpt(self, path: bytes) -> None:
        self.says(b"RCPT TO:" + path, b"5")

    @precondition(lambda self: self.greeted)
    @rule(sender=ADDRESSES | st.just(b""), recipients=st.lists(ADDRESSES, min_size=1, max_size=3), lines=LINES)
    def whole_mail(self, sender: bytes, recipients: list[bytes], lines: list[bytes]) -> None:
        """Random single commands would rarely form a complete mail."""
        if self.sender is not None:
            self.rset()
        self.mail(sender)
        for recipient in recipients:
            self.rcpt(recipient)
        self.data(lines, together=False)

    @rule(lines=LINES, together=st.booleans())
    def data(self, lines: list[bytes], together: bool) -> None:
        if not self.recipients:
            return self.says(b"DATA", b"503")
        stuffed = b"".join((b"." + line if line.startswith(b".") else line) + b"\r\n" for line in lines)
        if together:
            replies = self.client.say(b"DATA", stuffed + b".")
            assert [reply[:3] for reply in replies] == [b"354", b"250"]
        else:
            self.says(b"DATA", b"354")
            self.says(stuffed + b".", b"250")
        assert self.sender is not None
        self.mails.append((self.sender, self.recipients, b"".join(line + b"\r\n" for line in lines)))
        return self.forget()

    @precondition(lambda self: self.recipients)
    @rule(bad=st.sampled_from([b"a\nb", b"a\rb", b"a\0b"]))
    def bad_data(self, bad: bytes) -> None:
        self.says(b"DATA", b"354")
        self.says(bad + b"\r\n.", b"550 5.5.2")
        self.forget()

    @rule()
    def rset(self) -> None:
        self.says(b"RSET", b"250")
        self.forget()

    @rule(command=st.sampled_from([b"NOOP", b"FROB", b"VRFY x", b"EXPN x", b"HELP", b"", b"STARTTLS"]))
    def idle(self, command: bytes) -> None:
        assert self.client.say(command)[0][:1] in (b"2", b"4", b"5")

    @invariant()
    def next_hop_has_exactly_our_mails(self) -> None:
        got = []
        for mail in self.bridge.next_hop.mails:
            lines = [line for line in mail.commands if line[:4] in (b"MAIL", b"RCPT")]
            sender = lines[0].partition(b"<")[2].rpartition(b">")[0]
            recipients = [line.partition(b"<")[2].rpartition(b">")[0] for line in lines[1:]]
            content = mail.content.rpartition(b"\r\nX-Scan-")[2].partition(b"\r\n")[2]
            got.append((sender, recipients, content))
        assert got == self.mails


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("model"), {"limits": {"max_errors": 1000}}) as bridge:
        yield bridge


def test_any_order_of_commands_agrees_with_the_model(running: RunningBridge) -> None:
    """Replies, envelope and content follow RFC 5321, in whatever order the commands come."""
    Session.bridge, examples = running, settings.default.max_examples * 4 // 10  # 40 in a test run
    run_state_machine_as_test(
        Session,
        settings=settings(
            max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert Session.sessions >= examples, "too few sessions were run"
    assert Session.sent > examples, f"too few mails were sent: {Session.sent}"


WORDS = [
    *(
        b"EHLO x",
        b"HELO \xff",
        b"LHLO x",
        b"MAIL FROM:<a@b>",
        b"RCPT TO:<c@d>",
        b"DATA",
        b".",
        b"RSET",
        b"NOOP",
        b"VRFY \xff",
    ),
    *(
        b"XFORWARD ADDR=192.0.2.1",
        b"XCLIENT HELO=+FF",
        b"AUTH PLAIN x",
        b"AUTH LOGIN",
        b"STARTTLS",
        b"HELP \xdf",
        b"EXPN",
    ),
    *(
        b"MAIL FROM:<a@b> SIZE=\xc2\xb2",
        b"MAIL FROM:<\xff@b>",
        b"PROXY TCP4 1 2",
        b"\0",
        b"\r",
        b"\n",
        b" ",
        b"x" * 5000,
    ),
    *(b"MAIL", b"RCPT", b"\xff\xfe", b"MAIL FROM:<a@b> BODY=8BITMIME RET=FULL ENVID=+", b"\r\n", b"\r\n.\r\n", b"."),
]


@given(st.lists(st.sampled_from(WORDS) | st.binary(max_size=12), max_size=25), st.sampled_from([b"\r\n", b"\n", b""]))
@settings(
    max_examples=settings.default.max_examples * 3 // 2, deadline=None, suppress_health_check=list(HealthCheck)
)  # 150 in a test run
def test_no_bytes_break_the_session(running: RunningBridge, words: list[bytes], end: bytes) -> None:
    """Whatever a client sends, it gets well-formed replies, nothing is logged as a warning, and the session ends."""
    log = Complaints()
    logging.getLogger().addHandler(log)
    try:
        with running.client() as client, contextlib.suppress(ConnectionError):
            client.send(end.join(words) + b"\r\n")
            client.sock.shutdown(socket.SHUT_WR)
            while reply := client.reply():
                assert re.match(rb"[2345]\d\d[ -]", reply), reply
        until(lambda: not running.daemon.servers[0].listener.open, "all connections to be gone")
    finally:
        logging.getLogger().removeHandler(log)
    assert log.said == []


class Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
