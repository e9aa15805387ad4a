"""Log lines: bounded, escaped, and parseable whatever clients and the scanner send."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import ScanUnavailable
from bridge.filter.late.decisions import LateStatus
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.list_match import ListAction, ListMatch
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.trace_context import new_trace
from bridge.mail.transaction import Transaction
from bridge.observe import log_format, log_writer, mail_log
from bridge.testing import until

FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]*)')


def record(text: str = "x", recipients: int = 1, result: AnalysisResult | None = None) -> Record:
    """A mail in which every value that others control is `text`."""
    client = Client("192.0.2.1", helo=text, ident=text, login=text)
    session = Session("S1", "mx", "127.0.0.1", client, "TLSv1.3")
    envelope = Envelope(text, tuple(Recipient(text) for _ in range(recipients)))
    tx = Transaction("ID1", session, envelope, Message(Spool(10)), 0.0, 1.0)
    outcome = Outcome(Action.RELAY, Reply(250, "2.0.0", text), result or AnalysisResult(Decision.DELIVER, text, text))
    return Record(tx, 100, None, outcome, ScanUnavailable(text), 0.001, 0.2, 0.03, text)


def line_of(mail: Record, as_json: bool = False) -> str:
    lines: list[str] = []
    mail_log.MailLog(lines.append, as_json).decided(mail)
    (line,) = lines
    return line


def general_form(mail: Record) -> str:
    """The line as it is formatted for mails that are not ordinary."""
    return log_format.key_value(mail_log._fields(mail), mail_log._NEVER_QUOTED)


def read(line: str) -> dict[str, Any]:
    found = list(FIELD.finditer(line))
    assert " ".join(match[0] for match in found) == line
    return {match[1]: json.loads(match[2]) if match[2].startswith('"') else match[2] for match in found}


@st.composite
def nearly_ordinary(draw: st.DrawFn) -> Record:
    """A mail with nothing special about it, except for up to two fields."""
    special = draw(st.sets(st.integers(0, 26), max_size=2))
    numbers = count()

    def usually(usual: Any, *others: Any) -> Any:
        return draw(st.sampled_from(others)) if next(numbers) in special else usual

    def word(usual: str | None, *others: Any) -> Any:
        return usually(usual, "", "other", "a b", "a\nb", '"', "é", "x" * 1001, *others)

    client = Client(word("192.0.2.1", None), helo=word("a.example", None), ident=word(None), login=word(None))
    session = Session("S1", "mx", "127.0.0.1", client, usually(None, "TLSv1.3"))
    recipients = (Recipient(word("to@example.org")),) * usually(1, 0, 2, 30)
    tx = Transaction("ID1", session, Envelope(word("from@example.org"), recipients), Message(Spool(10)), 0.0, 1.0)
    tags = usually((), ("a",), ("a:b", "c"), ("a b",), ("x next_id=1",), ("y" * 1001,), ("",))
    result = usually(AnalysisResult(Decision.DELIVER, word("clean", "x tags=y"), word("1"), tags), None)
    reply = Reply(250, "2.0.0", word("Ok"))
    outcome = Outcome(Action.RELAY, reply, result, (), usually((), (reply,) * len(recipients)))
    record = Record(
        tx, draw(st.integers(0, 10**12)), word(None), usually(outcome, None), usually(None, ScanUnavailable(""))
    )
    seconds = st.floats(0, 1e6)
    record.wait_s, record.scan_s, record.relay_s = draw(seconds), draw(seconds), draw(seconds)
    record.message_id, record.next_id = word("<1@example.org>"), word("")
    record.trace, record.late, record.would = (
        usually(None, new_trace()),
        usually(None, *LateStatus),
        usually(None, *Action),
    )
    record.listed = usually(None, ListMatch("list", "entry", ListAction.SKIPPED))
    record.at = usually("", "mail", "rcpt")
    record.rule, record.unscanned = usually("policy.deliver", ""), usually("", "released")
    record.doubts = usually((), ("nul",))
    assert next(numbers) == 27, "every field may be special"
    return record


@settings(max_examples=500)
@given(nearly_ordinary())
def test_the_fast_form_equals_the_general_form(mail: Record) -> None:
    """Or it returns None, and the general form is used."""
    assert mail_log._ordinary_line(mail) in (None, general_form(mail))


@pytest.mark.parametrize("ident", [None, "4XyZ"])
@pytest.mark.parametrize("next_id", ["", "4Abc"])
def test_ordinary_mail_uses_the_fast_form(ident: str | None, next_id: str) -> None:
    """The comparison above would also pass if the fast form were never used."""
    mail = record()
    session = replace(mail.tx.session, client=Client("192.0.2.1", helo="a.example", ident=ident), tls=None)
    mail.tx, mail.error, mail.message_id, mail.next_id = replace(mail.tx, session=session), None, "<1@x>", next_id
    mail.rule = "policy.deliver"
    assert mail_log._ordinary_line(mail) == general_form(mail) == line_of(mail)


@given(st.text(st.characters(), max_size=300) | st.text('\r\n\x1b\x00"\\ =\u2028\udcff', max_size=30))
def test_any_text_makes_one_printable_line_that_reads_back(text: str) -> None:
    """Parsing key=value and JSON returns exactly the original text; no control character gets through."""
    plain, machine = line_of(record(text)), line_of(record(text), as_json=True)
    for line in (plain, machine):
        assert re.fullmatch(r"[\x20-\x7e]*", line)
    assert read(plain)["helo"] == json.loads(machine)["helo"] == text
    assert read(plain)["from"] == f"<{text}>"
    assert list(read(plain))[:3] == ["id", "session", "listener"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("text", ["v" * 1_000_000, "Traceback " * 100_000])
def test_a_line_is_bounded(text: str, as_json: bool) -> None:
    """A verdict of a mebibyte and a thousand recipients still make one line of a few KB."""
    assert len(line_of(record(text, recipients=1000), as_json)) < 20_000


def test_recipients_beyond_twenty_are_counted_and_not_named() -> None:
    """`nrcpt` has the total number."""
    fields = read(line_of(record("a@b", recipients=21)))
    assert fields["to"].count("<a@b>") == 20 and fields["to"].endswith(",...") and fields["nrcpt"] == "21"


def test_a_mail_whose_client_disconnected_is_logged() -> None:
    """Without a reply, because none was sent."""
    mail = record()
    mail.outcome = None
    fields = read(line_of(mail))
    assert fields["action"] == "cancelled" and "reply" not in fields and "decision" not in fields


def formatted(formatter: logging.Formatter, text: str, *arguments: object, error: bool = False) -> str:
    try:
        raise ValueError("inner\nline")
    except ValueError:
        info = sys.exc_info() if error else None
    return formatter.format(logging.LogRecord("bridge.x", logging.WARNING, "", 0, text, arguments, info))


def test_other_lines_have_the_same_form() -> None:
    """A traceback is one field of one line."""
    line = read(formatted(log_format.KeyValueFormatter(), "hello %s", "wor\x1bld", error=True))
    assert line["level"] == "warning" and line["logger"] == "bridge.x" and line["msg"] == "hello wor\x1bld"
    assert line["trace"].startswith("Traceback") and line["trace"].endswith("ValueError: inner\nline")
    machine = json.loads(formatted(log_format.JsonFormatter(), "hello", error=True))
    assert machine["msg"] == "hello" and "ValueError" in machine["trace"] and "time" in machine


def writer(fd: int) -> tuple[log_writer.LineWriter, list[int]]:
    lost: list[int] = []
    made = log_writer.LineWriter(fd, lambda: lost.append(1))
    made.setFormatter(log_format.KeyValueFormatter())
    return made, lost


def test_the_writer_writes_every_line_before_it_ends(tmp_path: Path) -> None:
    """Thousands of lines from several threads, all complete."""
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


def test_a_line_that_a_full_disk_cut_off_swallowed_the_next_one(tmp_path: Path) -> None:
    """Once there was room again, the next line began in the middle of the old one: two mails looked like one."""
    with (tmp_path / "log").open("wb") as file:
        log, lost = writer(file.fileno())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            log.put("x" * 10_000)
            until(lambda: lost == [1], "the line to be lost")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.put("the next one")
        log.close()
    assert (tmp_path / "log").read_text().splitlines() == ["x" * 4096, "the next one"]


SIBLING = """
import sys
from bridge.observe import log_writer
writer = log_writer.set_up("text", "info", shared=True)
print("ready", flush=True)
sys.stdin.read()
for number in range(3000):
    writer.put(f"{sys.argv[1]}:{number}:{'x' * 300}")
writer.close()
"""


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_lines_of_several_processes_are_not_mixed(tmp_path: Path, kind: str) -> None:
    """Workers write to one standard error at the same time: long writes to a file, short ones to a pipe."""
    with (tmp_path / "log").open("wb") as file, ExitStack() as stack:
        reader = stack.enter_context(
            subprocess.Popen(["dd", "bs=700", "status=none"], stdin=subprocess.PIPE, stdout=file)
        )
        target, pipe = file if kind == "file" else reader.stdin, subprocess.PIPE
        siblings = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", SIBLING, str(n)], stdin=pipe, stdout=pipe, stderr=target)
            )
            for n in range(3)
        ]
        for sibling in siblings:
            assert sibling.stdout is not None and sibling.stdout.readline() == b"ready\n"
        for sibling in siblings:
            assert sibling.stdin is not None
            sibling.stdin.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{n}:{i}:{'x' * 300}" for n in range(3) for i in range(3000))


def test_a_blocked_log_costs_lines_and_bounded_memory() -> None:
    """If nothing reads the log, the queue fills, further lines are counted, and no caller waits."""
    reading, writing = os.pipe()
    log, lost = writer(writing)
    for _ in range(log_writer.MAX_LINES + 3000):
        log.put("x" * 100)
    assert log.waiting <= log_writer.MAX_LINES and lost
    os.close(reading)  # the writer thread gets EPIPE and drops the remaining lines
    log.close()
    os.close(writing)
    assert len(lost) >= log_writer.MAX_LINES


def test_a_log_call_with_a_mistake_does_not_raise() -> None:
    """It is counted as a lost line."""
    with Path("/dev/null").open("wb") as file:
        log, lost = writer(file.fileno())
        log.emit(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("not a number",), None))
        log.close()
    assert lost == [1]
