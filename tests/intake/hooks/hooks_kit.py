"""A mail server that speaks MTA Hooks, by hand: every byte it sends is the test's."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.intake.hooks.registrations import PROPERTIES
from bridge.testing import RunningBridge, running_bridge

TOKEN = "a-token-of-a-mail-server"
MAIL = b"From: a@example.com\r\nSubject: s\r\n\r\nbody\r\n"


@contextmanager
def hooks_bridge(directory: Path, config: dict[str, Any] | None = None, **listener: Any) -> Iterator[RunningBridge]:
    """A bridge whose only listener speaks MTA Hooks."""
    (directory / "hooks-token").write_text(f"{TOKEN}\n")
    hooks = {"token_file": "hooks-token", **listener.pop("hooks", {})}
    with running_bridge(directory, config, protocol="mta-hooks", hooks=hooks, **listener) as bridge:
        yield bridge


def facts(content: bytes | None = MAIL, stage: str = "data", **more: Any) -> dict[str, Any]:
    """A request of draft -01."""
    found = {
        "stage": stage,
        "action": "accept",
        "timestamp": "2026-11-16T20:00:00Z",
        "protocol": {"version": "1.0"},
        "envelope": {
            "from": {"address": "a@example.com", "parameters": {}},
            "to": [{"address": "b@example.org", "parameters": {}}],
        },
        "queue": {"id": "Q1"},
        "client": {"ip": "192.0.2.1", "port": 25, "ehlo": "far.example", "ptr": None, "activeConnections": 1},
        "rawMessage": None if content is None else base64.b64encode(content).decode(),
    }
    return {**found, **more}


class MailServer:
    """One connection to the listener."""

    def __init__(self, port: int, token: str | None = TOKEN, **options: Any) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.token = token
        self.number = 0
        self.registration = ""

    def __enter__(self) -> MailServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """The status, and the JSON of the answer."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            fields.setdefault("Authorization", f"Bearer {self.token}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.http.request(method, path, data, fields)
        answer = self.http.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None

    def register(self, **changes: Any) -> tuple[int, Any]:
        asked = {
            "name": "test",
            "version": "1",
            "timeoutMs": 20000,
            "serialization": "json",
            "inbound": {"stages": ["mail", "rcpt", "data"], "properties": list(PROPERTIES)},
            "outbound": None,
        }
        status, answer = self.send("POST", "/mta-hooks/registrations", {**asked, **changes})
        if status == 201:
            self.registration = answer["registrationId"]
        return status, answer

    def ask(self, body: object, request_id: str = "", **headers: str) -> tuple[int, Any]:
        """A hook request; registers first."""
        if not self.registration:
            assert self.register()[0] == 201
        self.number += 1
        ids = {"X-MTA-Hooks-Registration": self.registration, "X-MTA-Hooks-Request-Id": request_id or f"r{self.number}"}
        return self.send("POST", "/mta-hooks/hook", body, **{**ids, **headers})

    def action(self, body: object, request_id: str = "") -> tuple[str, Any]:
        """The action, and the code and enhanced code of a refusal."""
        status, answer = self.ask(body, request_id)
        assert status == 200, answer
        said = {change["path"]: change["value"] for change in answer["set"]}
        refusal = said.get("/response")
        return said["/action"], None if refusal is None else (refusal["code"], refusal["enhancedCode"])


def raw(port: int, data: bytes, timeout_s: float = 10.0) -> bytes:
    """Everything that the listener says to these bytes, until it closes the connection or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        said = b""
        try:
            while block := sock.recv(65536):
                said += block
        except (TimeoutError, ConnectionResetError):
            pass
        return said
