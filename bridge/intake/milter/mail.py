"""One mail, rebuilt from milter events as exactly as milter allows.

Milter hands us fields and body chunks, not the mail: we put `name:value` and CRLF together again,
add the space after the colon where the mail server cannot send it, turn the bare line feeds of
folded fields back into CRLF, and stream everything into the same Message as SMTP's. What cannot
be kept (too large, no room, no disk) is discarded as it comes, and the mail carries the refusal
that its end will be answered with: content is never cut short and passed on as if it were whole.

Knows nothing of sockets or of how an answer is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bridge.errors import MessageTooLarge, ProtocolError, Saturated
from bridge.filter.policy import NO_STORAGE, SATURATED, reply_to_error
from bridge.intake.milter import codec, protocol
from bridge.mail.address import domain_of
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session

MAX_STRIPPED = 500  # forged fields of ours in one mail; each costs the mail server a walk through the head
_LF = ord("\n")
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_FIELDS, _LONG_RUN = 64, 2048  # fields gathered before they go to the message; bytes that go there at once


@dataclass(frozen=True, slots=True)
class Limits:
    """What one mail may be."""

    max_message_size: int
    max_recipients: int
    prefix: bytes  # of our own header fields, in lower case
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    on_hit: Callable[[str], None] = lambda limit: None  # told which of them a mail has passed
    ours: re.Pattern[bytes] = field(init=False)  # finds their names

    def __post_init__(self) -> None:
        ours = re.compile(rb"^(%b[^:\r\n]*):" % re.escape(self.prefix), re.IGNORECASE | re.MULTILINE)
        object.__setattr__(self, "ours", ours)


class Mail:
    """Grows event by event from MAIL to the end of the body."""

    __slots__ = ("_colon", "_head", "_in_head", "_limits", "forged", "message", "params",
                 "recipients", "refusal", "sender", "size")  # fmt: skip

    def __init__(
        self, sender: str, params: tuple[str, ...], spool: Spool, limits: Limits, *, leading_space: bool = True
    ) -> None:
        self.sender = sender
        self.params = params
        self.recipients: list[Recipient] = []
        self.message = Message(spool)
        self.forged: dict[bytes, int] = {}  # fields with our prefix, by name
        self.refusal: Reply | None = None
        self._limits = limits
        self._colon = b":" if leading_space else b": "
        self._head: list[bytes] = []
        self._in_head = True
        self.size = 0
        if params and _declared_size(params) > limits.max_message_size:
            self._refuse_size()

    def refuse(self, reply: Reply) -> None:
        """From now on the content is thrown away and the answer is fixed."""
        self.refusal = reply
        self._head.clear()
        self.message.close()

    def _refuse_size(self) -> None:
        self._limits.on_hit("max_message_size")
        self.refuse(TOO_LARGE)

    def recipient(self, data: bytes, refused: Callable[[str], Reply | None] | None = None) -> Reply | None:
        """One more recipient, or the reason why not; the mail goes on without it then.

        `refused` is asked last, and has its own reasons.
        """
        if self.refusal is not None:
            return self.refusal
        if len(self.recipients) >= self._limits.max_recipients:
            self._limits.on_hit("max_recipients")
            return Reply(452, "4.5.3", "Too many recipients")
        parsed = codec.address(data)
        if isinstance(parsed, Reply):
            return parsed
        if self.recipients and not self._is_of_one_tenant(parsed[0]):
            return Reply(452, "4.5.3", "Recipients of another tenant: send them in another transaction")
        if refused is not None and (reply := refused(parsed[0])) is not None:
            return reply
        self.recipients.append(Recipient(*parsed))
        return None

    def _is_of_one_tenant(self, address: str) -> bool:
        """A mail is scanned for one tenant: the first recipient's."""
        tenants = self._limits.tenant_by_domain
        return not tenants or tenants.get(domain_of(address)) == tenants.get(domain_of(self.recipients[0].address))

    def header(self, data: bytes) -> None:
        """One field: name, NUL, value, NUL."""
        self.headers([data])

    def headers(self, run: list[bytes]) -> None:
        """Fields that came together."""
        head, colon = self._head, self._colon
        try:
            for data in run:
                name, value, rest = data.split(b"\0")
                if rest or not name:
                    raise ProtocolError("a header field without name or end")
                head.append(name + colon + value)
        except ValueError:
            raise ProtocolError("a header field without its end") from None
        if self.refusal is not None:
            head.clear()
        elif len(head) > _FIELDS or sum(map(len, run)) > _LONG_RUN:
            self._flush_head()

    def end_of_headers(self) -> None:
        """The blank line, once."""
        if self._in_head:
            self._in_head = False
            if self.refusal is None:
                self._head.append(b"")
                self._flush_head()

    def _flush_head(self) -> None:
        """Pass on the fields gathered so far, and note those that only we may write."""
        self._head.append(b"")
        block = b"\r\n".join(self._head)
        if _LF in b"".join(self._head):  # Postfix and Sendmail send folded fields with bare line feeds
            block = block.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
        self._head.clear()
        if block.lower().find(self._limits.prefix) >= 0:
            for name in self._limits.ours.findall(block):
                self.forged[name.lower()] = self.forged.get(name.lower(), 0) + 1
            if sum(self.forged.values()) > MAX_STRIPPED:
                self._limits.on_hit("header")
                return self.refuse(Reply(550, "5.6.0", "Too many header fields that are reserved here"))
        self._write_head(block)

    def body(self, chunk: bytes) -> None:
        """The next piece of the body, as it was sent."""
        if self._in_head:
            self.end_of_headers()
        if chunk and self.refusal is None:
            self._write(chunk)

    def _write(self, block: bytes) -> None:
        self.size += len(block)
        if self.size > self._limits.max_message_size:
            return self._refuse_size()
        try:
            self.message.write(block)
        except Saturated:
            self._limits.on_hit("max_bytes_in_processing")
            self.refuse(SATURATED)
        except OSError:  # the spool's disk: no space, no inodes, an error
            self.refuse(NO_STORAGE)

    _write_head = _write  # a name of its own, for a kind of mail that holds the head back

    def end(self, chunk: bytes) -> None:
        """The last piece: the mail is complete, or refused."""
        if chunk or self._in_head:
            self.body(chunk)
        if self.refusal is None and not self.recipients:
            self.refuse(Reply(451, "4.5.0", "No recipient was named"))

    @property
    def envelope(self) -> Envelope:
        return Envelope(self.sender, tuple(self.recipients), self.params)

    def close(self) -> None:
        self._head.clear()
        self.message.close()


TOO_LARGE = reply_to_error(MessageTooLarge())


def _declared_size(params: tuple[str, ...]) -> int:
    for param in params:
        name, _, value = param.partition("=")
        if name.upper() == "SIZE" and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
    return 0


# In the order of a mail. What comes with headers and body is never news; Postfix sends it with each of them.
_OF_CLIENT = (protocol.CONNECT, protocol.HELO)
_OF_MAIL = (protocol.MAIL, protocol.RCPT, protocol.END_OF_BODY)


class Facts:
    """What the mail server told us of the SMTP client, and of this mail, outside the envelope.

    Macros are kept as they came, by the event they came with, and read once per mail.
    """

    __slots__ = ("_announced", "_known", "_of_mail", "client", "helo", "macros")

    def __init__(self) -> None:
        self.client = codec.Connect()
        self.helo: str | None = None
        self.macros: dict[int, bytes] = {}  # the client's
        self._of_mail: dict[int, bytes] = {}
        self._known: dict[bytes, bytes] | None = None  # those of the client, which stay from mail to mail
        self._announced = False  # MAIL's macros have come, MAIL has not

    def connect(self, data: bytes) -> None:
        self.client = codec.connect(data)

    def greet(self, data: bytes) -> None:
        self.helo = codec.text(codec.strings(data)[0])

    def macro(self, data: bytes) -> None:
        """The macros of one event; they replace those it had before. Only some events have any that we want."""
        event = data[0] if len(data) > 1 else 0
        if event == protocol.MAIL:
            self._of_mail = {event: data}
            self._announced = True
        elif event in _OF_MAIL:
            self._of_mail[event] = data
        elif event in _OF_CLIENT:
            self.macros[event] = data
            self._known = None

    def begin_mail(self) -> None:
        """Drop what belonged to the mail before, and keep what belongs to the client."""
        if not self._announced:
            self._of_mail = {}
        self._announced = False

    def session(self, session_id: str, listener: str, peer: str) -> Session:
        if self._known is None:
            self._known = {}
            for data in self.macros.values():
                self._known.update(codec.macros(data[1:]))
        known = self._known.copy()
        for data in self._of_mail.values():
            known.update(codec.macros(data[1:]))
        told, ident, login, tls = self.client, known.get(b"i"), known.get(b"{auth_authen}"), None
        client = Client(
            told.address,
            told.port,
            told.name if known.get(b"{client_resolve}", b"OK") == b"OK" else None,
            self.helo,
            None,
            codec.text(ident) if ident else None,
            codec.text(login) if login else None,
        )
        if b"{tls_version}" in known:
            tls = _plain(known[b"{tls_version}"]) + "/" + _plain(known.get(b"{cipher}", b""))
        return Session(session_id, listener, peer, client, tls, is_told=True)


def _plain(raw: bytes) -> str:
    """Names of protocols and ciphers go into the log unquoted."""
    return _ODD.sub("?", codec.text(raw[:64]))
