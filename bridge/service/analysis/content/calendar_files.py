"""Files in appointments and business cards: `ATTACH;ENCODING=BASE64;X-FILENAME=...:` (RFC 5545, RFC 2426).

Also what they start, and what is loaded with them: the value of a property may be a link, and an alarm a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from bridge.mime import encodings
from bridge.mime.structure import Part
from bridge.service.analysis.content import recognition
from bridge.service.analysis.content.office_attacks import (
    PROGRAM_LINK,
    REMOTE,
    STARTING,
    is_remote,
    starts_program,
)

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

# In lower case: a property with such a link as its value, behind its parameters, and a group in a business card.
_SCRIPTS, _FILES = ("javascript:", "vbscript:", "data:text/html"), ("file:", "\\\\", "//")
_LINK = re.compile(
    r"^(?:[a-z0-9-]{1,60}+\.)?([a-z0-9-]{1,60}+)(?=[;:])[^:\"\n]*+(?:\"[^\"\n]*+\"[^:\"\n]*+)*:\s{0,99}+"
    rf"((?:{'|'.join(_SCRIPTS)}|file:|\\\\|//|(?:{'|'.join(sorted(STARTING))}):(?=\S))[^\n]*+)",
    re.MULTILINE,
)
_TEXTS = frozenset(
    {"summary", "description", "comment", "note", "fn", "n", "org", "title", "categories"}
    | {"location", "contact", "role"}
)
_SHOWN = frozenset({"photo", "logo", "sound", "key"})  # loaded with the card
_ALARM = "begin:valarm"
_LINK_WORK = 40_000  # for each, which is read as an address
_RUNS = re.compile(r"^(?:action(?:;[^:\n]*+)?:\s{0,99}procedure|palarm[;:])", re.MULTILINE)  # PALARM: vCalendar 1.0


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


def tags(text: str, charge: Callable[[int], object]) -> Iterator[str]:
    """Links that start a program or a script, alarms that are one, and what is loaded from a server. See `texts`.

    `charge` is called with the work for each link, in nanoseconds, and may raise.
    """
    lower = _LINE_END.sub("\n", text).lower()
    if _RUNS.search(lower):
        yield PROGRAM_LINK
    for name, link in _LINK.findall(lower):
        charge(_LINK_WORK)
        if name in _TEXTS:  # which may begin with any word
            continue
        if link.startswith(_SCRIPTS) or starts_program(link):
            yield PROGRAM_LINK
        elif name in _SHOWN and link.startswith(_FILES) and is_remote(link):
            yield REMOTE
    for alarm in lower.split(_ALARM)[1:]:  # its sound
        for name, link in _LINK.findall(alarm.partition("end:valarm")[0]):
            charge(_LINK_WORK)
            if name == "attach" and link.startswith(_FILES) and is_remote(link):
                yield REMOTE
