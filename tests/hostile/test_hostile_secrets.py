"""P6: no secret leaks. A daemon with every secret meets success and failure; then all its output is searched."""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import trustme
from click.testing import CliRunner

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import Background, FakeScanner, NextHop, SmtpClient, answer, free_port, result, until
from tests.processes import command_line, descendants
from tests.rewriting import rewrite

ROOT = Path(__file__).parents[2]
SECRETS = {
    "token": "sectoken/Zk4+9rXw2PqLm8",
    "api-key": "secapikey/Hb7+3nVc6TyQj1",
    "db-password": "secpassword/Rt5+8kMd2WsXe",
    "helpdesk": "sechelpdesk/Kp3+7vBn5QzXcL",
    "access-key": "SECACCESSKEY4F7H2K9QWERT",
    "secret-key": "secbucket/Yu6+1pLo0IkJmN",
    "trace-key": "sectrace/Gf8+4sDw1ReTyU",  # in a URL
}


class Echo(BaseHTTPRequestHandler):
    """A List API or object server that refuses requests and echoes their credentials."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        told = {name: value for name, value in self.headers.items() if "auth" in name.lower() or "key" in name.lower()}
        words = {"error": "unauthorized", "message": f"{told}"}
        body = json.dumps(words).encode()
        self.send_response(401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Keeps standard error quiet."""


@contextmanager
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class World:
    """The daemon, its peers, and everything that it and its commands have output."""

    def __init__(self, directory: Path, scanner: FakeScanner, next_hop: NextHop, refusing: str) -> None:
        self.directory, self.said = directory, []
        for name, secret in SECRETS.items():
            (directory / name).write_text(secret + "\n")
        certificate = trustme.CA().issue_cert("bridge.example")
        certificate.private_key_pem.write_to_path(directory / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
        self.port, self.admin = free_port(), free_port()
        tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
        s3 = {"bucket": "mails", "endpoint": refusing, "access_key_file": "access-key", "secret_key_file": "secret-key"}
        listener = {"name": "mx", "address": f"127.0.0.1:{self.port}", "tls": tls, "lists": {"block": ["blocked"]}}
        self.data: dict[str, Any] = {
            "scanner": {"urls": [scanner.url], "token_file": "token", "status_interval": "100ms"},
            "lists": {"url": refusing, "api_key_file": "api-key", "refresh": "1s"},
            "listeners": [listener],
            "relay": {"next_hop": next_hop.url},
            "admin": {"address": f"127.0.0.1:{self.admin}"},
            "quarantine": {"s3": s3},
            "api": {"tokens": [{"name": "helpdesk", "token_file": "helpdesk"}]},
            "state_directory": str(directory / "state"),
            "state_database": f"postgresql://bridge@127.0.0.1:{free_port()}/state",
            "state_database_password_file": "db-password",
            "late_decisions": {"store": "database"},
            "log": {"level": "debug", "addresses": "hashed"},
            "drain_timeout": "2s",
            "tracing": {"endpoint": f"http://127.0.0.1:{free_port()}/v1/traces?key={SECRETS['trace-key']}"},
        }
        self.config = directory / "bridge.yml"
        self.write()
        with (directory / "out").open("wb") as out:
            command = [sys.executable, "-m", "bridge", "run", "-c", str(self.config)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)

    def write(self, **sections: dict[str, Any]) -> None:
        data = {**self.data, **{name: {**self.data[name], **more} for name, more in sections.items()}}
        rewrite(self.config, yaml_file.dump(data))

    @property
    def log(self) -> str:
        return (self.directory / "out").read_text()

    def command(self, *arguments: str) -> None:
        done = CliRunner().invoke(main, arguments, env={"SCANBRIDGE_CONFIG": str(self.config)})
        assert done.output, done.exception
        self.said.append(done.output)

    def mail(self, code: bytes) -> None:
        with SmtpClient(self.port) as client:
            self.said.append(client.open().decode())
            reply = client.mail()
            self.said.append(reply.decode())
            assert reply.startswith(code), self.log[-2000:]

    def page(self, path: str) -> None:
        token = {"Authorization": f"Bearer {SECRETS['helpdesk']}"} if path.startswith("/api") else {}
        try:
            with urlopen(Request(f"http://127.0.0.1:{self.admin}{path}", headers=token), timeout=30) as page:
                self.said.append(f"{page.headers}{page.read().decode()}")
        except HTTPError as exc:
            with exc:
                self.said.append(exc.read().decode())

    def reload(self, words: str) -> None:
        before = self.log.count(words)
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.log.count(words) > before, words)

    def everything(self) -> Iterator[tuple[str, str]]:
        """Each place with the text found there."""
        yield "the log", self.log
        yield from (("an answer", text) for text in self.said)
        for path in (self.directory / "state").rglob("*"):
            if path.is_file() and not path.name.endswith("-key"):
                yield str(path), path.read_bytes().decode("latin-1")


def encodings(secret: str) -> set[str]:
    return {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], base64.b64encode(secret.encode()).decode()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[World, FakeScanner, Background]]:
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    background.run(scanner.start())
    background.run(next_hop.start())
    with echo() as refusing:
        daemon = World(tmp_path, scanner, next_hop, refusing)
        try:
            until(lambda: daemon.process.poll() is not None or "listener mx" in daemon.log, "the daemon")
            assert daemon.process.poll() is None, daemon.log
            yield daemon, scanner, background
        finally:
            daemon.process.kill()
            daemon.process.wait(60)
            for part in (scanner, next_hop):
                background.run(part.stop())
            background.close()


def test_no_secret_leaks(world: tuple[World, FakeScanner, Background], tmp_path: Path) -> None:
    daemon, scanner, background = world
    commands = command_lines(daemon)
    # Good mail, and a scanner that refuses and repeats the token.
    daemon.mail(b"250 ")
    assert scanner.submissions[0].authorization == f"Bearer {SECRETS['token']}", "the token is in use"
    words = {"error": "unauthorized", "message": f"Bearer {SECRETS['token']} is not known"}
    scanner.reply = answer(401, json.dumps(words).encode())
    daemon.mail(b"451 4.3.5 ")
    scanner.reply = answer(500, json.dumps(words).encode())
    daemon.mail(b"451 ")
    # A quarantine server that refuses, a database that is down, lists that cannot be fetched.
    scanner.reply = answer(200, result("quarantine"))
    daemon.mail(b"451 ")
    until(lambda: "could not be quarantined" in daemon.log and "lists:" in daemon.log, "the troubles")
    until(lambda: "Max retries exceeded" in daemon.log, "a collector that cannot be reached")
    # An aborted TLS handshake.
    with SmtpClient(daemon.port) as client:
        client.open()
        client.say(b"STARTTLS")
        client.send(b"\x16\x03\x01nonsense" * 20)
        client.is_cut()
    # A scanner with an untrusted certificate.
    stranger, context = FakeScanner(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    background.run(stranger.start(context))
    daemon.write(scanner={"urls": [f"https://127.0.0.1:{stranger.port}"]})
    daemon.reload("reload succeeded")
    daemon.mail(b"451 ")
    background.run(stranger.stop())
    # Reloads that fail.
    (tmp_path / "short").write_text("sec!\n")
    daemon.write(scanner={"token_file": "short"})
    daemon.reload("reload failed")
    daemon.write(lists={"api_key": SECRETS["api-key"]})
    daemon.reload("reload failed")
    daemon.write()
    for path in ("/metrics", "/status", "/livez", "/readyz", "/nothing", "/api/v1/history", "/api/v1/nothing"):
        daemon.page(path)
    daemon.command("--help")
    for command in ("check", "status", "config show", "quarantine list", "lists show"):
        daemon.command(*command.split())
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0
    search(daemon, commands, tmp_path)


def command_lines(daemon: World) -> set[str]:
    """Those of the daemon and of the programs that it starts, until one of them has fetched lists."""
    found: set[str] = set()

    def is_fetching() -> bool:
        processes = {daemon.process.pid, *descendants(daemon.process.pid)}
        found.update(map(command_line, processes))
        return any("bridge.lists.fetch" in words for words in found)

    until(is_fetching, "the program that fetches lists")
    return found


def search(daemon: World, commands: Iterable[str], directory: Path) -> None:
    keys = [(directory / "state" / name).read_text().strip() for name in ("release-key", "log-key")]
    lines = [line for line in (directory / "key.pem").read_text().splitlines() if "-----" not in line]
    assert (
        leaks([*daemon.everything(), *(("ps", words) for words in commands)], [*SECRETS.values(), *keys], lines) == []
    )


def leaks(texts: Iterable[tuple[str, str]], secrets: Iterable[str], lines: Iterable[str] = ()) -> list[tuple[str, str]]:
    wanted = {form for secret in secrets for form in encodings(secret)} | set(lines)
    return [(place, form) for place, text in texts for form in wanted if form in text]


@pytest.mark.parametrize("form", sorted(encodings(SECRETS["token"])))
def test_the_search_would_find_a_secret(form: str) -> None:
    """The search finds a secret in each of its encodings."""
    assert leaks([("the log", f'msg="refused: {form}"')], SECRETS.values()) == [("the log", form)]
