"""Line ends within files: what programs make of the line breaks in a part that is a file.

A part that is not in Base64 consists of lines. Over SMTP they end with CRLF, but many programs store or read mail
with LF, and an IMAP server sends CRLF again. Some change line ends only after decoding, and some remove spaces before
them, or every CR. None of this matters for text. A file that is not text is intact for one program and damaged for
another, so each form must be inspected; if one were left out, an archive could be hidden in it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator

from bridge.mime.duplicates import Seen
from bridge.mime.encodings import PLAIN, quoted_readings

_TEXT = bytes(set(range(0x20, 0x100)) - {0x7F}) + b"\t\n\v\f\r\x1b"
# All other formats that are opened have control characters in their fixed fields.
_WITHOUT_CONTROL = (b"BZh", b"\x28\xb5\x2f\xfd")  # bzip2, Zstandard
# And most of them have many different ones: zip has eight. These may have fewer.
_WITH_FEW = (
    b"\x1f\x8b",
    b"\x1f\x9d",
    b"Rar!",
    b"7z\xbc\xaf",
    b"\xfd7zXZ",
    b"MSCF",
    b"\xd0\xcf\x11\xe0",
    b"PE\0\0",
    b"ustar",
)
_MANY = 4
_BARE_CR = re.compile(rb"\r(?!\n)")
_ESCAPED_CR = re.compile(rb"=0[Dd]")
_LONE_CR = re.compile(rb"=0[Dd](?!(?:=\r?\n)?=0[Aa])")


def matter(content: bytes) -> bool:
    """Whether this decoded content may be a different file with other line ends; false for nearly all text."""
    if b"\n" not in content and b"\r" not in content:
        return False
    return _has_control(content) or _BARE_CR.search(content) is not None or _may_be_compressed(content)


def matter_in_mail(mail: bytes, unquoted: bytes | None) -> bool:
    """As `matter`, for a whole ambiguous mail, and for its form with all quoted-printable decoded, if it has any.

    There, `reason=100` becomes a control character as well.
    """
    if _has_control(mail) or _may_be_compressed(mail):
        return True
    if unquoted is None:
        return False
    found = unquoted.translate(None, _TEXT)
    if len(set(found)) >= _MANY or (found and any(mark in unquoted for mark in _WITH_FEW)):
        return True
    return _may_be_compressed(unquoted) or _LONE_CR.search(mail) is not None


def _has_control(content: bytes) -> bool:
    return bool(content.translate(None, _TEXT))


def _may_be_compressed(content: bytes) -> bool:
    if content.isascii() or not any(mark in content for mark in _WITHOUT_CONTROL):
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return False


def forms(raw: bytes, content: bytes, encoding: str, *, is_text: bool) -> Iterator[bytes]:
    """The other contents that programs may have for a part, each once; `content` is the usual one, decoded from `raw`.

    The line ends of Base64 do not matter, but programs change those of a decoded text (`is_text`, by its type).
    """
    if not matter(content):
        return
    if encoding in PLAIN:
        found: Iterable[bytes] = with_each(raw)
    elif encoding == "quoted-printable":
        found = in_quoted(raw, _usual)
    else:
        found = in_decoded(content) if is_text else ()
    seen = Seen()
    seen.is_new(content)
    yield from filter(seen.is_new, found)


def with_each(text: bytes) -> tuple[bytes, bytes]:
    """With LF, and with CRLF."""
    lf = text.replace(b"\r\n", b"\n")
    return lf, lf.replace(b"\n", b"\r\n")


def in_decoded(content: bytes) -> Iterator[bytes]:
    """What programs make of a text after decoding it."""
    if b"\r" in content:
        yield content.replace(b"\r\n", b"\n")
        yield content.translate(None, b"\r")


def _usual(raw: bytes) -> tuple[bytes]:
    return (binascii.a2b_qp(raw),)


def in_quoted(raw: bytes, decoder: Callable[[bytes], Iterable[bytes]] = quoted_readings) -> Iterator[bytes]:
    """The readings of quoted-printable with each line end; perhaps of a whole mail."""
    for text in (raw, _without_spaces(raw)):
        for form in with_each(text):
            yield from decoder(form) if b"=" in form else (form,)
        if text == raw and _ESCAPED_CR.search(raw):
            for form in with_each(raw):
                yield binascii.a2b_qp(_ESCAPED_CR.sub(b"", form))
    decoded = binascii.a2b_qp(_without_spaces(raw))
    yield decoded.replace(b"\r\n", b"\n")
    yield decoded.replace(b"\n", b"\r\n")  # also after an escaped CR


def _without_spaces(raw: bytes) -> bytes:
    """With LF, and without the spaces before it: RFC 2045, 6.7 (3). A pattern would take quadratic time."""
    lf = raw.replace(b"\r\n", b"\n")
    if b" \n" not in lf and b"\t\n" not in lf and not lf.endswith((b" ", b"\t")):
        return lf
    return b"\n".join([line.rstrip(b" \t") for line in lf.split(b"\n")])
