"""The log: bounded under attack, with severities for journald, and searchable by Message-ID."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.filter.headers import message_id, subject
from bridge.observe import log_format, log_throttle, log_writer
from bridge.observe.log_throttle import LogThrottle
from bridge.observe.redaction import Redaction
from bridge.testing import SmtpClient, free_port
from tests.daemon.process_kit import running, until
from tests.observe.observe_kit import certificate
from tests.observe.test_observe_metrics import scrape, value


def line(text: str = "%s connected", *arguments: object, place: int = 1) -> logging.LogRecord:
    return logging.LogRecord("bridge.x", logging.WARNING, "file.py", place, text, arguments or ("a client",), None)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_is_a_few_lines_and_a_count() -> None:
    """A burst of twenty, then one line a second with the count of the others, and a final count."""
    clock, held = Clock(), []
    limit = LogThrottle(clock)
    limit.on_suppressed = lambda: held.append(1)
    passed = [record for record in (line() for _ in range(1000)) if limit.filter(record)]
    assert len(passed) == log_throttle.BURST and len(held) == 1000 - log_throttle.BURST
    assert not list(limit.summaries())
    clock.now += 1
    after = line()
    assert limit.filter(after) and after.getMessage() == "a client connected (and 980 more like it)"
    assert not limit.filter(line()) and not limit.filter(line("%s%%", "50"))
    clock.now += 1
    assert [record.getMessage() for record in limit.summaries()] == ["50% (and 1 more like it)"]
    clock.now += 100
    assert not list(limit.summaries())


def test_a_flood_of_one_kind_hides_no_other() -> None:
    limit = LogThrottle(Clock())
    assert sum(limit.filter(line(place=1)) for _ in range(100)) == log_throttle.BURST
    assert limit.filter(line(place=2))


def test_several_threads_lose_no_line_from_the_count() -> None:
    limit, held = LogThrottle(Clock()), []
    limit.on_suppressed = lambda: held.append(1)
    passed: list[bool] = []
    threads = [
        threading.Thread(target=lambda: passed.extend(limit.filter(line()) for _ in range(500))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == log_throttle.BURST and len(held) == 2000 - log_throttle.BURST


def test_the_writer_reports_the_end_of_a_flood(tmp_path: Path) -> None:
    """Even if no further line of that kind follows."""
    with (tmp_path / "log").open("wb") as file:
        writer = log_writer.LineWriter(file.fileno())
        writer.setFormatter(log_format.KeyValueFormatter())
        for _ in range(100):
            writer.handle(line())
        until(lambda: "and 79 more like it" in (tmp_path / "log").read_text(), "the count in the log")
        writer.close()
    assert len((tmp_path / "log").read_text().splitlines()) == log_throttle.BURST + 1


@pytest.mark.parametrize("as_json", [False, True])
def test_journald_gets_the_severity_of_each_line(tmp_path: Path, monkeypatch, as_json) -> None:
    """`journalctl -p warning` works; journald removes the prefix. Other outputs have none."""
    for journal in (True, False):
        with (tmp_path / "log").open("wb") as file:
            found = os.fstat(file.fileno())
            stream = f"{found.st_dev}:{found.st_ino}" if journal else "1:2"
            monkeypatch.setenv("JOURNAL_STREAM", stream)
            writer = log_writer.LineWriter(file.fileno())
            writer.setFormatter(log_format.JsonFormatter() if as_json else log_format.KeyValueFormatter())
            writer.handle(line())
            writer.put("id=1")
            writer.close()
        first, second = (tmp_path / "log").read_text().splitlines()
        assert second == ("<6>id=1" if journal else "id=1")
        assert first.startswith("<4>") == journal
        assert not as_json or json.loads(first.removeprefix("<4>"))["level"] == "warning"


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"Message-ID: <a@b>\r\nX: y\r\n\r\n", "<a@b>"),
        (b"X: y\r\nMESSAGE-ID:<a@b>  \r\n\r\n", "<a@b>"),
        (b"X: y\r\nMessage-Id:\r\n <a@b>\r\nMessage-ID: <second@b>\r\n\r\n", "<a@b>"),
        (b"X: y\r\nX-Message-ID: <a@b>\r\n\r\n", ""),
        (b"Message: x\r\n\r\n", ""),
        (b"Message-ID:\r\n\r\n", ""),
        (b"Message-ID: \xff\x1b[2J\r\n\r\n", "\ufffd\x1b[2J"),
        (b"", ""),
    ],
)
def test_message_id_is_found_as_mail_servers_find_it(head: bytes, found: str) -> None:
    assert message_id(head, head.lower()) == found


def test_fields_that_records_keep_are_bounded() -> None:
    """Thousands of records may wait for a slow database, each with what its mail's author wrote."""
    head = b"Subject: " + b"s" * 790 + b"\r\n" + b" more" * 100 + b"\r\nMessage-ID: <" + b"m" * 900_000 + b"@b>\r\n"
    assert len(message_id(head, head.lower())) == 2050
    assert len(subject(head, head.lower())) == 800


BAD_SESSIONS = 2000


def test_thousands_of_bad_sessions_cost_a_handful_of_lines(tmp_path: Path) -> None:
    """Untrusted clients and broken handshakes: all are counted, few are logged, every mail is logged."""
    tls = certificate(tmp_path)
    port = free_port()
    listener = {"name": "mx", "address": f"127.0.0.1:{port}", "trusted_clients": ["127.0.0.1/32"], "tls": tls}
    with running(tmp_path, listeners=[listener]) as (bridge, *_):
        bridge.port = port
        began = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(untrusted_session, [port] * BAD_SESSIONS))
            list(pool.map(broken_handshake, [port] * 100))
        bridge.send()
        until(lambda: events(bridge.log, "refused: untrusted") == BAD_SESSIONS, "the last count of untrusted clients")
        until(lambda: events(bridge.log, "TLS handshake failed") == 100, "the last count of handshakes")
        lines, seconds = bridge.log.splitlines(), time.monotonic() - began
        assert len(bridge.mail_lines(1)) == 1
        assert len(lines) < 2 * (log_throttle.BURST + seconds) + 20, len(lines)
        held = value(scrape(bridge.admin), "scanbridge_log_lines_held_back_total")
        assert BAD_SESSIONS + 100 - len(lines) <= held < BAD_SESSIONS + 100


def events(log: str, words: str) -> int:
    """How many events the lines with these words report."""
    lines = [line for line in log.splitlines() if words in line]
    return len(lines) + sum(int(count) for line in lines for count in re.findall(r"and (\d+) more like it", line))


def untrusted_session(port: int) -> None:
    with SmtpClient(port, "127.0.0.2") as client:
        client.send(b"EHLO x\r\nMAIL FROM:<a@b.example>\r\nQUIT\r\n")
        assert client.is_cut()


def broken_handshake(port: int) -> None:
    with SmtpClient(port) as client:
        client.open()
        client.say(b"STARTTLS")
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        client.sock.shutdown(socket.SHUT_WR)
        client.is_cut()


def test_the_service_alone_logs_visible_text() -> None:
    """Its lines have no quotes: a message, or a traceback that quotes a mail, begins no line of its own."""
    formatter = log_format.VisibleFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("\x1b[2J\u202e\x9b")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("x", logging.INFO, "", 0, "%s", ("a\x1b]0;x\x07\r\nINFO forged\u2028\x7f",), error)
    shown = formatter.format(record)
    assert shown.startswith("INFO a?]0;x???INFO forged??\nTraceback")
    assert shown.endswith("ValueError: ?[2J??") and all(line.isprintable() for line in shown.split("\n"))


def test_plain_lines_and_their_tracebacks_show_no_more_of_an_address_than_the_log_may() -> None:
    formatter = log_format.VisibleFormatter("%(levelname)s %(message)s", Redaction("domain"))
    try:
        raise ValueError("joe@b.example")
    except ValueError:
        error = sys.exc_info()
    shown = formatter.format(logging.LogRecord("x", logging.INFO, "", 0, "by %s", ("jane@a.example",), error))
    assert shown.startswith("INFO by *@a.example\n") and shown.endswith("ValueError: *@b.example")
    assert "jane" not in shown and "joe" not in shown


@pytest.mark.parametrize(
    "write", [log_format.KeyValueFormatter(), log_format.JsonFormatter()], ids=["key_value", "json"]
)
def test_no_character_that_acts_on_a_terminal_is_logged(write: logging.Formatter) -> None:
    """Not even DEL, which JSON does not escape."""
    text = "\x1b[2J\x7f\x9b\u202e\u2066\u200b\u2028\r\n"
    shown = write.format(logging.LogRecord("x", logging.INFO, "", 0, "%s", (text,), None))
    assert shown.isascii() and shown.isprintable()
