"""The whole bridge with a scanner that speaks MTA Hooks: what a client receives for each decision."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import TOKEN, Background, RunningBridge, SmtpClient, free_port, running_bridge
from tests.hostile.hostile_kit import MiB, bridge_process
from tests.scanner.spoken import SPOKEN, discovery, registration

MAIL = b"Subject: s\r\n\r\nbody\r\n"


class HooksScanner:
    """Decides by the subject of a mail."""

    def __init__(self) -> None:
        self.port = free_port()
        self.refuses_token = False
        self.largest = 0  # in bytes

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("Content-Length", "0")))
                status, answer = self.answer(head.split(" ")[1], body)
                if fields["Authorization"] != f"Bearer {TOKEN}" or self.refuses_token:
                    status, answer = 401, b'{"error": {"code": "INVALID_CREDENTIALS", "message": "no"}}'
                length = (
                    f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\nContent-Type: application/json\r\n\r\n"
                )
                writer.write(length.encode() + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/.well-known/mta-hooks":
            return 200, discovery()
        if path == "/register":
            return 201, registration()
        if path != "/hook":
            return 200, b"{}"
        raw = base64.b64decode(json.loads(body)["rawMessage"])
        self.largest = max(self.largest, len(raw))
        word = raw.partition(b"Subject: ")[2].partition(b"\r\n")[0].decode()
        return 200, SPOKEN[2].result(word if word in ("bounce", "drop", "quarantine", "undecided") else "deliver")


@contextmanager
def hooks_scanner() -> Iterator[HooksScanner]:
    scanner, background = HooksScanner(), Background()
    server = background.run(asyncio.start_server(scanner.serve, "127.0.0.1", scanner.port))
    yield scanner
    background.loop.call_soon_threadsafe(server.close)
    background.close()


def reply(bridge: RunningBridge, subject: str) -> bytes:
    with SmtpClient(bridge.port) as client:
        client.open()
        return client.mail(f"Subject: {subject}\r\n\r\nbody\r\n".encode())


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HooksScanner, RunningBridge]]:
    with hooks_scanner() as scanner:
        conf = {"urls": [f"http://127.0.0.1:{scanner.port}"], "dialect": "mta-hooks"}
        conf |= {"allow_changes": ["add_headers", "reply_text"], "status_interval": "200ms"}
        with running_bridge(tmp_path_factory.mktemp("hooks"), {"scanner": conf}) as bridge:
            yield scanner, bridge


@pytest.mark.parametrize(
    ("subject", "code"),
    [
        ("deliver", b"250 2.0.0 Ok: queued as NEXT1"),
        ("bounce", b"550 5.7.1 no (id="),
        ("undecided", b"451 4.7.1 no (id="),
        ("drop", b"250 2.0.0 Ok: queued as "),
        ("quarantine", b"250 2.0.0 Ok: queued as "),
    ],
)
def test_each_decision_has_its_reply(hooked: tuple[HooksScanner, RunningBridge], subject: str, code: bytes) -> None:
    """As with every other dialect, with the scanner's words and fields where they are allowed."""
    _, bridge = hooked
    before, stored = len(bridge.next_hop.mails), len(bridge.quarantined)
    assert reply(bridge, subject).startswith(code)
    assert len(bridge.next_hop.mails) - before == (subject == "deliver")
    assert len(bridge.quarantined) - stored == (subject == "quarantine")
    if subject == "deliver":
        assert bridge.next_hop.mails[-1].fields("X-Word") == ["clean"]


def test_status_and_metrics_name_the_dialect(hooked: tuple[HooksScanner, RunningBridge]) -> None:
    """`/status`, and one series for each host."""
    scanner, bridge = hooked
    pages = {}
    for page in ("status", "metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{bridge.admin_port}/{page}", timeout=60) as opened:
            pages[page] = opened.read().decode()
    assert json.loads(pages["status"])["scanner"][0]["dialect"] == "mta-hooks"
    (series,) = [line for line in pages["metrics"].splitlines() if line.startswith("scanbridge_scanner_info{")]
    assert f'host="http://127.0.0.1:{scanner.port}"' in series and 'dialect="mta-hooks"' in series
    assert series.endswith(" 1.0")


def test_a_refused_token_is_a_setting_to_correct(tmp_path: Path) -> None:
    """451 4.3.5, as with the default dialect; no mail was sent."""
    with hooks_scanner() as scanner:
        scanner.refuses_token = True
        conf = {"urls": [f"http://127.0.0.1:{scanner.port}"], "dialect": "mta-hooks"}
        with running_bridge(tmp_path, {"scanner": conf}) as bridge:
            assert reply(bridge, "deliver").startswith(b"451 4.3.5")
            assert not bridge.next_hop.mails


def test_fifty_mebibytes_are_sent_in_less_memory_than_that(tmp_path: Path) -> None:
    """They are encoded as they are sent: the 70 MB of the request are never in memory."""
    with hooks_scanner() as scanner:
        conf = {"urls": [f"http://127.0.0.1:{scanner.port}"], "dialect": "mta-hooks"}
        content = b"Subject: large\r\n\r\n" + (b"x" * 1022 + b"\r\n") * (50 * 1024 - 1)
        with bridge_process(tmp_path, {"scanner": conf}) as process:
            with process.client() as client:
                client.open()
                assert client.mail(MAIL).startswith(b"250 ")
            with process.growing_at_most(50 * MiB), SmtpClient(process.port, timeout_s=120) as client:
                client.open()
                assert client.mail(content).startswith(b"250 ")
        assert scanner.largest == len(content)


def test_the_commands_speak_the_dialect(tmp_path: Path, hooked: tuple[HooksScanner, RunningBridge]) -> None:
    """`check` has a test mail scanned, `scan` prints decision and changes, `status` names the dialect."""
    scanner, bridge = hooked
    conf = {
        "scanner": {"urls": [f"http://127.0.0.1:{scanner.port}"], "dialect": "mta-hooks", "token_file": "token"},
        "listeners": [{"name": "test", "address": f"127.0.0.1:{free_port()}"}],
        "relay": {"next_hop": f"maildir:{tmp_path}/Maildir"},
        "admin": {"address": f"127.0.0.1:{bridge.admin_port}"},
        "state_directory": str(tmp_path / "state"),
    }
    conf["scanner"]["allow_changes"] = ["add_headers"]  # type: ignore[index]
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "bridge.yml").write_text(yaml_file.dump(conf))
    (tmp_path / "a.eml").write_bytes(b"Subject: bounce\r\n\r\nbody\r\n")
    (tmp_path / "b.eml").write_bytes(MAIL)

    def run(*words: str) -> str:
        return CliRunner().invoke(main, [*words, "-c", str(tmp_path / "bridge.yml")]).output

    assert "mta-hooks, GREEN" in run("check", "--verbose"), run("check", "--verbose")
    scanned = run("scan", str(tmp_path / "a.eml"), str(tmp_path / "b.eml"))
    assert "a.eml: bounce" in scanned and "b.eml: deliver" in scanned and "changes=+X-Word" in scanned, scanned
    assert f"http://127.0.0.1:{scanner.port} (mta-hooks)" in run("status")
