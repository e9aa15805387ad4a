"""Registrations: what a mail server and we have agreed on, written into the registration's own id.

The id is signed with a key that is made from the listener's token, so every worker, every machine with the same token
and every restarted daemon recognise all registrations without storing any. Only those that were ended before their time
are remembered, as empty files that all workers see. A new token ends all registrations, and the mail servers register
again. If this is wrong, a mail server is asked for a property that it does not have, or waits longer than it can.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from bridge.intake.hooks.facts import Found, member, number, text
from bridge.intake.hooks.json_body import BadJson
from bridge.runtime.value import value

STAGES = ("mail", "rcpt", "data")
PROPERTIES = (  # both are written into ids as numbers: new ones go to the end
    *("/stage", "/action", "/timestamp", "/protocol", "/rawMessage", "/envelope"),
    *("/queue", "/client", "/tls", "/auth", "/server"),
)
_NEEDED = ("/stage", "/rawMessage", "/envelope")
LIFETIME_S = 7 * 86400
MAX_REGISTRATIONS = 1000  # of those that were ended; no more are remembered
_LEAST_TIMEOUT_MS = 1000
_SIGNATURE_CHARACTERS = 32  # 192 bits


class State(Enum):
    UNKNOWN = "REGISTRATION_NOT_FOUND"
    ENDED = "REGISTRATION_DEREGISTERED"


@value
class Registration:
    id: str
    stages: tuple[str, ...]
    properties: tuple[str, ...]
    timeout_s: float
    created_at: int
    ends_at: int

    def to_json(self, base: str) -> Found:
        place = f"{base}/{self.id}"
        return {
            "registrationId": self.id,
            "status": "active",
            "createdAt": _moment(self.created_at),
            "expiresAt": _moment(self.ends_at),
            "hookEndpoint": "/mta-hooks/hook",
            "negotiated": {
                "serialization": "json",
                "inbound": {"stages": list(self.stages), "properties": list(self.properties)},
                "outbound": None,
            },
            "endpoints": {"status": place, "deregistration": place},
        }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


class Registrations:
    """Those of one listener."""

    def __init__(self, token: str, listener: str, ended: Path) -> None:
        self._key = hashlib.sha256(f"mta-hooks {listener} {token}".encode()).digest()
        self._ended = ended

    def register(self, asked: Found, longest_s: float) -> Registration:
        """Raises BadJson if the mail server wants something that we cannot do."""
        inbound = member(asked, "inbound")
        stages, offered = _words(inbound, "stages"), _words(inbound, "properties")
        if asked.get("serialization", "json") not in ("json", ["json"]):
            raise BadJson("serialization must be json")
        if asked.get("outbound") is not None:
            raise BadJson("outbound hooks are not supported")
        if "data" not in stages or not set(stages) <= set(STAGES):
            raise BadJson(f"inbound.stages must include data; the possible stages are {', '.join(STAGES)}")
        if missing := [name for name in _NEEDED if name not in offered]:
            raise BadJson(f"inbound.properties must include {', '.join(missing)}")
        for name in ("name", "version"):  # for people who read the request
            text(asked, name)
        wanted_ms = number(asked, "timeoutMs")
        if wanted_ms is not None and wanted_ms < _LEAST_TIMEOUT_MS:
            raise BadJson(f"timeoutMs must be at least {_LEAST_TIMEOUT_MS}")
        timeout_s = min(longest_s, wanted_ms / 1000 if wanted_ms else longest_s)
        now = int(time.time())
        agreed = tuple(name for name in offered if name in PROPERTIES)
        made = Registration("", stages, agreed, timeout_s, now, now + LIFETIME_S)
        return replace(made, id=self._sign(made))

    def find(self, identity: str) -> Registration | State:
        """Never takes longer than a few microseconds: it is called for every mail."""
        written, _, signature = identity.rpartition(":")
        if not hmac.compare_digest(self._signature(written), signature.encode("utf-8", "replace")):
            return State.UNKNOWN
        stages, properties, timeout_ms, created_at, ends_at, _ = json.loads(urlsafe_b64decode(_padded(written)))
        if ends_at <= time.time() or self._mark(identity).exists():
            return State.ENDED
        return Registration(
            identity,
            tuple([STAGES[place] for place in stages]),
            tuple([PROPERTIES[place] for place in properties]),
            timeout_ms / 1000,
            created_at,
            ends_at,
        )

    def end(self, registration: Registration) -> None:
        """Remember that it has ended, until it would have ended anyway. Raises OSError."""
        self._forget_old()
        os.close(os.open(self._mark(registration.id), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))

    def _forget_old(self) -> None:
        marks = sorted((found.stat().st_mtime, found.path) for found in os.scandir(self._ended))
        excess = len(marks) - MAX_REGISTRATIONS
        for number_, (ended_at, path) in enumerate(marks):
            if number_ < excess or ended_at < time.time() - LIFETIME_S:
                with suppress(FileNotFoundError):  # another worker was first
                    os.unlink(path)

    def _mark(self, identity: str) -> Path:
        return self._ended / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def _sign(self, made: Registration) -> str:
        facts: list[Any] = [
            [STAGES.index(name) for name in made.stages],
            [PROPERTIES.index(name) for name in made.properties],
            round(made.timeout_s * 1000),
            made.created_at,
            made.ends_at,
            secrets.token_hex(4),  # two registrations in one second differ
        ]
        written = urlsafe_b64encode(json.dumps(facts, separators=(",", ":")).encode()).decode().rstrip("=")
        return f"{written}:{self._signature(written).decode()}"

    def _signature(self, written: str) -> bytes:
        made = hmac.digest(self._key, written.encode("utf-8", "replace"), "sha256")
        return urlsafe_b64encode(made)[:_SIGNATURE_CHARACTERS]


def _padded(written: str) -> str:
    return written + "=" * (-len(written) % 4)


def _words(found: Found, name: str) -> tuple[str, ...]:
    """A list of different strings."""
    words = found.get(name)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadJson(f"inbound.{name} is not a list of names")
    if len(set(words)) != len(words) or len(words) > 100:
        raise BadJson(f"inbound.{name} has a duplicate name, or too many names")
    return tuple(words)
