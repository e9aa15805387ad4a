"""File types, by the first bytes and by the name, and tags where the two contradict each other.

Families, not formats: a mail client opens a file by its name, so all that matters is whether a
program is disguised as a document. Pure tables.
"""

from __future__ import annotations

import re

EXECUTABLE, DOCUMENT, ARCHIVE, IMAGE, MEDIA, TEXT = "executable", "document", "archive", "image", "media", "text"

_MAGIC: list[tuple[bytes, str]] = [
    (b"MZ", EXECUTABLE),
    (b"\x7fELF", EXECUTABLE),
    (b"\xcf\xfa\xed\xfe", EXECUTABLE),
    (b"\xca\xfe\xba\xbe", EXECUTABLE),
    (b"L\x00\x00\x00\x01\x14\x02\x00", EXECUTABLE),  # a Windows shortcut
    (b"#!", EXECUTABLE),
    (b"%PDF-", DOCUMENT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", DOCUMENT),  # OLE2: old Office, also MSI
    (b"{\\rtf", DOCUMENT),
    (b"PK\x03\x04", ARCHIVE),
    (b"PK\x05\x06", ARCHIVE),
    (b"\x1f\x8b", ARCHIVE),
    (b"BZh", ARCHIVE),
    (b"\xfd7zXZ\x00", ARCHIVE),
    (b"Rar!\x1a\x07", ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", ARCHIVE),
    (b"MSCF", ARCHIVE),
    (b"\x60\xea", ARCHIVE),  # ARJ
    (b"\x28\xb5\x2f\xfd", ARCHIVE),  # Zstandard
    (b"\xce\xfa\xed\xfe", EXECUTABLE),
    (b"\xfe\xed\xfa\xce", EXECUTABLE),
    (b"\xfe\xed\xfa\xcf", EXECUTABLE),
    (b"ITSF", EXECUTABLE),  # compiled HTML help
    (b"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d", DOCUMENT),  # OneNote
    (b"\x89PNG", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"RIFF", MEDIA),
    (b"ID3", MEDIA),
]

_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\r\n\f"

_EXTENSIONS = {
    EXECUTABLE: "exe com scr pif bat cmd vbs vbe js jse wsf wsh ps1 psm1 msi msp hta cpl dll jar lnk reg scf inf "
    "app dmg apk elf sh run desktop chm xll iso img vhd appx msix",
    DOCUMENT: "pdf doc docx dot dotx docm dotm xls xlsx xlsm xlsb xlt xlam ppt pptx pptm pps ppsx rtf odt ods odp one",
    ARCHIVE: "zip gz tgz bz2 xz tar rar 7z cab arj lzh ace zipx",
    IMAGE: "png jpg jpeg gif bmp tif tiff webp svg ico heic",
    MEDIA: "mp3 mp4 wav avi mov mkv ogg webm flac",
    TEXT: "txt csv log md ics vcf eml htm html xml json",
}
_FAMILY = {extension: family for family, names in _EXTENSIONS.items() for extension in names.split()}
_ZIPPED, _OLE = (
    frozenset(extensions.split())
    for extensions in (
        "docx dotx docm dotm xlsx xlsm xlsb xlam pptx pptm ppsx odt ods odp jar apk epub kmz appx msix",
        "doc dot xls xlt ppt pps msi msg pub vsd db",
    )
)
_MACRO_FILES = re.compile(rb"vbaProject\.bin|macrosheets/", re.IGNORECASE)
_OLE_MACRO = ("_VBA_PROJECT".encode("utf-16-le"), "VBA".encode("utf-16-le") + b"\x00\x00")

# Bidirectional overrides and invisible characters: `gpj.exe` shown as `exe.jpg`.
_DECEIVING = re.compile("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u00ad\ufeff\x00-\x1f\x7f]| {8,}|\\.\\s+$")


def family_of(content: bytes) -> str:
    """The family that the first bytes indicate; empty if they do not indicate any."""
    for magic, family in _MAGIC:
        if content.startswith(magic):
            return family
    return ""


def is_program(content: bytes) -> bool:
    """Whether this is certainly a program: two letters at its start alone could be an accident."""
    if content.startswith(b"MZ") and len(content) >= 64:
        at = int.from_bytes(content[60:64], "little")
        return content[at : at + 4] == b"PE\0\0"
    return content.startswith(b"\x7fELF")


def is_noise(content: bytes) -> bool:
    """Whether this is no file that anything opens: not of a known type, and no text that could be a script."""
    if family_of(content) or content[257:262] == b"ustar" or content[0x8001:0x8006] == b"CD001":
        return False
    return not is_text(content)


def is_text(content: bytes) -> bool:
    """Whether it may be text, in any charset: nearly all of its first bytes can be printed."""
    start = content[:1024].replace(b"\0", b"")
    if len(start.translate(None, _PRINTABLE)) * 8 <= len(start):
        return True
    return "\ufffd" not in start[:1020].decode("utf-8", "replace")[:-3]


def extension_of(name: str) -> str:
    _, dot, extension = name.rstrip(". \t").rpartition(".")
    return extension.strip().lower() if dot and len(extension) <= 12 else ""


def named_family(name: str) -> str:
    return _FAMILY.get(extension_of(name), "")


def tags_of(name: str, content_type: str, content: bytes) -> set[str]:
    """Tags for one attachment, from its name, its type and its bytes together."""
    found, named, real = set(), named_family(name), family_of(content)
    if EXECUTABLE in (named, real) and not (real == EXECUTABLE and _is_script_text(name, content)):
        found.add("mime:executable")
    if _name_contradicts(name, named, real) or _type_contradicts(content_type, real):
        found.add("mime:type-mismatch")
    if _DECEIVING.search(name):
        found.add("mime:deceptive-name")
    inner = named_family(name.rstrip(". \t").rpartition(".")[0])
    if named == EXECUTABLE and inner and inner != EXECUTABLE:
        found.add("mime:double-extension")
    if real == DOCUMENT and any(mark in content for mark in _OLE_MACRO):
        found.add("mime:macro")
    return found


def is_macro_member(name: str) -> bool:
    """Whether a file of this name means that the Office document containing it has macros."""
    return _MACRO_FILES.search(name.encode("utf-8", "replace")) is not None


def _name_contradicts(name: str, named: str, real: str) -> bool:
    extension = extension_of(name)
    if not named or not real or named == real:
        return False
    if real == ARCHIVE and extension in _ZIPPED:
        return False
    if real == DOCUMENT and extension in _OLE:
        return False
    return not (named == TEXT and real == EXECUTABLE and extension not in ("txt", "csv", "log"))


def _type_contradicts(content_type: str, real: str) -> bool:
    """A program whose content type says image, text, audio, video or PDF."""
    return real == EXECUTABLE and content_type.startswith(("image/", "text/", "audio/", "video/", "application/pdf"))


def _is_script_text(name: str, content: bytes) -> bool:
    """Plain text without a name that happens to start with `#!` or `MZ`: it cannot be run with a click."""
    return not name and content[:2] in (b"#!", b"MZ") and content[:512].isascii() and b"\x00" not in content[:512]
