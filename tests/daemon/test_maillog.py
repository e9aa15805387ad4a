"""Log lines: bounded, escaped, and readable by machines whatever strangers put in them."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import maillog
from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import ScanUnavailable
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction

FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]*)')


def record(text: str = "x", recipients: int = 1, result: AnalysisResult | None = None) -> Record:
    """A mail whose every stranger's word is `text`."""
    client = Client("192.0.2.1", helo=text, ident=text, login=text)
    session = Session("S1", "mx", "127.0.0.1", client, "TLSv1.3")
    envelope = Envelope(text, tuple(Recipient(text) for _ in range(recipients)))
    tx = Transaction("ID1", session, envelope, Message(Spool(10)), 0.0, 1.0)
    outcome = Outcome(Action.RELAY, Reply(250, "2.0.0", text), result or AnalysisResult(Decision.DELIVER, text, text))
    return Record(tx, 100, None, outcome, ScanUnavailable(text), 0.001, 0.2, 0.03, text)


def line_of(one: Record, as_json: bool = False) -> str:
    lines: list[str] = []
    maillog.MailLog(lines.append, as_json).decided(one)
    (line,) = lines
    return line


def read(line: str) -> dict[str, Any]:
    found = list(FIELD.finditer(line))
    assert " ".join(one[0] for one in found) == line
    return {one[1]: json.loads(one[2]) if one[2].startswith('"') else one[2] for one in found}


@given(st.text(st.characters(), max_size=300) | st.text('\r\n\x1b\x00"\\ =\u2028\udcff', max_size=30))
def test_any_text_makes_one_printable_line_that_reads_back(text: str) -> None:
    """Key=value and JSON both give back exactly what came, and no control character gets through."""
    plain, machine = line_of(record(text)), line_of(record(text), as_json=True)
    for line in (plain, machine):
        assert re.fullmatch(r"[\x20-\x7e]*", line)
    assert read(plain)["helo"] == json.loads(machine)["helo"] == text
    assert read(plain)["from"] == f"<{text}>"
    assert list(read(plain))[:3] == ["id", "session", "listener"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("text", ["v" * 1_000_000, "Traceback " * 100_000])
def test_a_line_is_bounded(text: str, as_json: bool) -> None:
    """A scanner with a verdict of a mebibyte, a thousand recipients: still one line of a few KB."""
    assert len(line_of(record(text, recipients=1000), as_json)) < 20_000


def test_recipients_beyond_twenty_are_counted_and_not_named() -> None:
    """`nrcpt` has the number."""
    fields = read(line_of(record("a@b", recipients=21)))
    assert fields["to"].count("<a@b>") == 20 and fields["to"].endswith(",...") and fields["nrcpt"] == "21"


def test_a_mail_whose_client_went_away_has_its_line() -> None:
    """Without a reply, because nobody heard one."""
    one = record()
    one.outcome = None
    fields = read(line_of(one))
    assert fields["action"] == "cancelled" and "reply" not in fields and "decision" not in fields


def formatted(formatter: logging.Formatter, text: str, *arguments: object, error: bool = False) -> str:
    try:
        raise ValueError("inner\nline")
    except ValueError:
        info = sys.exc_info() if error else None
    return formatter.format(logging.LogRecord("bridge.x", logging.WARNING, "", 0, text, arguments, info))


def test_other_lines_have_the_same_form() -> None:
    """A traceback is one field of one line."""
    line = read(formatted(maillog.KeyValue(), "hello %s", "wor\x1bld", error=True))
    assert line["level"] == "warning" and line["logger"] == "bridge.x" and line["msg"] == "hello wor\x1bld"
    assert line["trace"].startswith("Traceback") and line["trace"].endswith("ValueError: inner\nline")
    machine = json.loads(formatted(maillog.Json(), "hello", error=True))
    assert machine["msg"] == "hello" and "ValueError" in machine["trace"] and "time" in machine


def writer(fd: int) -> tuple[maillog.LineWriter, list[int]]:
    lost: list[int] = []
    made = maillog.LineWriter(fd, lambda: lost.append(1))
    made.setFormatter(maillog.KeyValue())
    return made, lost


def test_the_writer_writes_every_line_before_it_ends(tmp_path: Path) -> None:
    """Thousands at once, from several threads, none torn."""
    with (tmp_path / "log").open("wb") as file:
        log, lost = writer(file.fileno())
        threads = [
            threading.Thread(target=lambda n=n: [log.put(f"{n}:{i}:{'x' * 100}") for i in range(2000)])  # type: ignore[misc]
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close()
        log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 6000 and not lost
    assert sorted(set(lines)) == sorted(f"{n}:{i}:{'x' * 100}" for n in range(3) for i in range(2000))


def test_a_blocked_log_costs_lines_and_bounded_memory() -> None:
    """Nobody reads: the buffer fills, the rest is counted, and nobody waits."""
    reading, writing = os.pipe()
    log, lost = writer(writing)
    for _ in range(maillog._MAX_LINES + 3000):
        log.put("x" * 100)
    assert len(log._lines) <= maillog._MAX_LINES and lost
    os.close(reading)  # the writer's thread wakes up with EPIPE and goes through the rest
    log.close()
    os.close(writing)
    assert len(lost) >= maillog._MAX_LINES


def test_a_log_call_with_a_mistake_does_not_raise() -> None:
    """It is counted as a lost line."""
    with Path("/dev/null").open("wb") as file:
        log, lost = writer(file.fileno())
        log.emit(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("not a number",), None))
        log.close()
    assert lost == [1]
