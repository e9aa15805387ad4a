"""MAIL, RCPT, DATA and QUIT as nearly every client sends them: seen whole, with one look.

Only what is right beyond doubt is seen here, and it means what `address.parse_path` would make of it; all else, and
with it every refusal of a form, is left to the commands' own code. If this is wrong, a line is taken that should have
been refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_SIZE = 9_999_999  # what SIZE can be in an ordinary line

# Shorter than any limit of a line, and no character that some parser gives a meaning of its own.
_ADDRESS = rb"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9.-]{1,128}"
_OF_MAIL = rb"(?: SIZE=[0-9]{1,7})?(?: BODY=8BITMIME)?"  # these are Postfix's
_OF_RCPT = rb"(?: ORCPT=rfc822;[A-Za-z0-9_.@-]{1,192})?"

# One whole line from a position on. Groups: sender, its parameters, recipient, its parameters, another verb.
ordinary: Callable[[bytes, int], re.Match[bytes] | None] = re.compile(
    rb"(?:MAIL FROM:<(%b|)>(%b)|RCPT TO:<(%b)>(%b)|(DATA|QUIT))\r\n" % (_ADDRESS, _OF_MAIL, _ADDRESS, _OF_RCPT)
).match
