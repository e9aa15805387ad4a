"""A bridge whose history is asked over HTTP, and a client that sends exactly what a test wants."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bridge.testing import RunningBridge, answer, result, running_bridge, until

ALL, ONLY_A, ONLY_B, BOTH = ("token-of-all-" + 40 * "x", "token-of-a-" + 40 * "x", "token-of-b-" + 40 * "x", 40 * "ab")
TENANT_A, TENANT_B = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
TOKENS = {
    "all": (ALL, None),
    "a": (ONLY_A, [TENANT_A]),
    "b": (ONLY_B, [TENANT_B]),
    "both": (BOTH, [TENANT_A, TENANT_B]),
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int,
    path: str,
    token: str | None = ALL,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    **query: Any,
) -> Answer:
    """`path` is sent as it is; `query` is encoded and appended."""
    target = f"{path}?{urlencode(query)}" if query else path
    fields = {"Authorization": f"Bearer {token}"} if token is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, target, headers={**fields, **(headers or {})})
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


def write_tokens(directory: Path) -> dict[str, Any]:
    """The section `api` of the configuration."""
    tokens = []
    for name, (secret, tenants) in TOKENS.items():
        (directory / f"{name}-token").write_text(secret + "\n")
        tokens.append({"name": name, "token_file": f"{name}-token"} | ({"tenants": tenants} if tenants else {}))
    return {"tokens": tokens}


@contextmanager
def bridge(directory: Path, config: dict[str, Any] | None = None, **listener: Any) -> Iterator[RunningBridge]:
    """A bridge with the tokens of this kit, and two tenants."""
    tenants = [
        {"uid": TENANT_A, "recipient_domains": ["a.example"]},
        {"uid": TENANT_B, "recipient_domains": ["b.example"]},
    ]
    base = {"api": write_tokens(directory), "tenants": tenants}
    with running_bridge(directory, {**base, **(config or {})}, **listener) as running:
        yield running


def send(
    running: RunningBridge,
    recipient: str = "jane@a.example",
    sender: str = "john@client.example",
    subject: str = "x",
    message_id: str = "",
    **scan: Any,
) -> str:
    """Send one mail and return our id, which is in the reply or, if that is the next hop's, in the mail."""
    running.scanner.reply = answer(200, result(**scan))
    head = f"Subject: {subject}\r\n" + (f"Message-ID: {message_id}\r\n" if message_id else "")
    with running.client() as client:
        client.open()
        client.begin(f"<{sender}>".encode(), f"<{recipient}>".encode())
        return client.say(head.encode() + b"\r\nx\r\n.")[0].decode()


def mails(port: int, count: int, token: str = ALL, **query: Any) -> list[dict[str, Any]]:
    """Wait until the history has this many mails: rows are written some tenths of a second later."""
    until(lambda: len(ask(port, "/api/v1/history", token, **query).json.get("mails", ())) >= count, f"{count} mails")
    found: list[dict[str, Any]] = ask(port, "/api/v1/history", token, **query).json["mails"]
    assert len(found) == count, found
    return found


def pages(port: int, limit: int, token: str = ALL, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """All pages, one after the other."""
    before: dict[str, str] = {}
    while True:
        found = ask(port, "/api/v1/history", token, limit=limit, **before, **query)
        assert found.status == 200, found.body
        yield found.json["mails"]
        if found.json["next"] is None:
            return
        before = {"before": found.json["next"]}
