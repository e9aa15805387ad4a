"""What both APIs read from a request: its header fields, its content type, its JSON, its `tenantUid`.

Pure functions, so they can be tested with tables. They do not know which status an endpoint
answers with: what is wrong is a ValueError, and the endpoint turns it into its own error.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any
from uuid import UUID

from python_multipart.multipart import parse_options_header
from starlette.types import Scope

from bridge.api.json_answer import unique_keys

MAX_CONTAINERS = 2000  # 500 entries take 502
MAX_QUOTES, MAX_COMMAS = 200_000, 100_000  # 500 entries have 4,000 and 1,500; escaped quotes do not count
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # to the end if it has none
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def header(scope: Scope, name: bytes) -> bytes:
    """The header field of this lower-case name; empty if there is none.

    If there are several, the whole list (RFC 9110 5.3): a program that uses the first of them sees a different request
    from a proxy that uses the last.
    """
    return b", ".join([value for key, value in scope["headers"] if key == name])


@lru_cache(maxsize=256)  # a client sends the same few values with every mail
def parse_options(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """`type/subtype; name=value` as the type and its options."""
    kind, options = parse_options_header(value)
    return bytes(kind), dict(options)


def is_json(content_type: bytes) -> bool:
    kind, options = parse_options(content_type)
    return kind == b"application/json" and options.get(b"charset", b"utf-8").lower() in _UTF_8


_UTF_8 = (b"utf-8", b"utf8", b"us-ascii")


def decode_json(raw: bytes) -> Any:
    """Raises ValueError, RecursionError.

    A byte order mark, which some libraries write, is skipped. A name that occurs twice in an object is an error:
    parsers differ in which of the two they use. So are thousands of objects, lists and other values, which no request
    needs: the millions that fit into one would stop the event loop for seconds.
    """
    if raw.count(b'"') - raw.count(b'\\"') > MAX_QUOTES:
        raise ValueError("too many values")
    if _brackets(raw) > MAX_CONTAINERS or raw.count(b",") > MAX_COMMAS:
        without_strings = _STRING.sub(b"", raw)
        if _brackets(without_strings) > MAX_CONTAINERS or without_strings.count(b",") > MAX_COMMAS:
            raise ValueError("too many values")
    return _JSON.decode(raw.decode("utf-8-sig"))


def _brackets(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[")


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_JSON = json.JSONDecoder(object_pairs_hook=unique_keys, parse_constant=_no_constant)


def waits_for_continue(scope: Scope) -> bool:
    """Whether the client sends the body only when it is told to. RFC 9110 10.1.1: HTTP/1.0 cannot do that."""
    return scope["http_version"] == "1.1" and header(scope, b"expect").lower() == b"100-continue"


def tenant_uid(value: object) -> str | None:
    """A tenantUid in canonical spelling; None if absent. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise ValueError("`tenantUid` must be a UUID")
    return str(UUID(value))
