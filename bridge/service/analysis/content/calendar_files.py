"""Files in appointments and business cards: `ATTACH;ENCODING=BASE64;X-FILENAME=...:` (RFC 5545, RFC 2426)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime import encodings
from bridge.mime.structure import Part
from bridge.service.analysis.content import recognition

_FILE_NAME = re.compile(r"(?:name|label)=(?:\"([^\"]+)|([^\";:]+))", re.IGNORECASE)  # with a prefix or not
_IN_BASE64 = re.compile(  # also as vCard 2.1 writes it, or by the type of the value alone
    r"encoding=[\"']?b|;\s*base64|;\s*value=[\"']?binary", re.IGNORECASE
)
_DATA_ADDRESS = re.compile(r";\s*base64\s*,(.*)", re.IGNORECASE)  # RFC 2397: the end of `data:TYPE;base64,...`
_LINE_END = re.compile(r"[\r\n]+")  # nothing else: a form feed is not one, but may be between letters of Base64
_FOLDED = re.compile(r"(?:\r\n?|\n)[ \t]")
_FLOWED = re.compile(r" \r?\n")
_BACKSLASH = "\uffff"  # in the place of an escaped one, while the others are replaced; no text has this code
# RFC 5545 3.3.11; `\:` and `\"` are not in it, but programs write them.
_ESCAPES = (
    ("\\\\", _BACKSLASH),
    ("\\n", "\n"),
    ("\\N", "\n"),
    *((f"\\{sign}", sign) for sign in ';,:"'),
    (_BACKSLASH, "\\"),
)


def files(text: str) -> Iterator[tuple[bytes, list[str]]]:
    """The content of each, and its names. The text is `unfolded`."""
    for line in _LINE_END.split(text):
        key, _, value = line.rpartition(":")
        data = _DATA_ADDRESS.search(line) if ":data:" in line.lower() else None
        if data or _IN_BASE64.search(key):
            content = (data[1] if data else value).encode("latin-1", "replace")
            yield encodings.decode(content, "base64")[0], ["".join(names) for names in _FILE_NAME.findall(key)]


def texts(text: str, part: Part) -> Iterator[str]:
    """The text as programs show it: put together, and decoded as vCard 2.1 and vCalendar 1.0 write long texts."""
    plain = unfolded(text, part)
    found = [plain]
    if "quoted-printable" in plain.lower():
        found += [encodings.decode(plain.encode("utf-8", "replace"), "quoted-printable")[0].decode("utf-8", "replace")]
    for reading in found:
        yield from values(reading) if recognition.is_calendar(part) else [reading]


def values(text: str) -> Iterator[str]:
    r"""As written, and with the escapes replaced: a page has `https:&#47\;&#47\;host`. The text must be `unfolded`."""
    yield text
    if "\\" not in text:
        return
    for escape, sign in _ESCAPES:
        text = text.replace(escape, sign)
    yield text


def unfolded(text: str, part: Part) -> str:
    """Long lines put together: RFC 5545 3.1, or format=flowed with DelSp=yes (RFC 3676 4)."""
    return (_FOLDED if recognition.is_calendar(part) else _FLOWED).sub("", text)
