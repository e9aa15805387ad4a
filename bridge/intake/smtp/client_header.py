"""The client as the mail server in front of us names it in a header field.

Exim and OpenSMTPD support neither XFORWARD nor XCLIENT, but they can add a header field on top of the mail that they
pass on. Only trusted clients may send us mail, and only the topmost of several such fields counts: it was added last,
by the mail server itself; those below may come from the sender. All of them are removed, so that neither the scanner
nor the next hop sees them. The topmost one must be a single line: the first line of a mail that begins with white space
continues the field that the mail server put above it. If this is wrong, senders choose the address that they are judged
by.
"""

from __future__ import annotations

from collections import Counter

from bridge.intake.smtp import xforward
from bridge.mail.header_fields import begins_behind, field_named
from bridge.mail.message import Message
from bridge.mail.session import Client

_NAMES = (*xforward.XFORWARD_NAMES, "LOGIN")
_KEYS = frozenset(name.encode("ascii") for name in _NAMES)
_MAX_VALUE = 64 * 1024  # bytes; no mail server writes more, and reading 1 MiB of words took a quarter of a second


class BadClient(ValueError):
    """Nothing in the field can be used."""


class TwoClients(ValueError):
    """The field names two addresses: one was smuggled into another attribute, such as a HELO of `x ADDR=192.0.2.1`."""


class FoldedClient(ValueError):
    """The field continues on the next line, which may be the first line of the sender's mail."""


class HiddenClient(ValueError):
    """Such a field is so far down that it cannot be removed."""


class ClientHeader:
    """Reads and removes the field with one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lower = name.lower().encode("ascii")
        self._field = field_named(name)

    def take_from(self, message: Message) -> Client | None:
        """The client that the topmost field names, None without one. Removes all such fields.

        Raises FoldedClient or HiddenClient if it cannot; BadClient if nothing in the topmost field can be read,
        TwoClients if it names two addresses.
        """
        head = message.head()
        if message.is_head_cut() and begins_behind(message.chunks(), len(head), (self._lower,)):
            raise HiddenClient
        if self._lower not in head.lower():
            return None
        topmost = self._field.first(head)
        if topmost is None:
            return None
        if b"\n" in topmost.value or message.is_head_cut_in_field():
            raise FoldedClient
        message.replace_head(self._field.remove(head))
        return _client(topmost.value)


def _client(value: bytes) -> Client:
    """Parse XFORWARD's attributes. One that cannot be used, or is repeated, does not affect the others: senders choose
    their HELO, and could otherwise choose to be judged by no address.
    """
    if len(value) > _MAX_VALUE:
        raise BadClient
    words = [word for word in value.split() if word.partition(b"=")[0].upper() in _KEYS]  # there may be many others
    names = Counter(word.partition(b"=")[0].upper() for word in words)
    if names[b"ADDR"] > 1:
        raise TwoClients
    client, is_usable = Client(), False
    for word in words:
        if names[word.partition(b"=")[0].upper()] > 1:
            continue
        try:
            client, is_usable = xforward.apply(client, word, _NAMES), True
        except xforward.BadAttribute:
            continue
    if not is_usable:
        raise BadClient
    return client
