"""What API nodes and workers say to each other: subjects, jobs, and signs of life. Knows no connection.

A job is one JSON object and the mail: four bytes with the length of the object, the object, the mail as it is. If it
is too large for a message, it is in the object store under its ggrid, and the message has only the object.
The subjects of one deployment begin with `nats.name`. Workers take only jobs of the database that they use: one with
another database would not know the same lists (see `core_nodes`).

Two versions work together during an upgrade: unknown keys are ignored, a missing key has a default unless nothing can
be done without it, and a key that is added later must never be needed.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Any

from bridge.api.scanning import AnalysisRequest
from bridge.service.scanning.parameters import parse_parameters

VERSION = 1
_LENGTH = struct.Struct("!I")
_GGRID = re.compile(r"[0-9a-f-]{36}")
_NODE = re.compile(r"[0-9A-Za-z_-]{1,64}")


class Malformed(Exception):
    """The message was not written by scanbridge."""


@dataclass(frozen=True, slots=True)
class Names:
    """Subjects and streams of one deployment and one database."""

    prefix: str
    database: str

    @classmethod
    def of(cls, prefix: str, database: str) -> Names:
        return cls(prefix, re.sub(r"[^0-9A-Za-z_-]", "-", database) or "unknown")

    @property
    def stream(self) -> str:
        return f"{self.prefix}-jobs"

    @property
    def bucket(self) -> str:
        return f"{self.prefix}-mail"

    @property
    def all_jobs(self) -> str:
        return f"{self.prefix}.jobs.*"

    @property
    def jobs(self) -> str:
        return f"{self.prefix}.jobs.{self.database}"

    @property
    def consumer(self) -> str:
        return f"workers-{self.database}"

    @property
    def workers(self) -> str:
        """Where workers give signs of life."""
        return f"{self.prefix}.workers.{self.database}"

    @property
    def nodes(self) -> str:
        """Where API nodes give theirs."""
        return f"{self.prefix}.nodes.{self.database}"

    @property
    def roll_call(self) -> str:
        """Every worker answers here at once."""
        return f"{self.prefix}.roll-call.{self.database}"

    @property
    def dropped(self) -> str:
        """Where API nodes say that no one is waiting for an analysis."""
        return f"{self.prefix}.dropped.{self.database}"

    def answers(self, node: str, ggrid: str = "*") -> str:
        return f"{self.prefix}.answers.{node}.{ggrid}"


@dataclass(frozen=True, slots=True)
class JobHead:
    """Everything about a job except the mail."""

    ggrid: str
    node: str  # the API node that waits for the answer
    created: str
    size: int  # of the mail
    parameters: bytes | None  # None: the whole job is in the object store

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {"version": VERSION, "ggrid": self.ggrid, "node": self.node, "created": self.created}
        value["size"] = self.size
        if self.parameters is not None:
            value["parameters"] = self.parameters.decode("ascii")
        text = json.dumps(value).encode()
        return _LENGTH.pack(len(text)) + text

    @property
    def request(self) -> AnalysisRequest:
        """Raises Refused."""
        return parse_parameters(self.parameters or b"")


def read_job(data: bytes) -> tuple[JobHead, memoryview]:
    """The head, and the bytes after it: all of the mail, or its beginning. Raises Malformed."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        value = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        parameters = value.get("parameters")
        head = JobHead(
            _matching(_GGRID, value["ggrid"]), _matching(_NODE, value["node"]), str(value.get("created", ""))[:32],
            int(value["size"]), None if parameters is None else parameters.encode(),
        )  # fmt: skip
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise Malformed(type(exc).__name__) from exc
    return head, memoryview(data)[_LENGTH.size + length :]


def head_length(beginning: bytes) -> int:
    """How many bytes of a job come before the mail. Raises Malformed."""
    try:
        return int(_LENGTH.unpack_from(beginning)[0]) + _LENGTH.size
    except struct.error as exc:
        raise Malformed("too short") from exc


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def _count(value: Any) -> int:
    return min(max(int(value), 0), 100_000)


@dataclass(frozen=True, slots=True)
class WorkerSign:
    """A worker's sign of life."""

    id: str
    slots: int  # analyses at a time
    busy: int
    limit: int  # its maxGuardRequestsInProcessing
    threshold: int  # its guardRequestThrottleThreshold
    leaving: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> WorkerSign:
        """Raises Malformed."""
        try:
            value = json.loads(data)
            slots, busy = _count(value["slots"]), _count(value.get("busy", 0))
            limit = _count(value.get("limit", slots))
            threshold = _count(value.get("threshold", limit))
            return cls(_matching(_NODE, value["id"]), slots, busy, limit, threshold, bool(value.get("leaving")))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise Malformed(type(exc).__name__) from exc


@dataclass(frozen=True, slots=True)
class NodeSign:
    """An API node's sign of life."""

    id: str
    waiting: int  # its mails in the queue, including those being analysed

    def to_bytes(self) -> bytes:
        return json.dumps({"id": self.id, "waiting": self.waiting}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> NodeSign:
        """Raises Malformed."""
        try:
            value = json.loads(data)
            return cls(_matching(_NODE, value["id"]), _count(value.get("waiting", 0)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise Malformed(type(exc).__name__) from exc
