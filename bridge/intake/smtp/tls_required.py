"""What a client may say before STARTTLS if the listener requires TLS.

Pure. If this is wrong, a mail travels in plain text although the operator has forbidden it.
"""

from __future__ import annotations

from bridge.intake.smtp import replies
from bridge.intake.smtp.session import SmtpSession
from bridge.mail.reply import Reply

_BEFORE_TLS = frozenset({"NOOP", "EHLO", "LHLO", "STARTTLS", "QUIT"})  # RFC 3207 4


def refuse_before_tls(session: SmtpSession, command: str) -> Reply | None:
    if not session.is_tls_accepted and command != "QUIT":  # the handler refuses its certificate
        return replies.INSECURE
    if session.settings.requires_tls and session.ssl is None and command not in _BEFORE_TLS:
        return replies.STARTTLS_FIRST
    return None
