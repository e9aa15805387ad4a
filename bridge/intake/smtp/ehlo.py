"""The reply to EHLO (and LHLO): which extensions a client is offered.

Some depend on the connection: STARTTLS is not offered twice, and XFORWARD and XCLIENT are for trusted clients only. If
this is wrong, a client is offered an extension that we then refuse, or does not use one that it needs.
"""

from __future__ import annotations

from bridge.intake.smtp import xforward
from bridge.intake.smtp.session_settings import SessionSettings


def ehlo_reply(settings: SessionSettings, *, is_secure: bool, is_trusted: bool) -> bytes:
    """Made once for each combination."""
    reply = settings.ehlo_replies.get((is_secure, is_trusted))
    if reply is None:
        lines = [*extensions(settings, is_secure=is_secure, is_trusted=is_trusted), "250 HELP"]
        reply = settings.ehlo_replies[is_secure, is_trusted] = "".join(f"{line}\r\n" for line in lines).encode()
    return reply


def extensions(settings: SessionSettings, *, is_secure: bool, is_trusted: bool) -> list[str]:
    """The lines of the reply to EHLO, except the last."""
    lines = [settings.hostname, "PIPELINING", "ENHANCEDSTATUSCODES", "DSN"]
    if settings.max_message_size:
        lines.append(f"SIZE {settings.max_message_size}")
    if not settings.decodes_content:
        lines.append("8BITMIME")
    if settings.takes_utf8:
        lines.append("SMTPUTF8")
    lines.append("PRDR")
    if settings.offers_tls and not is_secure:
        lines.append("STARTTLS")
    if settings.auth_mechanisms is not None and (is_secure or not settings.auth_requires_tls):
        lines.append("AUTH " + " ".join(settings.auth_mechanisms))
    if is_trusted:
        lines.append("XFORWARD " + " ".join(xforward.XFORWARD_NAMES))
        lines.append("XCLIENT " + " ".join(xforward.XCLIENT_NAMES))
    return ["250-" + line for line in lines if line not in settings.hidden]
