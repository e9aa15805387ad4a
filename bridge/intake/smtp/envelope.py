"""aiosmtpd's envelope, over our message: what the commands of one mail have said so far."""

from __future__ import annotations

from aiosmtpd.smtp import Envelope as StockEnvelope

from bridge.mail.message import Message


class SmtpEnvelope(StockEnvelope):
    """aiosmtpd's envelope over our message. `mail_from` is None before MAIL, "" for the null sender."""

    def __init__(self) -> None:
        self.mail_from: str | None = None
        self.mail_options: list[str] = []
        self.smtp_utf8 = False
        self.prdr = False
        self.rcpt_tos: list[str] = []
        self.rcpt_params: list[tuple[str, ...]] = []
        self.message: Message | None = None
        self._decode: str | None = None

    @property
    def rcpt_options(self) -> list[str]:
        """Those of all recipients, as aiosmtpd has them."""
        return [option for params in self.rcpt_params for option in params]

    @property
    def original_content(self) -> bytes | None:
        return None if self.message is None else b"".join(self.message.chunks())

    @property
    def content(self) -> bytes | str | None:
        content = self.original_content
        return content.decode(self._decode, "surrogateescape") if content is not None and self._decode else content
