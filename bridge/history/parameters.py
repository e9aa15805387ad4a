"""What mails can be searched by, over HTTP and in the console, and how text from anybody becomes a value.

Everything is checked here, before a database sees it. The tables are also the documentation: the OpenAPI document and
the reference page are made from them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bridge.api.scanning import Decision
from bridge.history.query import ACTIONS, BY, STAGES, WORD
from bridge.matching.spelling import network
from bridge.runtime.suggestion import did_you_mean

Json = dict[str, Any]

MAX_TEXT = 1000  # characters of one value
MAX_LIMIT, DEFAULT_LIMIT = 1000, 100
NO_TENANT = "none"
MAIL_ID = re.compile(r"[0-9A-Za-z]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AGE = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,40}))?"
    r"(?:[Zz]|([+ -])([0-9]{2}):([0-9]{2}))"
)
_CURSOR = re.compile(r"[0-9]{1,11}(\.[0-9]{1,9})?:[0-9A-Za-z]{0,64}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LAST = datetime.fromisoformat("9999-12-31T23:59:59+00:00").timestamp()


@dataclass(frozen=True, slots=True)
class Parameter:
    """`read` raises ValueError, which says what is expected."""

    description: str
    schema: Json
    read: Callable[[str], Any]


# Reading one value


def _text(value: str) -> str:
    return value


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}{did_you_mean(value, words)}")
        return value

    return read


def _sender(value: str) -> str:
    return "" if value == "<>" else value


def _subject(value: str) -> str:
    if not WORD.search(value):
        raise ValueError("must contain a letter or a digit, because whole words are searched for")
    return value


def _client(value: str) -> str:
    try:
        found = network(value)
    except ValueError:
        raise ValueError("must be an IP address or a network, for example 192.0.2.0/24") from None
    return str(found) if "/" in value else str(found.network_address)


def _tenant(value: str) -> str:
    if value == NO_TENANT:
        return ""
    if not _UUID.fullmatch(value):
        raise ValueError(f"must be a tenant's UUID, or `{NO_TENANT}` for mail that belongs to no tenant")
    return value.lower()


def _moment(value: str) -> float:
    """The Unix time. A `+` that was not escaped has become a space."""
    if age := _AGE.fullmatch(value):
        return max(time.time() - int(age[1]) * _UNITS[age[2]], 0.0)
    try:
        return min(max(_rfc3339(value), 0.0), _LAST)  # there is no mail before 1970
    except ValueError:
        expected = "a time as in RFC 3339 (2026-11-16T10:00:00Z), or an age such as 90m or 7d"
        raise ValueError(f"must be {expected}") from None


def _rfc3339(value: str) -> float:
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    sign = "-" if found[8] == "-" else "+"
    zone = f"{sign}{found[9]}:{found[10]}" if found[8] else "+00:00"
    leap = second == 60  # RFC 3339 5.6 allows it
    written = f"{max(year, 1):04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second - leap:02}{zone}"
    return datetime.fromisoformat(written).timestamp() + leap + float(f"0.{found[7] or 0}")


def _cursor(value: str) -> str:
    if not _CURSOR.fullmatch(value):
        raise ValueError("must be the value of `next` in an earlier answer")
    return value


def _limit(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or not 1 <= int(value) <= MAX_LIMIT:
        raise ValueError(f"must be a number from 1 to {MAX_LIMIT}")
    return int(value)


# All parameters

_TEXT: Json = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": r"^[^\x00-\x1f\x7f]+$"}
_WORDS: Json = {**_TEXT, "pattern": r"^[^\x00-\x1f\x7f]*[^\W_][^\x00-\x1f\x7f]*$"}
_ADDRESS = "an address, a domain or `@domain`"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_CLIENT: Json = {
    "anyOf": [
        {"type": "string", "pattern": rf"^{_OCTET}(\.{_OCTET}){{3}}(/(3[0-2]|[12]?[0-9]))?$"},
        {"type": "string", "format": "ipv6"},
        {
            "type": "string",
            "pattern": "^([0-9A-Fa-f]{1,4}:){1,7}:/(12[0-8]|1[01][0-9]|[1-9]?[0-9])$",
            "description": "A network such as 2001:db8::/32.",
        },
    ]
}
_MOMENT: Json = {
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": "^[0-9]{1,6}[smhdw]$"}]
}
_TIME_TEXT = "A time as in RFC 3339, or an age (`90m`, `24h`, `7d`)."

FILTERS: dict[str, Parameter] = {
    "what": Parameter(
        "The bridge's id for the mail or the session, the mail's queue id on the mail server in front of the bridge or "
        "behind it, a Message-ID (with or without its angle brackets) or a ggrid. It must match exactly.",
        _TEXT,
        _text,
    ),
    "sender": Parameter(f"The envelope sender: {_ADDRESS}; `<>` is the null sender.", _TEXT, _sender),
    "recipient": Parameter(f"A recipient: {_ADDRESS}.", _TEXT, _text),
    "address": Parameter(f"The sender or a recipient: {_ADDRESS}.", _TEXT, _text),
    "client": Parameter("The client's IP address, or a network.", _CLIENT, _client),
    "subject": Parameter("Words in the subject; `invo*` matches all words that start with `invo`.", _WORDS, _subject),
    "tag": Parameter("A tag of the scanner; `*` is a wildcard.", _TEXT, _text),
    "action": Parameter("The action taken.", {"enum": list(ACTIONS)}, _one_of(ACTIONS)),
    "decision": Parameter(
        "The scanner's decision.", {"enum": [str(word) for word in Decision]}, _one_of(tuple(map(str, Decision)))
    ),
    "rule": Parameter("The policy rule that applied.", _TEXT, _text),
    "listener": Parameter("The name of the listener.", _TEXT, _text),
    "tenant": Parameter(
        f"A tenant's UUID; `{NO_TENANT}`: mail that belongs to no tenant.",
        {"anyOf": [{"type": "string", "pattern": f"^{_UUID.pattern}$"}, {"const": NO_TENANT}]},
        _tenant,
    ),
    "stage": Parameter(
        "The stage at which the mail was refused, before its content was sent.", {"enum": list(STAGES)}, _one_of(STAGES)
    ),
    "attempt": Parameter("The value of `attempt` in a mail: finds all attempts that have it.", _TEXT, _text),
    "since": Parameter(f"Not before this time. {_TIME_TEXT}", _MOMENT, _moment),
    "until": Parameter(f"Before this time. {_TIME_TEXT}", _MOMENT, _moment),
}  # fmt: skip
_COUNT: Json = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
PAGE: dict[str, Parameter] = {
    **FILTERS,
    "limit": Parameter("Maximum number of mails.", _COUNT, _limit),
    "before": Parameter(
        "The value of `next` in the previous page.", {"type": "string", "pattern": f"^{_CURSOR.pattern}$"}, _cursor
    ),
}  # fmt: skip
STATS: dict[str, Parameter] = {
    "by": Parameter("What to count by. Required.", {"enum": list(BY)}, _one_of(BY)),
    **FILTERS,
    "limit": Parameter(
        "Maximum number of sums. The largest are returned; for hours and days, the latest (1000 by default).",
        _COUNT,
        _limit,
    ),
}


def value_of(name: str, text: str, parameter: Parameter) -> Any:
    """Raises ValueError, which says what is expected."""
    if not text:
        null = "; write <> for the null sender" if name == "sender" else ""
        raise ValueError(f"must not be empty: leave it out to get all mail{null}")
    if len(text) > MAX_TEXT:
        raise ValueError(f"must not be longer than {MAX_TEXT} characters")
    if _CONTROL.search(text):
        raise ValueError("must not contain control characters")
    return parameter.read(text)
