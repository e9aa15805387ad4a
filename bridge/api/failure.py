"""The Error object: the body of every response of the service that is not a success."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_ROOM = "no_room"  # with 503: for this mail, because of its size; smaller mail is accepted


@dataclass(frozen=True, slots=True)
class Failure:
    """`error` is machine-readable and stable; `message` is for humans and may change."""

    error: str
    message: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"error": self.error, "message": self.message} if self.message else {"error": self.error}

    @classmethod
    def from_json(cls, body: bytes) -> Failure:
        """Parse an Error object; anything else becomes an empty one, never an exception."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return cls("")
        if not isinstance(value, dict):
            return cls("")
        error, message = value.get("error"), value.get("message")
        return cls(
            error if isinstance(error, str) else "",
            message if isinstance(message, str) else "",
        )
