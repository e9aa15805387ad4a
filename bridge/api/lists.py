"""The List API as data: paths, records and limits.

One call works on one scope: a tenant, or the whole deployment if `tenantUid` is absent. Client and
service share this file, so it knows no HTTP library and no storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LISTS_PREFIX = "/api/public/lists/v1"
ADD_PATH = f"{LISTS_PREFIX}/addEntries"
DELETE_PATH = f"{LISTS_PREFIX}/deleteEntries"
GET_LISTS_PATH = f"{LISTS_PREFIX}/getLists"
LIST_ENTRIES_PATH = f"{LISTS_PREFIX}/listEntries"

AUTH_SCHEME = "apikey"
NDJSON = "application/x-ndjson"
MAX_ENTRIES_PER_REQUEST = 500


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One entry: what `addEntries` takes, and one line of the `listEntries` stream."""

    entry: str
    comment: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"entry": self.entry, "comment": self.comment}

    @classmethod
    def from_dict(cls, value: object) -> ListEntry:
        """Convert the object of one line. Raises ValueError if it has no `entry`."""
        entry = value.get("entry") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(entry, str):
            raise ValueError("not a list entry")
        comment = value.get("comment")
        return cls(entry, comment if isinstance(comment, str) else "")


@dataclass(frozen=True, slots=True)
class ListFileInfo:
    """One list of a scope, as `getLists` returns it."""

    name: str
    display_name: str = ""
    category: str = ""
    description: str = ""
    max_size: int = 0

    def to_dict(self) -> dict[str, Any]:
        info = {
            "displayName": self.display_name,
            "category": self.category,
            "description": self.description,
            "maxSize": self.max_size,
        }
        return {"listName": self.name, "listInfo": info}

    @classmethod
    def from_dict(cls, value: object) -> ListFileInfo:
        """Convert one element of `listFileInfos`. Raises ValueError if it has no name."""
        name = value.get("listName") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(name, str):
            raise ValueError("not a list")
        info = value.get("listInfo")
        info = info if isinstance(info, dict) else {}
        size = info.get("maxSize")
        return cls(
            name,
            _text(info.get("displayName")),
            _text(info.get("category")),
            _text(info.get("description")),
            size if isinstance(size, int) and not isinstance(size, bool) else 0,
        )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
