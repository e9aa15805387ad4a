"""The client as the mail server in front names it in the head of the mail.

Exim and OpenSMTPD speak neither XFORWARD nor XCLIENT. What they can do is put a field on top of the mail that they
hand over. Only trusted clients hand mail over at all, and of several such fields only the topmost counts: it is
the last one written, the mail server's own; those below may be a stranger's. All of them are taken out, so that
neither scanner nor next hop sees one. If this is wrong, a sender chooses the address that he is judged by.
"""

from __future__ import annotations

from bridge.intake.smtp import xforward
from bridge.mail.header_fields import field_named
from bridge.mail.message import Message
from bridge.mail.session import Client

_NAMES = (*xforward.XFORWARD_NAMES, "LOGIN")
_MAX_VALUE = 1024  # as long as two XFORWARD commands


class BadClient(ValueError):
    """The field cannot be read: nothing of it is believed."""


class ClientHeader:
    """One field name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lower = name.lower().encode("ascii")
        self._field = field_named(name)

    def take_from(self, message: Message) -> Client | None:
        """Whom the topmost field names, None without one; then there is none left. Raises BadClient."""
        head = message.head()
        if self._lower not in head.lower():
            return None
        topmost = self._field.search(head)
        if topmost is None:
            return None
        message.replace_head(self._field.sub(b"", head))
        return _client(topmost[1])


def _client(value: bytes) -> Client:
    """XFORWARD's words. A word that comes twice was slipped into another one's value: a HELO of `x ADDR=192.0.2.1`."""
    names = [word.partition(b"=")[0].upper() for word in value.split()]
    if len(value) > _MAX_VALUE or len(set(names)) != len(names):
        raise BadClient
    try:
        return xforward.apply(Client(), value, _NAMES)
    except xforward.BadAttribute as exc:
        raise BadClient from exc
