"""Header fields in a raw header section: what one field is, folded lines included.

Works on bytes with CRLF line ends, as `Message.head` returns them; nothing is decoded, nothing is
repaired. Callers that cut fields out, or trust their values, share this definition: a field that one
of them saw differently from another could be smuggled past the first.
"""

from __future__ import annotations

import re

from bridge.runtime.value import value

# Up to the next CRLF; a CR that does not end the line is part of it.
_LINE = rb"[^\r\n]*(?:\r(?!\n)[^\r\n]*)*"

# RFC 5322 2.2.3: a value continues on every following line that begins with a space or tab. Without the last CRLF.
FOLDED = rb"%b(?:\r\n[ \t]%b)*" % (_LINE, _LINE)

# A field that every reader sees in the same way. White space before the colon is obsolete syntax (4.5), but common
# enough; it stays part of the name. A line of white space alone ends the header section for some readers, and so does
# a bare CR, LF or NUL: with them, there is no match.
_CLEAN_FIELD = re.compile(rb"([!-9;-~]+[ \t]*):([^\r\n\0]*(?:\r\n(?=[ \t]+[^ \t\r\n\0])[^\r\n\0]+)*)\r\n")


@value
class Field:
    """One field as it is written; `name` includes white space before the colon."""

    name: bytes
    value: bytes  # folded, without the last CRLF
    raw: bytes

    @property
    def is_printable(self) -> bool:
        """Whether the value is plain text without control characters: nothing in it could end a line for any reader."""
        try:
            text = self.value.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return text.replace("\r\n", "").replace("\t", " ").isprintable()


def clean_fields(head: bytes) -> list[Field] | None:
    """All fields of a header section; None if some line of it is no field, because readers then disagree about it."""
    if head and not head.endswith(b"\r\n"):
        head += b"\r\n"
    fields, position = [], 0
    while position < len(head):
        found = _CLEAN_FIELD.match(head, position)
        if found is None:
            return None
        fields.append(Field(found[1], found[2], found[0]))
        position = found.end()
    return fields


def field_named(name: str) -> re.Pattern[bytes]:
    """Whole fields of this name, with their last CRLF; the group is the folded value."""
    return re.compile(rb"^%b[ \t]*:(%b)\r\n" % (_escaped(name), FOLDED), re.IGNORECASE | re.MULTILINE)


def fields_with_prefix(prefix: str) -> re.Pattern[bytes]:
    """Whole fields whose name begins with this prefix, with their last CRLF.

    Also lines without a colon: they are no fields, but a lenient reader may take them for ours.
    """
    return re.compile(rb"^%b%b\r\n" % (_escaped(prefix), FOLDED), re.IGNORECASE | re.MULTILINE)


def _escaped(name: str) -> bytes:
    return re.escape(name.lower().encode("ascii"))
