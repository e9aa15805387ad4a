"""The `parameters` part of submitEmail: a MessageAnalysisRequest, checked field by field.

Unknown fields are ignored, because a newer client may send them; known fields are checked, because
the analyzers trust them. Knows JSON, nothing about multipart. Every mistake is a `Refused`
with the status and the Error object that the client reads.
"""

from __future__ import annotations

import ipaddress
import json
from functools import lru_cache
from typing import Any

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.service.requests import tenant_uid
from bridge.service.responses import Refused


def parse_parameters(raw: bytes) -> AnalysisRequest:
    """Raises Refused."""
    try:
        value = _JSON.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _invalid("the part `parameters` is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise _invalid("`parameters` must be an object")
    return AnalysisRequest(_border(value.get("borderMtaData")), tenant_uid=_tenant(value.get("tenantUid")))


def _border(border: object) -> BorderMtaData:
    if not isinstance(border, dict):
        raise _invalid("`borderMtaData` must be an object")
    recipients = border.get("envelopeRecipients")
    if not isinstance(recipients, list) or not recipients or not all(isinstance(r, str) for r in recipients):
        raise _invalid("`borderMtaData.envelopeRecipients` must be a list of at least one string")
    return BorderMtaData(
        envelope_from=_required_text(border, "envelopeFrom"),
        envelope_recipients=tuple(_clean(recipient) for recipient in recipients),
        remote_address=_ip(_optional_text(border, "remoteAddress")),
        sender_helo=_optional_text(border, "senderHelo"),
    )


def _tenant(value: object) -> str | None:
    try:
        return tenant_uid(value)
    except ValueError as exc:
        raise _invalid(str(exc)) from None


def _required_text(border: dict[str, Any], name: str) -> str:
    value = _optional_text(border, name)
    if value is None:
        raise _invalid(f"`borderMtaData.{name}` is required")
    return value


def _optional_text(border: dict[str, Any], name: str) -> str | None:
    value = border.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _invalid(f"`borderMtaData.{name}` must be a string")
    return _clean(value)


def _clean(text: str) -> str:
    """Replace lone surrogates: JSON allows them, UTF-8 does not, and a remote HELO may contain one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _ip(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        # An IPv6 zone can be of any length; long values stay out of the cache.
        return _canonical_ip(text) if len(text) < 64 else str(ipaddress.ip_address(text))
    except ValueError:
        raise _invalid("`borderMtaData.remoteAddress` must be an IP address") from None


@lru_cache(maxsize=4096)  # the same servers send again and again
def _canonical_ip(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_parameters", message)
