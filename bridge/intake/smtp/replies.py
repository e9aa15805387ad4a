"""The replies of an SMTP session that are always the same.

Replies about a mail's content or decision come from `filter.policy`; those that name the host, a verb or a syntax
are built where they are needed.
"""

from __future__ import annotations

from bridge.mail.reply import Reply

OK = Reply(250, "2.0.0", "OK")
BYE = Reply(221, "2.0.0", "Bye")
PRDR_BEGINS = Reply(353, "", "One reply for each recipient follows")
BAD_SYNTAX = Reply(500, "5.5.2", "Error: bad syntax")
STRICT_ASCII = Reply(500, "5.5.2", "Error: strict ASCII mode")
STRICT_ASCII_CONTENT = Reply(500, "5.6.1", "Error: strict ASCII mode")
BARE_BYTE = Reply(501, "5.5.2", "Error: NUL, CR or LF inside a command")
LINE_TOO_LONG = Reply(500, "5.5.2", "Command line too long")
INSECURE = Reply(554, "5.7.0", "Command refused due to lack of security")
STARTTLS_FIRST = Reply(530, "5.7.0", "Must issue a STARTTLS command first")
AUTH_FIRST = Reply(530, "5.7.0", "Authentication required")
TOO_MANY_MAILS = Reply(421, "4.7.0", "Too many mails on this connection, open a new one")
EXHAUSTED = Reply(421, "4.7.0", "Error: too many errors or idle commands")
UNKNOWN_COMMAND = Reply(500, "5.5.2", "Error: command not recognized")
NESTED_MAIL = Reply(503, "5.5.1", "Error: nested MAIL command")
NEEDS_MAIL = Reply(503, "5.5.1", "Error: need MAIL command")
NEEDS_RCPT = Reply(503, "5.5.1", "Error: need RCPT command")
MALFORMED_ADDRESS = Reply(553, "5.1.3", "Error: malformed address")
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "Error: a non-ASCII address needs SMTPUTF8")
EMPTY_RECIPIENT = Reply(501, "5.1.3", "Syntax: RCPT TO: <address>")
TOO_MANY_RECIPIENTS = Reply(452, "4.5.3", "Error: too many recipients")
NOT_AUTHORIZED = Reply(550, "5.7.0", "Error: insufficient authorization")
IN_TRANSACTION = Reply(503, "5.5.1", "Error: MAIL transaction in progress")
BAD_ATTRIBUTE = Reply(501, "5.5.4", "Error: bad attribute name or value")
CANNOT_VERIFY = Reply(502, "5.5.1", "Could not VRFY")
NOT_VERIFIED = Reply(252, "2.0.0", "Cannot VRFY user, but will accept message and attempt delivery")
NO_BDAT = Reply(502, "5.5.1", "Error: BDAT is not offered")
NO_EXPN = Reply(502, "5.5.1", "EXPN not implemented")
NO_AUTH = Reply(502, "5.5.1", "Error: authentication is not offered")
NO_TLS = Reply(454, "4.7.0", "TLS not available")
READY_FOR_TLS = Reply(220, "2.0.0", "Ready to start TLS")
IS_LMTP = Reply(500, "5.5.1", "Error: this is LMTP, send LHLO")
