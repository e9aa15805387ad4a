"""A real console beside a real daemon, its people, and a client that sends exactly what a test wants."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import update

from bridge.console import database
from bridge.console.database import FILE, ConsoleStore
from bridge.console.guard import FORM_COOKIE, SESSION_COOKIE
from bridge.console.roles import Person, Role
from bridge.console.sessions import SessionLimits, Sessions
from bridge.console.tokens import form_token
from bridge.console.users import Users
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore
from bridge.runtime import yaml_file
from bridge.runtime.database import Database
from bridge.testing import FakeScanner, NextHop, answer, free_port, result, until
from tests.daemon.process_kit import Bridge, environment, running
from tests.daemon.process_kit import scanbridge as run_command
from tests.history.history_kit import mail
from tests.warm_commands import WarmProcess, python_path, warm_commands

TENANT_A, TENANT_B = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
TENANTS = [
    {"uid": TENANT_A, "recipient_domains": ["a.example"]},
    {"uid": TENANT_B, "recipient_domains": ["b.example"]},
]
PASSWORD = "correct horse battery"
UNDO_S = 4.0  # long enough for the handful of requests between an action and its undoing


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    cookies: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def target(self) -> str:
        return self.headers.get("location", "")


@dataclass
class Browser:
    """Keeps cookies and sends the header fields of a browser; a test may change each of them."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)
    root: str = ""
    host: str = ""

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> Answer:
        fields: dict[str, str | None] = {"Host": self.host or f"127.0.0.1:{self.port}"}
        if self.cookies:
            fields["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method == "POST":
            own = f"http://{fields['Host']}"
            fields |= {"Origin": own, "Sec-Fetch-Site": "same-origin", "Content-Length": str(len(body))}
            fields["Content-Type"] = "application/x-www-form-urlencoded"
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            connection.putrequest(method, self.root + path, skip_host=True, skip_accept_encoding=True)
            for name, value in fields.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            got = dict(_cookie(text) for text in reply.headers.get_all("set-cookie") or ())
            found = {name.lower(): value for name, value in reply.getheaders()}
            result = Answer(
                reply.status, found, got, b"" if "event-stream" in found.get("content-type", "") else reply.read()
            )
        for name, value in got.items():
            if value:
                self.cookies[name] = value
            else:
                self.cookies.pop(name, None)
        return result

    def get(self, path: str, **headers: str | None) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, form: dict[str, Any] | None = None, **headers: str | None) -> Answer:
        """With the form token, unless the form has another one."""
        data = {"form_token": self.token, **(form or {})}
        return self.ask("POST", path, urlencode(data, doseq=True).encode(), **headers)

    @property
    def token(self) -> str:
        secret = self.cookies.get(SESSION_COOKIE) or self.cookies.get(FORM_COOKIE, "")
        return form_token(secret) if secret else ""

    def sign_in(self, name: str, password: str = PASSWORD, **headers: str | None) -> Answer:
        page = self.get("/sign-in")
        token = page.text.split('name="form_token" value="')[1][:64] if page.status == 200 else self.token
        return self.post("/sign-in", {"name": name, "password": password, "form_token": token}, **headers)


def _cookie(text: str) -> tuple[str, str]:
    found = re.match(r"([^=]+)=([^;]*)", text)
    assert found is not None
    return found[1], found[2].strip('"')


@dataclass
class ConsoleProcess:
    """A running `scanbridge console`."""

    directory: Path
    config: Path
    port: int
    process: WarmProcess
    root: str = ""
    host: str = ""
    _signing_in: ConsoleStore | None = None  # kept open: some tests sign in hundreds of times
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def log(self) -> str:
        return (self.directory / "console.log").read_text()

    @property
    def store(self) -> ConsoleStore:
        return ConsoleStore(Database.file(self.directory / "state" / FILE))

    @property
    def history(self) -> HistoryStore:
        return SqliteHistory(self.directory / "state" / "history")

    def browser(self) -> Browser:
        return Browser(self.port, root=self.root, host=self.host)

    def signed_in(self, role: Role = Role.ADMIN, tenants: frozenset[str] | None = None, name: str = "") -> Browser:
        """A browser with its own session."""
        person = Person(name or f"{role}-{'all' if tenants is None else len(tenants)}", role, tenants)
        with self._lock:
            self._signing_in = self._signing_in or self.store
        token = Sessions(self._signing_in, SessionLimits(3600, 43200)).begin(person, "127.0.0.1", "test")
        browser = self.browser()
        browser.cookies[SESSION_COOKIE] = token
        return browser

    def add_user(self, name: str, role: Role = Role.ADMIN, tenants: frozenset[str] | None = None) -> None:
        """With PASSWORD, which is hashed once for all tests: that takes a while on purpose."""
        with closing(self.store) as store:
            Users(store).add(name, None, role, tenants)
            with store.writing() as connection:
                connection.execute(
                    update(database.users).where(database.users.c.name == name).values(password=_password_hash())
                )

    def close(self) -> None:
        if self._signing_in is not None:
            self._signing_in.close()

    def command(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return run_command("console", *words, "-c", str(self.config), **options)


@dataclass
class World:
    bridge: Bridge
    scanner: FakeScanner
    next_hop: NextHop
    console: ConsoleProcess

    def send(self, recipient: str = "jane@a.example", subject: str = "hello", **scan: Any) -> str:
        """Send one mail through the bridge; returns the reply."""
        self.scanner.reply = answer(200, result(**scan))
        with self.bridge.client() as client:
            client.begin(b"<john@client.example>", f"<{recipient}>".encode())
            return client.say(f"Subject: {subject}\r\n\r\nx\r\n.".encode())[0].decode()


@contextmanager
def console_process(config: Path, port: int, **about: str) -> Iterator[ConsoleProcess]:
    with (
        page_process(config, ["console"], "console.log", "console at ") as process,
        closing(ConsoleProcess(config.parent, config, port, process, **about)) as console,
    ):
        yield console


@cache
def _password_hash() -> str:
    import argon2  # which not every installation has

    return str(argon2.PasswordHasher().hash(PASSWORD))


@contextmanager
def page_process(config: Path, words: list[str], log_name: str, ready: str) -> Iterator[WarmProcess]:
    """A command that serves pages, from the line in its log that says so to its end."""

    def says() -> bool:
        return ready.encode() in path.read_bytes()[before:]  # not what an earlier process wrote

    path = config.parent / log_name
    command, env = [*words, "-c", str(config)], environment(PYTHONPATH=python_path())
    with path.open("ab") as log:
        before = log.tell()
        process = warm_commands(os.getpid()).start(command, env, config.parent, log.fileno(), log.fileno())
    try:
        until(
            lambda: process.poll() is not None or ready.encode() in path.read_bytes()[before:], f"{words[0]} to answer"
        )
        assert process.poll() is None, path.read_text()
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)


@contextmanager
def world(directory: Path, console: dict[str, Any] | None = None, **sections: Any) -> Iterator[World]:
    """A daemon with two tenants, and a console."""
    port = free_port()
    section = {"address": f"127.0.0.1:{port}", "undo_period": f"{UNDO_S:g}s", **(console or {})}
    with (
        running(directory, console=section, tenants=TENANTS, **sections) as (bridge, scanner, next_hop),
        console_process(directory / "bridge.yml", port) as process,
    ):
        yield World(bridge, scanner, next_hop, process)


@contextmanager
def patient_console(of: World) -> Iterator[ConsoleProcess]:
    """A second console of the same daemon, with an undo period in which a browser on a busy machine presses Undo."""
    known, port = of.console.config, free_port()
    data, _ = yaml_file.read(known, known.read_text())
    patient = known.with_name("patient.yml")
    section = {**data["console"], "address": f"127.0.0.1:{port}", "undo_period": "60s"}
    patient.write_text(yaml_file.dump({**data, "console": section}))
    with console_process(patient, port) as process:
        yield process


def remember(history: HistoryStore, *ids_and_tenants: tuple[str, str], **values: Any) -> None:
    """Mails in the history, a few seconds old."""
    now = time.time()
    for number, (mail_id, tenant) in enumerate(ids_and_tenants):
        history.append([mail(number, id=mail_id, tenant=tenant, at=now - 60 + number, **values)])
