"""Hooks: engines over HTTP, among them the one in the documentation, and servers that lie."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest

from bridge.service import engine_kit
from bridge.service.analysis.engine import Findings, LimitReached
from bridge.service.analysis.hook import read_answer
from bridge.service.analysis.http_answer import answer_to, http_client
from bridge.service.analysis.plugin import PluginFailed
from tests.server_program import ServerProgram
from tests.service.lying_server import LyingServer, hasty
from tests.service.service_kit import CONFIG, TOKEN, attached, free_port, mail, service, zipped
from tests.service.tls_proxy import tls_proxy

SAMPLES = Path(__file__).resolve().parents[2] / "docs" / "operate" / "samples" / "own-engine"
MIB = 1024 * 1024


def config(port: int, **settings: object) -> str:
    more = "".join(f", {key}: {value}" for key, value in settings.items())
    return CONFIG + f"analyzers: {{mime: null, hooks: {{invoices: {{url: 'http://127.0.0.1:{port}/'{more}}}}}}}\n"


def test_the_documented_hook_alive_frozen_and_killed(tmp_path):
    """Found, with its tag; without its answer, undecided or passed, within the timeout."""
    port = free_port()
    hook = ServerProgram([sys.executable, str(SAMPLES / "hook.py"), str(port)], tmp_path / "log", port)
    (tmp_path / "lenient").mkdir()
    try:
        with (
            service(tmp_path, config(port, timeout="4s")) as strict,
            service(tmp_path / "lenient", config(port, timeout="1s", required="false")) as lenient,
        ):
            found = strict.submit(attached(b"MZ...", "Invoice.exe")).json
            assert (found["decision"], found["tags"]) == ("quarantine", ["invoice:program"])
            assert strict.submit(mail()).json["tags"] == []

            def fails() -> None:
                start = time.monotonic()
                answer = strict.submit(mail()).json
                assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:invoices", "incomplete"])
                answer = lenient.submit(mail()).json
                assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:invoices"])
                assert time.monotonic() - start < 50

            with hook.frozen():
                fails()
            assert strict.submit(mail()).json["decision"] == "deliver"
            hook.kill()
            fails()
    finally:
        hook.kill()


def http(body: bytes, head: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{head}\r\n".encode() + body


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    server = LyingServer()
    settings = {"timeout": "3s", "token": TOKEN, "max_size": "1MiB"}
    with service(tmp_path_factory.mktemp("liar"), config(server.port, **settings)) as running:
        server.running = running
        yield server
    server.close()


def test_what_a_hook_gets(liar):
    """Envelope, header fields and decoded parts, as JSON of the announced length, with the token."""
    liar.reply, liar.endless, liar.is_patient = http(b"{}"), b"", True
    liar.requests.clear()
    content = attached(zipped(("a", b"x")), "ä.zip", "application/zip")
    more = {
        "remoteAddress": "192.0.2.1",
        "senderHelo": "h\r\n\xff",
        "tenantUid": "123e4567-e89b-12d3-a456-426614174000",
    }
    assert liar.running.submit(content, **more).json["tags"] == []
    liar.is_patient = False
    head, _, body = b"".join(liar.requests).partition(b"\r\n\r\n")
    assert f"Bearer {TOKEN}".encode() in head and f"Content-Length: {len(body)}".encode() in head
    asked = json.loads(body)
    assert asked["envelope"] == {"from": "a@example.org", "to": ["b@example.net"]}
    assert asked["client"] == {"address": "192.0.2.1", "helo": "h\r\n\xff"}
    assert (asked["version"], asked["isComplete"], asked["size"]) == (1, True, len(content))
    assert ["Subject", "test"] in asked["headers"]
    text, file = asked["parts"]
    assert (text["type"], base64.b64decode(text["content"])) == ("text/plain", b"see attachment")
    assert (file["names"], file["type"]) == (["ä.zip"], "application/zip")
    assert sha256(base64.b64decode(file["content"])).hexdigest() == file["sha256"]


@pytest.mark.parametrize(
    ("reply", "endless"),
    [
        (b"nonsense\r\n\r\n", b""),
        (http(b""), b""),
        (http(b"[]"), b""),
        (http(b'{"tags": "x"}'), b""),
        (http(b'{"tags": ["a b"]}'), b""),
        (http(b'{"tags": ["list:allowed-senders"]}'), b""),
        (http(b'{"score": NaN}'), b""),
        (http(b'{"score": true}'), b""),
        (http(b'{"verdict": "deliver"}'), b""),
        (http(b'{"verdict": "malware", "verdict": "clean"}'), b""),
        (http(b"[" * 100_000), b""),
        (http(b"{}").replace(b"200 OK", b"302 Found"), b""),
        (http(b"\x1f\x8b\x08", "Content-Encoding: gzip\r\n"), b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}", b""),  # then nothing
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", b" " * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_hostile_answers_leave_mail_undecided(liar, reply, endless):
    """No answer that is wrong or has no end counts, and each is given up within the timeout."""
    liar.reply, liar.endless = reply, endless
    start = time.monotonic()
    answer = liar.running.submit(mail()).json
    assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:invoices", "incomplete"])
    assert time.monotonic() - start < 50


@pytest.mark.parametrize(
    ("answer", "decision", "tags"),
    [
        (b'{"verdict": "malware"}', "quarantine", ["malware:invoices"]),
        pytest.param(b'{"verdict": "spam"}', "bounce", ["invoices:spam"], marks=pytest.mark.long),
        pytest.param(b'{"score": 9, "verdict": "clean"}', "quarantine", [], marks=pytest.mark.long),
        (b'{"tags": ["invoice:program"]}', "deliver", ["failed:invoices"]),
        (b"{}", "deliver", ["failed:invoices"]),
        pytest.param(b'{"verdict": "clean"}', "deliver", ["failed:invoices"], marks=pytest.mark.long),
        pytest.param(
            b'{"tags": ["invoice:seen"], "verdict": "clean"}', "deliver", ["failed:invoices"], marks=pytest.mark.long
        ),
    ],
)
def test_what_a_hook_found_in_the_beginning_of_a_mail_was_lost(tmp_path, answer, decision, tags):
    """It said so before it had read the rest. That a mail is clean still counts only if it has all of it."""
    with hasty(http(answer)) as server, service(tmp_path, config(server.port, required="false")) as running:
        found = running.submit(attached(bytes(8 * MIB))).json
        assert (found["decision"], found["tags"]) == (decision, tags)


def test_what_a_hook_found_that_then_did_nothing_was_lost(tmp_path):
    """It neither read on nor closed the connection: we waited until the time was over."""
    with (
        hasty(http(b'{"verdict": "malware"}'), is_stuck=True) as server,
        service(tmp_path, config(server.port, required="false")) as running,
    ):
        found = running.submit(attached(bytes(8 * MIB))).json
        assert (found["decision"], found["tags"]) == ("quarantine", ["malware:invoices"])


def test_a_hook_that_reads_on_after_its_answer_called_a_mail_clean(tmp_path):
    """It had answered before it had the mail."""
    server = LyingServer()
    server.reply = http(b"{}")
    with service(tmp_path, config(server.port, required="false")) as running:
        found = running.submit(attached(bytes(8 * MIB))).json
    server.close()
    assert (found["decision"], found["tags"]) == ("deliver", ["failed:invoices"])


async def test_a_hook_over_tls(tmp_path):
    """A large question passes, and nothing is sent to a server whose certificate is not trusted."""
    server, client = LyingServer(), http_client(10.0, 1)
    server.reply, server.is_patient = http(b"{}"), True
    length = [(b"Content-Length", str(4 * MIB).encode())]

    async def content() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield bytes(MIB)

    with tls_proxy(tmp_path, server.port) as proxy:
        url = f"https://127.0.0.1:{proxy.port}/"
        with pytest.raises(ssl.SSLCertVerificationError):
            await answer_to(client, url, length, content(), 100)
        assert proxy.passed_on == 0
        client._transport._pool._ssl_context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        assert await answer_to(client, url, length, content(), 100) == (b"{}", True)
        assert proxy.passed_on > 4 * MIB
    await client.aclose()
    server.close()


def test_a_large_mail_is_not_sent(liar):
    assert liar.running.submit(mail(b"x" * MIB)).json["tags"] == ["incomplete", "limit:invoices"]


def test_verdicts():
    """Each leads to a decision of the default rules."""
    assert read_answer("n", b'{"tags": ["a:b"], "score": 2, "verdict": "clean"}') == Findings(frozenset({"a:b"}), 2)
    assert read_answer("n", b'{"verdict": "malware"}') == Findings(frozenset({"malware:n"}))
    assert read_answer("n", b'{"verdict": "spam"}') == Findings(frozenset({"n:spam"}), 15.0)
    assert read_answer("n", b'{"verdict": "suspicious", "score": 9}') == Findings(frozenset({"n:suspicious"}), 9)
    with pytest.raises(LimitReached):
        read_answer("n", b'{"verdict": "incomplete"}')
    with pytest.raises(PluginFailed):
        read_answer("n", b'{"verdict": 5}')


@pytest.mark.long
def test_the_template_and_its_tests(tmp_path, monkeypatch):
    """The template's own tests pass, and the kit reports an engine that fails."""
    for name in ("invoices.py", "test_invoices.py"):
        shutil.copy(SAMPLES / name, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_invoices.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (tmp_path / "broken.py").write_text(
        "class Broken:\n    def __init__(self, o): pass\n    def analyze(self, m): 1/0\n"
    )
    (tmp_path / "mail.eml").write_bytes(mail())
    monkeypatch.chdir(tmp_path)
    assert engine_kit.main(["broken:Broken", "mail.eml"]) == 1
    assert engine_kit.main(["absent:Engine", "mail.eml"]) == 78
