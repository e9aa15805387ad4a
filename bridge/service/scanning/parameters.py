"""The `parameters` part of submitEmail: a MessageAnalysisRequest, checked field by field.

Unknown fields are ignored, because a newer client may send them; known fields are checked, because
the analyzers trust them. `remoteAddress` is not refused, whatever it is: mail servers write addresses in many ways
and `unknown` where they have none, and a mail must not stay unscanned for that. Knows JSON, nothing about multipart.
Every error is a `Refused` with the status and the Error object that the client receives.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from bridge.api.feedback import FEEDBACK_KINDS, MAX_REPORTER, FeedbackRequest
from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.runtime.ip import ip_or_none
from bridge.service.requests import decode_json, tenant_uid
from bridge.service.responses import Refused


def parse_parameters(raw: bytes) -> AnalysisRequest:
    """Raises Refused."""
    value = _object(raw)
    return AnalysisRequest(_border(value.get("borderMtaData")), tenant_uid=_tenant(value.get("tenantUid")))


def parse_feedback(raw: bytes) -> FeedbackRequest:
    """The same for a report of a mail, whose envelope may be unknown. Raises Refused."""
    value = _object(raw)
    kind, reporter, ggrid = (value.get(name, "") for name in ("kind", "reporter", "ggrid"))
    if kind not in FEEDBACK_KINDS:
        raise _invalid("`kind` must be spam or ham")
    if not isinstance(reporter, str) or not 1 <= len(reporter) <= MAX_REPORTER:
        raise _invalid(f"`reporter` must be a string of 1 to {MAX_REPORTER} characters")
    if not isinstance(ggrid, str) or len(ggrid) > 100 or not ggrid.isprintable():
        raise _invalid("`ggrid` must be a printable string of at most 100 characters")
    border = value.get("borderMtaData")
    tenant = _tenant(value.get("tenantUid"))
    return FeedbackRequest(kind, reporter, None if border is None else _border(border), tenant, ggrid)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = decode_json(raw)
    except (ValueError, RecursionError):
        raise _invalid("the `parameters` part is not JSON encoded as UTF-8, or contains a duplicate field") from None
    if not isinstance(value, dict):
        raise _invalid("`parameters` must be an object")
    return value


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
    """The address in canonical spelling; None if there is none in the text."""
    return clean_address(text) if text and len(text) <= _LONGEST_ADDRESS else None


_LONGEST_ADDRESS = 100  # with brackets, a port and a zone; longer texts stay out of the cache
_BRACKETS = re.compile(r"\[([^\[\]]*)\](?::[0-9]{1,5})?")  # [192.0.2.1], [2001:db8::1]:25
_PORT = re.compile(r"([0-9.]+):[0-9]{1,5}")  # 192.0.2.1:25
_PREFIX = re.compile(r"ipv[46]:", re.IGNORECASE)  # IPv6:2001:db8::1, as in SMTP


@lru_cache(maxsize=4096)  # the same servers send again and again
def clean_address(text: str) -> str | None:
    """`[IPv6:2001:DB8::1]:25` is 2001:db8::1, `::ffff:192.0.2.1` is 192.0.2.1; `unknown` and 0.0.0.0 are None."""
    text = _PREFIX.sub("", text.strip(), count=1)
    if found := _BRACKETS.fullmatch(text) or _PORT.fullmatch(text):
        text = _PREFIX.sub("", found[1].strip(), count=1)
    address = ip_or_none(text)
    return None if address is None or address.is_unspecified else str(address)


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_parameters", message)
