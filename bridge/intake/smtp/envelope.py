"""The envelope of one mail, in the form that handlers written for aiosmtpd expect."""

from __future__ import annotations

from aiosmtpd.smtp import Envelope as StockEnvelope

from bridge.mail.message import Message


class SmtpEnvelope(StockEnvelope):
    """aiosmtpd's envelope around our message. `mail_from` is None before MAIL, "" for the null sender."""

    def __init__(self, encoding: str | None = None) -> None:
        self.mail_from: str | None = None
        self.mail_options: list[str] = []
        self.smtp_utf8 = False
        self.prdr = False
        self.rcpt_tos: list[str] = []
        self.rcpt_params: list[tuple[str, ...]] = []
        self.rcpt_bytes = 0  # of both
        self.message: Message | None = None
        self._encoding = encoding

    @property
    def rcpt_options(self) -> list[str]:
        """The options of all recipients in one list, as aiosmtpd has them."""
        return [option for params in self.rcpt_params for option in params]

    @property
    def original_content(self) -> bytes | None:
        return None if self.message is None else b"".join(self.message.chunks())

    @property
    def content(self) -> bytes | str | None:
        content = self.original_content
        if content is None or self._encoding is None:
            return content
        return content.decode(self._encoding, "surrogateescape")
