"""Header fields: forged ones are removed, ours are added, and the rest of the mail is unchanged."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.scanning import AnalysisResult, Decision
from bridge.filter.header_checks import count_received
from bridge.filter.headers import HeaderEditor
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from tests.processor_time import fair_cpu_s

EDITOR = HeaderEditor("X-Scan-", "bridge.example")


@pytest.mark.parametrize(
    ("head", "stripped"),
    [
        (b"X-Scan-Decision: deliver\r\nTo: a\r\n", b"To: a\r\n"),
        (b"To: a\r\nX-Scan-Decision: deliver\r\n", b"To: a\r\n"),
        (b"To: a\r\nx-sCAN-decision: deliver\r\nCc: b\r\n", b"To: a\r\nCc: b\r\n"),
        (b"To: a\r\nX-Scan-Verdict: clean\r\n and\r\n\tclean\r\nCc: b\r\n", b"To: a\r\nCc: b\r\n"),
        (b"To: a\r\nX-Scan-Verdict:\r\n \r\n clean\r\nCc: b\r\n", b"To: a\r\nCc: b\r\n"),
        (b"X-Scan-A: 1\r\nX-Scan-B: 2\r\nTo: a\r\nX-Scan-A: 3\r\n", b"To: a\r\n"),
        (b"To: a\r\nX-Scan-Id : 1\r\n", b"To: a\r\n"),  # white space before the colon
        (b"X-Scan-Anything\r\nTo: a\r\n", b"To: a\r\n"),  # no colon at all
        (b"X-Scan-Id: \xff\xfe\r\nTo: a\r\n", b"To: a\r\n"),
        (b"X-Scan-Id: 1\r\n", b""),
    ],
)
def test_forged_fields_are_stripped(head: bytes, stripped: bytes) -> None:
    """Folded, in odd letter case, repeated, malformed: none of ours remains."""
    assert EDITOR.may_be_in(head.lower())
    assert EDITOR.strip(head) == stripped


@pytest.mark.parametrize(
    "head",
    [
        b"To: a\r\n",
        b"",
        b"Subject: X-Scan-Decision: deliver\r\n",
        b"Subject: about\r\n X-Scan-Decision: deliver\r\n",  # a folded line is part of Subject
        b"X-Scanner: other\r\n",
        b"XX-Scan-Id: other\r\n",
    ],
)
def test_other_fields_stay(head: bytes) -> None:
    """`strip` returns None, so the mail is not rewritten."""
    assert EDITOR.strip(head) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"X-Scan-Id", b"x-scan-X", b"X-SCAN-", b"To", b"X-Sca", b"Subject", b"XX-Scan-Id"]),
            st.sampled_from([b": v", b":", b" : x-scan-y", b": X-Scan-Z:", b""]),
            st.lists(st.sampled_from([b" folded", b"\tX-Scan-Id: no", b" "]), max_size=2),
        ),
        max_size=8,
    )
)
def test_exactly_our_fields_are_removed(fields: list[tuple[bytes, bytes, list[bytes]]]) -> None:
    """Every other byte remains in its place."""
    lines = [(name, b"\r\n".join([name + value, *folds]) + b"\r\n") for name, value, folds in fields]
    head = b"".join(line for _, line in lines)
    kept = b"".join(line for name, line in lines if not name.lower().startswith(b"x-scan-"))
    assert EDITOR.strip(head) == (kept if kept != head else None)
    assert EDITOR.may_be_in(head.lower()) or kept == head


def test_stripping_is_fast_on_a_hostile_head() -> None:
    """A mebibyte of lines that almost match takes a negligible time."""
    head = b"X-Scan-" * 70_000 + b"\r\n" + b" \r\n" * 100_000
    assert EDITOR.strip(head) == b""
    assert EDITOR.strip(b"X-Scan" * 100_000 + b"\r\n") is None


RESULT = AnalysisResult(Decision.QUARANTINE, "g-1", "virus", ("a:b", "c"))


def test_the_added_fields_have_all_known_values() -> None:
    """Id, decision, verdict, tags and ggrid; empty values are left out."""
    assert EDITOR.stamp("ID1", RESULT) == (
        ("X-Scan-Id", "ID1"),
        ("X-Scan-Decision", "quarantine"),
        ("X-Scan-Verdict", "virus"),
        ("X-Scan-Tags", "a:b, c"),
        ("X-Scan-Ggrid", "g-1"),
    )
    assert EDITOR.stamp("ID1", AnalysisResult(Decision.DELIVER)) == (
        ("X-Scan-Id", "ID1"),
        ("X-Scan-Decision", "deliver"),
    )


def test_an_unscanned_mail_is_marked_as_such() -> None:
    """The reader can see that the mail was not scanned."""
    assert EDITOR.stamp("ID1", None, "unavailable") == (("X-Scan-Id", "ID1"), ("X-Scan-Unscanned", "unavailable"))


@pytest.mark.parametrize("text", ["a\r\nBcc: x", "a\nb", "\x1b[0m", "\0", "\u00e9", "x" * 5000, " \t "])
def test_text_from_the_scanner_cannot_forge_a_header(text: str) -> None:
    """One field is one line of printable ASCII, at most 998 characters long."""
    result = AnalysisResult(Decision.DELIVER, text, text, (text, text))
    lines = EDITOR.lines(transaction(), EDITOR.stamp("ID1", result)).decode("ascii")
    for line in lines.split("\r\n")[:-1]:
        assert re.fullmatch(r"(Received: |X-Scan-|\t)[\x20-\x7e]*", line) and len(line) <= 998


def transaction(**session: object) -> Transaction:
    values = {"id": "S1", "listener": "mx", "peer": "127.0.0.1", "helo": "mail.example", **session}
    envelope = Envelope("a@b", (Recipient("c@d"),))
    return Transaction("ID1", Session(client=Client(), **values), envelope, Message(Spool(1000)), 0.0, 90.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("session", "start"),
    [
        ({}, "from mail.example ([127.0.0.1])\r\n\tby bridge.example (scanbridge) with ESMTP id ID1;\r\n\t"),
        ({"tls": "TLSv1.3"}, "from mail.example ([127.0.0.1])\r\n\tby bridge.example (scanbridge) with ESMTPS id ID1;"),
        ({"esmtp": False}, "from mail.example ([127.0.0.1])\r\n\tby bridge.example (scanbridge) with SMTP id ID1;"),
        ({"helo": None, "peer": "unix"}, "from unknown ([unix])\r\n"),
        ({"helo": "a) b\r\n(\x1b\u00e9"}, "from a??b????? ([127.0.0.1])\r\n"),
    ],
)
def test_received_names_the_peer(session: dict[str, object], start: str) -> None:
    """RFC 5321 4.4; no HELO can break the line."""
    lines = EDITOR.lines(transaction(**session), ()).decode("ascii")
    assert lines.startswith("Received: " + start)
    assert lines.endswith("\r\n") and lines.count("\r\n") == 3


def test_received_can_be_left_out() -> None:
    """`headers.received: false`."""
    editor = HeaderEditor("X-Scan-", "bridge.example", received=False)
    assert editor.lines(transaction(), (("X-Scan-Id", "ID1"),)) == b"X-Scan-Id: ID1\r\n"


@pytest.mark.parametrize(
    ("head", "count"),
    [
        (b"", 0),
        (b"To: a\r\n", 0),
        (b"Received: x\r\n", 1),
        (b"To: a\r\nreceived: x\r\nRECEIVED: y\r\n", 2),
        (b"Received: x\r\n\tReceived: folded\r\nX-Received: no\r\nReceived-SPF: no\r\n", 1),
    ],
)
def test_received_fields_are_counted(head: bytes, count: int) -> None:
    """In any letter case; fields that only look similar do not count."""
    assert count_received(head.lower()) == count


@pytest.mark.parametrize(
    ("line", "limit_s"),
    [
        (b"X-Scan-\r\n", 0.14),
        (b"X-Scan-\r\na:\r\n", 0.14),
        (b"Authentication-Results:x\r\n", 0.22),
        (b"Authentication-Results:mx.example.org\r\n", 0.22),
        (b"Authentication-Results:mx.example.org 1\r\n", 0.22),
    ],
)
def test_a_mebibyte_of_our_fields_stopped_all_sessions(line: bytes, limit_s: float) -> None:
    """For a quarter of a second and more: each field was searched for, and read, on its own."""
    editor = HeaderEditor("X-Scan-", "bridge.example", authserv_id="mx.example.org")
    head = line * ((1 << 20) // len(line))
    assert fair_cpu_s(lambda: editor.strip(head), attempts=3) < limit_s
