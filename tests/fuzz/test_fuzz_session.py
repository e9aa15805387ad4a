"""Compares the listener with a model of SMTP, LMTP and PRDR, using command groups as a pipelining client sends them.

Whatever the groups and however the network splits them, the replies match the model, one for each command, and the
next hop gets each mail that was answered with 250 exactly once, for the recipients that got 250, and nothing else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.testing import RunningBridge, SmtpClient, answer, result, running_bridge, until

PEOPLE = (b"a@x.example", b'"b c"@x.example', b"no@x.example")  # the next hop refuses the last
COMMANDS = st.one_of(
    st.tuples(st.sampled_from([b"MAIL", b"PRDR"]), st.sampled_from([b"", *PEOPLE])),
    st.tuples(st.just(b"RCPT"), st.sampled_from([*PEOPLE, b"not an address"])),
    st.tuples(st.just(b"DATA"), st.sampled_from([b"deliver", b"deliver", b"bounce", b"drop", b"undecided", b"bare"])),
    st.tuples(st.just(b"DATA"), st.just(b"deliver")),
    st.tuples(st.sampled_from([b"RSET", b"NOOP", b"FROB", b"STARTTLS", b"HELLO", b"QUIT"]), st.just(b"")),
)
MAIL = [(b"HELLO", b""), (b"MAIL", b"a@x.example"), (b"RCPT", b"a@x.example"), (b"DATA", b"deliver")]
GROUPS = st.lists(COMMANDS, min_size=1, max_size=8) | st.builds(
    lambda a, b: a + b, st.just(MAIL), st.lists(COMMANDS, max_size=4)
)


@dataclass
class Model:
    """The state of the session. `say` returns the bytes of a command and the expected reply codes."""

    lmtp: bool
    greeted: bool = False
    sender: bytes | None = None
    each: bool = False  # one reply for each recipient
    recipients: list[bytes] = field(default_factory=list)
    over: bool = False

    def say(
        self, verb: bytes, word: bytes, occupied: bool, delivered: list[Any], number: int
    ) -> tuple[bytes, list[bytes]]:
        match verb:
            case b"HELLO":
                self.greeted = True
                self.forget()
                return (b"LHLO x" if self.lmtp else b"EHLO x") + b"\r\n", [b"250"]
            case b"MAIL" | b"PRDR":
                return b"MAIL FROM:<%b>%b\r\n" % (word, b" PRDR" if verb == b"PRDR" else b""), [
                    self._mail(verb, word, occupied)
                ]
            case b"RCPT":
                if self.sender is None:
                    code = b"503"
                elif b"@" in word:
                    code = b"250"
                    self.recipients.append(word)
                else:
                    code = b"501"
                return b"RCPT TO:<%b>\r\n" % word, [code]
            case b"DATA":
                if not self.recipients:
                    return b"DATA\r\n", [b"503"]
                if occupied:
                    self.forget()
                    return b"DATA\r\n", [b"451"]
                content = b"want: %b %d\r\n\r\n%b\r\n" % (
                    word,
                    number,
                    b"a\nb" if word == b"bare" else b"MAIL FROM:<x@y>\r\n..",
                )
                codes = self._content(word, content, delivered)
                return b"DATA\r\n" + content.replace(b"\r\n..", b"\r\n...") + b".\r\n", [b"354", *codes]
            case b"RSET":
                self.forget()
                return b"RSET\r\n", [b"250"]
            case b"QUIT":
                self.over = True
                return b"QUIT\r\n", [b"221"]
            case _:
                return verb + b"\r\n", [{b"NOOP": b"250", b"STARTTLS": b"454"}.get(verb, b"500")]

    def forget(self) -> None:
        self.sender, self.recipients, self.each = None, [], False

    def _mail(self, verb: bytes, word: bytes, occupied: bool) -> bytes:
        if not self.greeted or self.sender is not None:
            return b"503"
        if verb == b"PRDR" and self.lmtp:
            return b"555"
        if occupied:
            return b"451"
        self.sender, self.each = word, self.lmtp or verb == b"PRDR"
        return b"250"

    def _content(self, word: bytes, content: bytes, delivered: list[Any]) -> list[bytes]:
        """One reply, or one for each recipient; PRDR adds 353 before them and one for the mail after them."""
        refused = {b"bounce": b"550", b"bare": b"550", b"undecided": b"451", b"drop": b"250"}.get(word)
        codes = [refused or (b"550" if person == PEOPLE[2] else b"250") for person in self.recipients]
        if not self.each and b"550" in codes:
            codes = [b"550"] * len(codes)
        reached = [person for person, code in zip(self.recipients, codes, strict=True) if code == b"250"]
        if reached and refused is None:
            delivered.append((self.sender, reached, content))
        if self.lmtp:
            answers = codes
        elif self.each:
            answers = [b"353", *codes, b"250" if reached else codes[0]]
        else:
            answers = codes[:1]
        self.forget()
        return answers


class Conversation(RuleBasedStateMachine):
    bridges: dict[bool, RunningBridge]  # set by the test
    conversations = promised = 0  # of all runs

    @initialize(lmtp=st.booleans())
    def start(self, lmtp: bool) -> None:
        self.bridge, self.lmtp = self.bridges[lmtp], lmtp
        self.bridge.next_hop.mails.clear()
        self.bridge.scanner.submissions.clear()
        self.bridge.next_hop.replies[b"RCPT <%b>" % PEOPLE[2]] = b"550 5.1.1 No such user"
        self.bridge.scanner.reply = self._decide
        self.free = asyncio.Event()
        self.other: SmtpClient | None = None
        self.delivered: list[Any] = []
        self.number = 0
        self._connect()
        type(self).conversations += 1

    def _connect(self) -> None:
        self.client, self.model = self.bridge.client(), Model(self.lmtp)
        self.client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self.client.reply().startswith(b"220 ")

    async def _decide(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = self.bridge.scanner.submissions[-1].email.split()[1].decode()
        if word == "hold":
            await self.free.wait()
        writer.write(answer(200, result("deliver" if word == "hold" else word)))

    @rule(group=GROUPS, cuts=st.lists(st.integers(1, 60), max_size=4), hang_up=st.booleans())
    def speak(self, group: list[tuple[bytes, bytes]], cuts: list[int], hang_up: bool) -> None:
        """Sends the group in one write, or split anywhere into several.

        A client that sends QUIT may close its half immediately. If more than QUIT follows the dot of a mail, that
        mail would be abandoned, because nobody would read its reply.
        """
        sent, expected, contents = b"", [], []
        for verb, word in group:
            self.number += 1
            command, codes = self.model.say(verb, word, self.other is not None, self.delivered, self.number)
            sent += command
            expected += codes
            contents.append(b"354" in codes)
            if self.model.over:
                break
        for size in cuts:
            self.client.send(sent[:size])
            sent = sent[size:]
        self.client.send(sent)
        if self.model.over and hang_up and not any(contents[:-2]):
            self.client.sock.shutdown(socket.SHUT_WR)
        replies = [self.client.reply() for _ in expected]
        assert all(map(bytes.startswith, replies, expected)), (group, expected, replies)
        if self.model.over:
            assert self.client.line() == b"", "nothing may follow 221"
            self.client.close()
            self._connect()

    @precondition(lambda self: self.other is None)
    @rule()
    def occupy(self) -> None:
        """Another client takes the only slot."""
        scanner = self.bridge.scanner
        self._wait_for_the_slot()
        while scanner.arrived.acquire(blocking=False):
            pass
        self.free = asyncio.Event()  # before the scanner can look at it, or it would wait for another mail's event
        self.other = self.bridge.client()
        self.other.open(b"LHLO other" if self.lmtp else b"EHLO other")
        assert self.other.begin(b"<>", b"<a@x.example>").startswith(b"354")
        self.other.send(b"want: hold\r\n\r\nother\r\n.\r\n")
        assert scanner.arrived.acquire(timeout=60)

    def _wait_for_the_slot(self) -> None:
        """Also clears `_full_at`: for milliseconds after saturation only two mails enter; no model can predict that."""
        admission = self.bridge.daemon.admission
        until(lambda: admission.in_processing == 0, "a free slot")
        admission._full_at = float("-inf")

    @precondition(lambda self: self.other is not None)
    @rule()
    def let_go(self) -> None:
        other, self.other = self.other, None
        assert other is not None
        self.bridge.background.loop.call_soon_threadsafe(self.free.set)
        assert other.reply().startswith(b"250 ")
        assert other.say(b"QUIT")[0].startswith(b"221 ")
        other.close()
        self._wait_for_the_slot()
        self.delivered.append((b"", [b"a@x.example"], b"want: hold\r\n\r\nother\r\n"))

    @invariant()
    def next_hop_has_what_was_promised(self) -> None:
        got = [
            (_path(mail.commands, b"MAIL"), mail.recipients, _content(mail.content))
            for mail in self.bridge.next_hop.mails
        ]
        assert got == self.delivered

    def teardown(self) -> None:
        type(self).promised += len(getattr(self, "delivered", []))
        if getattr(self, "other", None) is not None:
            self.let_go()
        if hasattr(self, "client"):
            self.client.close()


def _path(commands: list[bytes], verb: bytes) -> bytes:
    return [line for line in commands if line.startswith(verb)][-1].partition(b"<")[2].rpartition(b">")[0]


def _content(content: bytes) -> bytes:
    """Without the header fields that the bridge adds."""
    return content[content.index(b"want:") :]


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, RunningBridge]]:
    config = {"limits": {"max_errors": 1000}, "admission": {"max_in_processing": 1, "throttle_threshold": 1}}
    with ExitStack() as stack:
        yield {
            lmtp: stack.enter_context(
                running_bridge(tmp_path_factory.mktemp("bridge"), config, protocol="lmtp" if lmtp else "smtp")
            )
            for lmtp in (False, True)
        }


def test_groups_of_commands_agree_with_the_model(bridges: dict[bool, RunningBridge]) -> None:
    """SMTP, LMTP and PRDR, pipelined, split anywhere, saturated or not: no mail is lost, duplicated or mixed up."""
    Conversation.bridges = bridges
    examples = settings.default.max_examples * 3 // 10  # 30 in a test run
    run_state_machine_as_test(
        Conversation,
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert Conversation.conversations >= examples, "too few sessions were run"
    assert Conversation.promised >= examples, "too few mails were sent"
