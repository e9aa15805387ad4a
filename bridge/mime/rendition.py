"""A plain mail made of the objects of an ambiguous one, for engines that read MIME themselves.

An engine that scans whole mails would read the ambiguous mail only in its own way. It can read this one in only one
way: one multipart, one boundary, every object in Base64.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence


def as_mail(objects: Sequence[bytes]) -> bytes:
    boundary = secrets.token_hex(16).encode()  # so that no object can contain it
    parts = [
        b"--%b\r\nContent-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n%b\r\n"
        % (boundary, base64.encodebytes(content).replace(b"\n", b"\r\n"))
        for content in objects
    ]
    head = b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="%b"\r\n\r\n' % boundary
    return head + b"".join(parts) + b"--%b--\r\n" % boundary
