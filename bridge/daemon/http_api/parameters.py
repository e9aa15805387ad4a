"""Query parameters: the query string of a request, read strictly; each mistake names its parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from bridge.daemon.http_api.failures import ApiError, invalid
from bridge.history.parameters import Parameter, value_of
from bridge.runtime.suggestion import did_you_mean


def read(query: bytes, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """The values of the parameters that are given. Raises ApiError."""
    found: dict[str, Any] = {}
    for piece in filter(None, query.split(b"&")):
        name, value = (_decoded(part, piece) for part in _halves(piece))
        if name not in known:
            said = name[:50] if name.isprintable() and name.strip() else "this name"
            names = f" (known: {', '.join(known)})" if known else ""
            problem = f"there is no parameter {said}{names}{did_you_mean(name[:50], known)}"
            raise ApiError("unknown_parameter", problem, parameter=said)
        if name in found:
            raise ApiError("duplicate_parameter", f"{name}: given twice; give it only once", parameter=name)
        found[name] = _value(name, value, known[name])
    return found


def _halves(piece: bytes) -> tuple[bytes, bytes]:
    name, _, value = piece.partition(b"=")
    return name, value


def _decoded(part: bytes, piece: bytes) -> str:
    try:
        return unquote_to_bytes(part.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        name = _halves(piece)[0].decode("ascii", "replace")[:50]
        raise invalid(name, "is not UTF-8") from None


def _value(name: str, value: str, parameter: Parameter) -> Any:
    try:
        return value_of(name, value, parameter)
    except ValueError as exc:
        raise invalid(name, str(exc)) from None
