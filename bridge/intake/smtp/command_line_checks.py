"""What is wrong with a command line, whatever the command means: its bytes and its length.

Pure. If this is wrong, a line means something else to us than to the mail server that relays it.
"""

from __future__ import annotations

from bridge.intake.smtp import replies
from bridge.intake.smtp.session import SmtpSession
from bridge.intake.smtp.tls_required import refuse_before_tls
from bridge.mail.reply import Reply

_NUL, _CR, _LF = b"\0\r\n"  # as numbers, for `in` (see `bare_line_ends`)


def refuse_line(session: SmtpSession, name: str, word: bytes, line: bytes, *, may_have_any_byte: bool) -> Reply | None:
    """`name` is the command's, `word` the line's first word."""
    if not line.isascii() and not session.settings.takes_utf8:
        return replies.STRICT_ASCII if word.isascii() else replies.BAD_SYNTAX
    if not line or not word.isascii():
        return replies.BAD_SYNTAX
    if (_NUL in line or _CR in line or _LF in line) and not may_have_any_byte:
        return replies.BARE_BYTE
    is_for_parser = may_have_any_byte and session.settings.limits.shortens_lines  # it shortens the line, or refuses it
    if not is_for_parser and len(line) > session.settings.max_line(name, is_extended=session.extended_smtp):
        session.settings.on_limit("command")
        return replies.LINE_TOO_LONG
    return refuse_before_tls(session, name)
