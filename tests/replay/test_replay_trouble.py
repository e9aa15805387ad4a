"""Scanners that are full, slow, gone, or hostile: one mail's trouble is its own, and nothing reaches the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.testing import FakeScanner, answer, free_port, result
from tests.quarantine.quarantine_kit import desk
from tests.replay.replay_kit import DELIVER, Replays


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Replays]:
    with desk(tmp_path) as made:
        for number in range(6):
            made.send(b"Subject: mail %d\r\n\r\nhello %d\r\n" % (number, number))
        made.bridge.scanner.submissions.clear()
        made.bridge.scanner.reply = DELIVER
        yield Replays(made)


def scanner_of(at: Replays) -> FakeScanner:
    return at.desk.bridge.scanner


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_mails_at_a_time_than_allowed(at: Replays, concurrency: int) -> None:
    """All of the places are used, and not one more."""
    scanner, met = scanner_of(at), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scanner.in_flight == concurrency:
            met.set()
        async with asyncio.timeout(30):
            await met.wait()
        writer.write(DELIVER)

    scanner.reply = slow
    code, data = at.json("--concurrency", str(concurrency))
    assert code == 1 and data["totals"]["changed"] == 6 and scanner.max_in_flight == concurrency


@pytest.mark.parametrize("full", [answer(429), answer(503, b"", "Retry-After: 1")], ids=["429", "503"])
def test_a_scanner_without_room_is_asked_again(at: Replays, full: bytes) -> None:
    """Every mail gets its decision, after pauses."""
    scanner = scanner_of(at)

    async def soon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(full if len(scanner.submissions) < 5 else DELIVER)

    scanner.reply = soon
    code, data = at.json()
    assert code == 1 and data["totals"]["changed"] == 6
    assert len(scanner.submissions) == 6 + 4


def test_a_scanner_that_stays_full_ends_in_failures(at: Replays) -> None:
    """After the time for one mail; exit code 75 says that it may work later."""
    scanner_of(at).reply = answer(429)
    code, data = at.json("--timeout", "1s")
    assert code == 75 and data["totals"]["failed"] == 6
    assert all("saturated" in mail["now"]["problem"] for mail in data["mails"])


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 99999999\r\n\r\n" + b"{" * 2_000_000)


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    "reply",
    [
        answer(200, b"not JSON \x1b[2J"),
        answer(200, b'{"decision": 7}'),
        answer(500, b'{"error": "\\u001b[31m"}'),
        answer(413),
        answer(302, b"", "Location: http://127.0.0.1:1/"),
        b"\x1b]0;owned\x07\r\n\r\n",
        _reset,
        _endless,
        _hang,
    ],
    ids=["text", "number", "500", "413", "redirect", "no HTTP", "reset", "endless", "hang"],
)
def test_a_mail_on_which_the_scanner_fails_does_not_stop_the_rest(at: Replays, reply: object) -> None:
    """It is reported and counted; no control character of the scanner's is shown."""
    scanner_of(at).reply_to = {b"hello 3": reply}  # type: ignore[dict-item]
    done = at.run("--timeout", "3s", "--all")
    assert done.returncode == 1
    assert "6 mails replayed: 5 changed, 1 failed" in done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr


def test_words_of_a_hostile_scanner_stay_words(at: Replays, tmp_path: Path) -> None:
    """Verdict and tags with escape sequences, line ends, markup and formulas: in no output do they act."""
    verdict, tags = "\x1b[2J\r\nok", ["[bold]x[/]", "=1+1", "a\nb", "<script>", "\u202egnp"]
    scanner_of(at).reply = answer(200, result("bounce", verdict=verdict, tags=tags))
    text = at.run("--plot", tmp_path / "x.svg")
    assert text.returncode == 1 and len(text.stdout.split("\n\n")[0].split("\n")) == 7
    sheet = at.run("--csv").stdout
    assert len(sheet.splitlines()) == 7 and ",=1" not in sheet
    seen = at.on_terminal(columns=200)[1]
    assert "\x1b[2J" not in seen and "\u202e" not in seen
    for output in (text.stdout, sheet, (tmp_path / "x.svg").read_text()):
        assert "\x1b" not in output and "\u202e" not in output
    assert at.json()[1]["mails"][0]["now"]["tags"] == ["[bold]x[/]", "=1+1", "a?b", "<script>", "?gnp"]


def test_a_refused_token_ends_the_replay(at: Replays) -> None:
    """No other mail would fare better: exit code 77, and hardly any mail was sent."""
    scanner_of(at).reply = answer(401)
    done = at.run("--concurrency", "1")
    assert done.returncode == 77 and "check the token" in done.stderr
    assert len(scanner_of(at).submissions) == 1


def test_a_scanner_that_is_gone_fails_quickly(at: Replays, tmp_path: Path) -> None:
    """Not after a pause for each mail; each failure names the reason, and none of them the token."""
    (tmp_path / "other-token").write_text("another-token-0123\n")
    where = ("--scanner", f"http://127.0.0.1:{free_port()}", "--token-file", tmp_path / "other-token")
    code, data = at.json(*where)
    assert code == 75 and data["totals"]["failed"] == 6
    assert all("Connection refused" in mail["now"]["problem"] for mail in data["mails"])


def test_another_scanner_gets_its_own_token(at: Replays, tmp_path: Path) -> None:
    """And never that of the configuration."""
    background, other = at.desk.bridge.background, FakeScanner()
    background.run(other.start())
    other.reply = answer(200, result("drop"))
    (tmp_path / "other-token").write_text("another-token-0123\n")
    try:
        given = ("--scanner", other.url, "--token-file", tmp_path / "other-token")
        code, data = at.json(*given)
        assert code == 1 and data["matrix"] == {"quarantine": {"drop": 6}} and data["scanner"] == other.url
        assert {mail.authorization for mail in other.submissions} == {"Bearer another-token-0123"}
        assert scanner_of(at).submissions == []
        code, data = at.json(*given, "--baseline", scanner_of(at).url)
        assert code == 1 and data["matrix"] == {"deliver": {"drop": 6}}
        scanner_of(at).reply_to = {b"hello 5": answer(500)}
        code, data = at.json(*given, "--baseline", scanner_of(at).url)
        assert data["totals"]["failed"] == 1 and data["totals"]["changed"] == 5
    finally:
        background.run(other.stop())
