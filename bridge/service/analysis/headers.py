"""Header consistency: signs in the header fields that no regular mail program wrote them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.utils import parsedate_tz

from bridge.mail.address import domain_of

# A quoted local part, an address literal, or a plain word.
_WORD = re.compile(r"\"[^\"]{1,64}\"@[^\s<>\"'(),;]{1,253}|[^\s<>\"'(),;:]+@\[[^\s<>\[\]]{1,100}\]|[^\s<>\"'(),;:]+")
_ONCE = ("from", "date", "message-id", "subject", "to", "cc", "reply-to", "sender")


def addresses(value: str) -> list[str]:
    """The addresses in a header value; only those in angle brackets, if there are any."""
    in_brackets = re.findall(r"<([^<>]{1,320})>", value)
    return [address for address in in_brackets if "@" in address] or _bare_addresses(value)


def _bare_addresses(value: str) -> list[str]:
    """Addresses without brackets. Word by word: a pattern that looks back from each @ would be quadratic."""
    words = (word.rpartition("@") for word in _WORD.findall(value)) if "@" in value else ()
    return [f"{local[-66:]}@{host[:253]}" for local, _, host in words if local and host]


def check(fields: Sequence[tuple[str, str]]) -> set[str]:
    """Tags for missing, duplicate or contradictory fields in the mail's own header."""
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    found = {f"header:missing-{name}" for name in ("from", "date", "message-id") if name not in values}
    if any(len(values.get(name, ())) > 1 for name in _ONCE):
        found.add("header:duplicate")
    if "date" in values and not _is_date(values["date"][0][:200]):
        found.add("header:bad-date")
    sender = values.get("from", [""])[0]
    if _display_name_differs(sender):
        found.add("header:display-address")
    if len(addresses(sender)) > 1:
        found.add("header:several-from")
    replies = addresses(values.get("reply-to", [""])[0])
    if replies and addresses(sender) and _host(replies[0]) != _host(addresses(sender)[0]):
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
    shown = _bare_addresses(display_name)
    return bool(bracket and shown and _host(shown[0]) != _host(rest.rstrip("> \t")))


def _host(address: str) -> str:
    return domain_of(address.strip("> \t"))
