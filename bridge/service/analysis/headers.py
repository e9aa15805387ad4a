"""Header consistency: signs in the header fields that no regular mail program wrote them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from email.utils import parsedate_tz

from bridge.mail.address import domain_of

_ADDRESS = re.compile(r"(?:\"[^\"]{1,64}\"|[^\s<>\"'(),;:]{1,64})@(?:\[[^\s<>\[\]]{1,100}\]|[^\s<>\"'(),;:]{1,253})")
_ONCE = ("from", "date", "message-id", "subject", "to", "cc", "reply-to", "sender")


def addresses(value: str) -> list[str]:
    """The addresses in a header value; only those in angle brackets, if there are any."""
    in_brackets = re.findall(r"<([^<>]{1,320})>", value)
    return [address for address in in_brackets if "@" in address] or _ADDRESS.findall(value)


def check(fields: Sequence[tuple[str, str]]) -> set[str]:
    """Tags for missing, duplicate or contradictory fields in the mail's own header."""
    values: dict[str, list[str]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    found = {f"header:missing-{name}" for name in ("from", "date", "message-id") if name not in values}
    if any(len(values.get(name, ())) > 1 for name in _ONCE):
        found.add("header:duplicate")
    if "date" in values and parsedate_tz(values["date"][0][:200]) is None:
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


def _display_name_differs(sender: str) -> bool:
    """`"boss@example.org" <stranger@evil.example>`"""
    display_name, bracket, rest = sender.partition("<")
    shown = _ADDRESS.search(display_name)
    return bool(bracket and shown and _host(shown.group()) != _host(rest.rstrip("> \t")))


def _host(address: str) -> str:
    return domain_of(address.strip("> \t"))
