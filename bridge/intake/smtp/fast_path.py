"""The fast path: recognises MAIL, RCPT, DATA and QUIT in the form that nearly every client sends, with one match.

It only recognises; `session` executes the command as if the full parser had read the line. Every line that this file
accepts is correct beyond doubt and means what `paths.parse_path` would make of it; all other lines, and so every
refusal of a malformed line, are left to the full parser. If this is wrong, a line is accepted that should have been
refused.
"""

from __future__ import annotations

import re

MAX_SIZE = 9_999_999  # the largest SIZE in an ordinary line

# Shorter than every limit on a line, and without characters that some parser treats specially.
_ADDRESS = r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9.-]{1,128}"
_MAIL_PARAMETERS = r"(?: SIZE=[0-9]{1,7})?(?: BODY=8BITMIME)?"  # those that Postfix sends
_RCPT_PARAMETERS = r"(?: ORCPT=rfc822;[A-Za-z0-9_.@-]{1,192})?"

# Groups: sender, its parameters, recipient, its parameters, another verb.
ORDINARY_LINE = re.compile(
    f"MAIL FROM:<({_ADDRESS}|)>({_MAIL_PARAMETERS})|RCPT TO:<({_ADDRESS})>({_RCPT_PARAMETERS})|(DATA|QUIT)", re.ASCII
)
_fullmatch = ORDINARY_LINE.fullmatch


# A verb, its arguments as the full parser would return them (address and parameters, or nothing), and the text of the
# parameters. A plain tuple, because Python 3.11 takes 0.4 us to make a NamedTuple, for each line of each mail.
OrdinaryLine = tuple[str, tuple[str, list[str]] | tuple[()], str]


def recognise(line: bytes) -> OrdinaryLine | None:
    """The command in this line (without its CRLF), or None if the full parser has to read it."""
    match = _fullmatch(line.decode("latin-1"))
    if match is None:
        return None
    sender, mail_parameters, recipient, rcpt_parameters, verb = match.groups()
    if sender is not None:
        return "MAIL", (sender, mail_parameters.split()), mail_parameters
    if recipient is not None:
        return "RCPT", (recipient, rcpt_parameters.split()), rcpt_parameters
    return verb, (), ""
