"""Header consistency: signs in the header fields that no regular mail program wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import parsedate_tz

from bridge.mail.address import domain_of
from bridge.mime.authors import addresses, authors, bare_addresses

__all__ = ["addresses", "authors", "check"]

_ONCE = ("from", "date", "message-id", "subject", "to", "cc", "reply-to", "sender")


def check(fields: Sequence[tuple[str, str]]) -> set[str]:
    """Tags for missing, duplicate or contradictory fields in the mail's own header."""
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    found = {f"header:missing-{name}" for name in ("from", "date", "message-id") if name not in values}
    if any(len(values.get(name, ())) > 1 for name in _ONCE):
        found.add("header:duplicate")
    if "date" in values and not _is_date(values["date"][0][:200]):  # no date is longer; cut or not, the tag is the same
        found.add("header:bad-date")
    sender = values.get("from", [""])[0]
    if _display_name_differs(sender):
        found.add("header:display-address")
    senders, replies = authors(sender), authors(values.get("reply-to", [""])[0])
    if len(senders) > 1:
        found.add("header:several-from")
    if replies and senders and _host(replies[0]) != _host(senders[0]):
        found.add("header:reply-to-differs")
    return found


def _is_date(value: str) -> bool:
    try:
        return parsedate_tz(value) is not None
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser does not expect every input
        return False


def _display_name_differs(sender: str) -> bool:
    """`"boss@example.org" <stranger@evil.example>`"""
    display_name, bracket, rest = sender.partition("<")
    shown = bare_addresses(display_name)
    return bool(bracket and shown and _host(shown[0]) != _host(rest.rstrip("> \t")))


def _host(address: str) -> str:
    return domain_of(address.strip("> \t"))
