"""What is looked for in the history, and what is counted. Knows nothing of databases."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Literal, get_args

from bridge.mail.action import Action
from bridge.runtime.ip import ip_or_none

By = Literal["action", "decision", "rule", "tag", "sender", "recipient", "client", "listener", "tenant", "hour", "day"]
BY: tuple[By, ...] = get_args(By)
CANCELLED = "cancelled"  # the action when the client went away
ACTIONS = (*(action.value for action in Action), CANCELLED)
STAGES = ("connect", "mail", "rcpt", "data")
WORD = re.compile(r"[^\W_]+")
_LABEL = re.compile(r"^(?:id|session|ggrid|ident|next_id|message[_-]id|queue[_-]id)\s*[=:]\s*", re.IGNORECASE)
_IN_REPLY = re.compile(r"(?:\b(?:id|ggrid)=|\bqueued as )([\w-]+)", re.IGNORECASE)
_MARKS = "\"'(),;: "
_OUR_ID = re.compile(r"([0-9A-F]{11})[0-9A-F]{8}", re.IGNORECASE)
OUR_ID_LENGTH = 19
_LIKE_OUR_ID = re.compile(r"[0-9A-F]{16,22}", re.IGNORECASE)  # queue ids are shorter, or not hexadecimal
_WANTED = re.compile(r"([^\W_]+)(\*?)")


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """A search; everything that is given must match. Results are ordered by time, the newest first."""

    id: str = ""  # our id for the mail
    what: str = ""  # one of our ids, a session, a queue id, a Message-ID or a ggrid, written exactly
    spellings: tuple[str, ...] = ()  # other spellings of `what`
    attempt: str = ""  # the key that all attempts with one mail share
    sender: str | None = None  # an address, a domain or `@domain`; "": the null sender
    recipient: str = ""  # an address, a domain or `@domain`
    address: str = ""  # of the sender or of a recipient
    client: str = ""  # an IP address or a network
    subject: str = ""  # words; one followed by `*` may continue
    tag: str = ""  # `*` stands for anything
    action: str = ""
    decision: str = ""
    rule: str = ""
    listener: str = ""
    tenant: str | None = None  # "": mail that belongs to none
    tenants: frozenset[str] | None = None  # one of these
    stage: str = ""
    since: float | None = None  # Unix time
    until: float | None = None
    before: str = ""  # the cursor of the last entry of the previous page
    limit: int = 100  # 0: no limit

    @property
    def words(self) -> tuple[tuple[str, bool], ...]:
        """Each word that the subject must have, and whether it is only the beginning of one."""
        return tuple((word.lower(), star == "*") for word, star in _WANTED.findall(self.subject))

    @property
    def has_addresses(self) -> bool:
        """The null sender does not count as one."""
        return bool(self.sender or self.recipient or self.address)

    @property
    def cursor(self) -> tuple[float, str] | None:
        """Raises ValueError if `before` is not a cursor."""
        if not self.before:
            return None
        at, _, mail_id = self.before.partition(":")
        return float(at), mail_id


@dataclass(frozen=True, slots=True)
class Sum:
    """One line of statistics."""

    label: str
    mails: int
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Top:
    """The largest sums, and the total of the others."""

    sums: list[Sum]
    others: int  # how many
    rest: Sum

    @classmethod
    def of(cls, ordered: list[Sum], most: int) -> Top:
        found, left = ordered[:most], ordered[most:]
        rest = Sum("", sum(total.mails for total in left), sum(total.size for total in left))
        return cls(found, len(left), rest)


def pasted_key(text: str) -> str:
    """A key as people copy it out of a log or a bounce: `id=1A1D...`, `<x@y>,`, `8F2C1:`, or the whole reply."""
    if (in_reply := _IN_REPLY.search(text)) and " " in text.strip():
        return in_reply[1]
    return _without_marks(_LABEL.sub("", _without_marks(text)))


def _without_marks(text: str) -> str:
    """Without punctuation around it. The brackets of `postmaster@[192.0.2.1]` are part of an address."""
    found = text.strip().strip(_MARKS)
    if found[:1] == "[" and (found[-1:] == "]" or "]" not in found):
        found = found.lstrip("[").strip(_MARKS)
    while found[-1:] == "]" and found.count("]") > found.count("["):
        found = found[:-1].rstrip(_MARKS)
    return found


def may_be_address(key: str) -> bool:
    """Whether it may be an address, a domain or a client, if it is not a key."""
    return "@" in key or key.startswith("~") or "." in key.strip(".") or bool(client_address(key))


def client_address(key: str) -> str:
    """The IP address of a client, if the key is one; else empty."""
    ip = ip_or_none(key)
    return "" if ip is None else str(ip)


def is_like_our_id(what: str) -> bool:
    """Whether it may be one of our ids with characters missing or added."""
    return len(what) != OUR_ID_LENGTH and _LIKE_OUR_ID.fullmatch(what) is not None


def made_at(what: str) -> float | None:
    """The time in one of our ids; None if it is not one."""
    found = _OUR_ID.fullmatch(what)
    made = int(found[1], 16) / 1000 if found else 0.0
    return made if 1_500_000_000 < made < time.time() + 60 else None
