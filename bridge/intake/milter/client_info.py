"""What the mail server tells us about the SMTP client, and about a mail outside its envelope.

It arrives as CONNECT, HELO and macros, and becomes the Session of the mail. Macros are kept as raw
frames, by the event they came with, and parsed once per mail. Knows nothing of sockets or content.
If this is wrong, the scanner judges a mail by the wrong client.
"""

from __future__ import annotations

import re

from bridge.intake.milter import codec, protocol
from bridge.mail.session import Client, Session

# Events whose macros we need, in the order of a mail. Postfix sends macros with header fields and
# body chunks too; those never say anything new.
_CLIENT_EVENTS = (protocol.CONNECT, protocol.HELO)
_MAIL_EVENTS = (protocol.MAIL, protocol.RCPT, protocol.END_OF_BODY)
_ALL_EVENTS = (*_CLIENT_EVENTS, *_MAIL_EVENTS)
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")


class ClientInfo:
    """Grows event by event; what belongs to the client is kept from one mail to the next."""

    __slots__ = ("_client_macros", "_has_mail_macros", "_mail_macros", "_parsed_client_macros", "helo", "origin")

    def __init__(self) -> None:
        self.origin = codec.Connect()
        self.helo: str | None = None
        self._client_macros: dict[int, bytes] = {}  # by event
        self._parsed_client_macros: dict[bytes, bytes] | None = None
        self._mail_macros: dict[int, bytes] = {}
        self._has_mail_macros = False  # MAIL's macros have come, MAIL itself has not

    def connect(self, data: bytes) -> None:
        """Another client: what was said about the previous one is forgotten, even if its end was never reported."""
        self.origin = codec.parse_connect(data)
        self.helo = None
        self._client_macros.pop(protocol.HELO, None)
        self._mail_macros, self._has_mail_macros = {}, False
        self._parsed_client_macros = None

    def greet(self, data: bytes) -> None:
        self.helo = codec.decode_text(codec.parse_strings(data)[0])

    def add_macros(self, data: bytes) -> None:
        """The macros of one event, which replace its earlier ones. Raises ProtocolError.

        They are parsed when the client has to be described, perhaps while the connection is being closed: then it is
        too late to find that they cannot be parsed.
        """
        event = data[0] if len(data) > 1 else 0
        if event in _ALL_EVENTS:
            codec.check_terminated(data)
        if event == protocol.MAIL:
            self._mail_macros = {event: data}
            self._has_mail_macros = True
        elif event in _MAIL_EVENTS:
            self._mail_macros[event] = data
        elif event in _CLIENT_EVENTS:
            self._client_macros[event] = data
            self._parsed_client_macros = None

    def begin_mail(self) -> None:
        """Forget the macros of the previous mail."""
        if not self._has_mail_macros:
            self._mail_macros = {}
        self._has_mail_macros = False

    def abandon_mail(self) -> None:
        """The mail ends before its content, perhaps before MAIL: what was said about it is not about the next one."""
        self._mail_macros, self._has_mail_macros = {}, False

    def session(self, session_id: str, listener: str, peer: str) -> Session:
        macros = self._macros()
        queue_id, login = macros.get(b"i"), macros.get(b"{auth_authen}")
        client = Client(
            self.origin.address,
            self.origin.port,
            self.origin.name if macros.get(b"{client_resolve}", b"OK") == b"OK" else None,
            self.helo,
            None,
            codec.decode_text(queue_id) if queue_id else None,
            codec.decode_text(login) if login else None,
        )
        tls = None
        if b"{tls_version}" in macros:
            tls = _plain(macros[b"{tls_version}"]) + "/" + _plain(macros.get(b"{cipher}", b""))
        return Session(session_id, listener, peer, client, tls, is_told=True)

    def _macros(self) -> dict[bytes, bytes]:
        if self._parsed_client_macros is None:
            self._parsed_client_macros = {}
            for data in self._client_macros.values():
                self._parsed_client_macros.update(codec.parse_macros(data[1:]))
        macros = self._parsed_client_macros.copy()
        for data in self._mail_macros.values():
            macros.update(codec.parse_macros(data[1:]))
        return macros


def _plain(raw: bytes) -> str:
    """A name of a protocol or cipher; it goes into the log unquoted."""
    return _UNUSUAL.sub("?", codec.decode_text(raw[:64]))
