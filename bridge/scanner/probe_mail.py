"""The test mail that shows whether a scanner works.

A failure does not show whether the mail or the scanner is the cause, and the sender may have made the mail
for that purpose. A mail that no sender can change answers the question. It goes only to the scanner, never to a
recipient: after a failure, and from `scanbridge check`, because a service may answer status requests but refuse to
scan.
"""

from __future__ import annotations

from email.utils import formatdate, make_msgid

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.mail.message import Message, Spool

ADDRESS = "postmaster@localhost"
SUBJECT = "scanbridge: does the scanner work?"

_BORDER = BorderMtaData(ADDRESS, (ADDRESS,), "127.0.0.1", "localhost")
_SPOOL = Spool(1024 * 1024)  # separate from that of the mail in processing, which may be full


def probe_mail(tenant: str | None) -> tuple[AnalysisRequest, Message]:
    """A new mail, of the tenant whose mail failed: a scanner may refuse others. The caller closes it."""
    message = Message(_SPOOL)
    head = (
        f"From: <{ADDRESS}>\r\nTo: <{ADDRESS}>\r\nSubject: {SUBJECT}\r\n"
        f"Date: {formatdate()}\r\nMessage-ID: {make_msgid(domain='localhost')}\r\n"
    )
    message.write(head.encode("ascii") + b"\r\nThis mail only asks whether the scanner works.\r\n")
    return AnalysisRequest(_BORDER, tenant), message
