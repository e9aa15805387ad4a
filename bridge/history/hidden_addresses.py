"""Searches for addresses in the form that the history stores: with `log.addresses`, pseudonyms or domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.history.query import HistoryQuery
from bridge.observe.redaction import Redaction


@dataclass(frozen=True, slots=True)
class HiddenAddresses:
    redaction: Redaction

    def query(self, wanted: dict[str, Any], **more: Any) -> HistoryQuery:
        """A query with addresses in the stored form. Raises ValueError, which says why it is impossible."""
        asked = dict(wanted)
        for name in ("sender", "recipient", "address"):
            if name in asked:
                asked[name] = self.address(asked[name])
        return HistoryQuery(**{name: _encodable(value) for name, value in (asked | more).items()})

    def address(self, address: str) -> str:
        """An address or domain in the stored form. The null sender is empty. Raises ValueError."""
        if address in ("", "<>"):
            return ""
        is_whole = "@" in address.lstrip("@") and not address.startswith("*@")
        if self.redaction.mode == "hashed" and not is_whole:
            if address.startswith("~"):
                return address
            raise ValueError(
                "log.addresses is `hashed`, so the history has no domains: give a whole address (jane@example.org)"
            )
        return self.redaction.address(address) if is_whole else address

    def key(self, key: str) -> str:
        """A Message-ID contains an address, which may be hidden; other keys do not."""
        if "@" not in key or self.redaction.mode == "full":
            return key
        return self.redaction.address(key.strip("<>"))

    def spellings(self, key: str) -> list[str]:
        """The keys that people may mean when they type this one."""
        if not key or (self.redaction.mode == "domain" and "@" in key):  # all mails of a domain have one Message-ID
            return []
        return list(dict.fromkeys((key, key.upper(), key.lower()))) if "@" not in key else [key]


def _encodable(value: Any) -> Any:
    """Bytes from a terminal may not be text; no mail is found by those, and a database refuses them."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
