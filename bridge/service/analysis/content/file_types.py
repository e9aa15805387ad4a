"""File types, by the first bytes and by the name, and tags where the two contradict each other.

Families, not formats: a mail client opens a file by its name, so all that matters is whether a
program is disguised as a document. Pure tables.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache

EXECUTABLE, DOCUMENT, ARCHIVE, IMAGE, MEDIA, TEXT = "executable", "document", "archive", "image", "media", "text"

_OLE_START = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MAGIC: list[tuple[bytes, str]] = [
    (b"MZ", EXECUTABLE),
    (b"\x7fELF", EXECUTABLE),
    (b"\xcf\xfa\xed\xfe", EXECUTABLE),
    (b"\xca\xfe\xba\xbe", EXECUTABLE),
    (b"L\x00\x00\x00\x01\x14\x02\x00", EXECUTABLE),  # a Windows shortcut
    (b"#!", EXECUTABLE),
    (b"%PDF-", DOCUMENT),
    (_OLE_START, DOCUMENT),  # OLE2: old Office, also MSI
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
    # Drawings of AutoCAD 13 to 2018, in both forms; and databases. They may have pieces of archives in them.
    *((b"AC10%d\0" % version, DOCUMENT) for version in (12, 14, 15, 18, 21, 24, 27, 32)),
    (b"AutoCAD Binary DXF\r\n\x1a\0", DOCUMENT),
    (b"SQLite format 3\0", DOCUMENT),
    (b"\x89PNG", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"GIF8", IMAGE),
    (b"RIFF", MEDIA),
    (b"ID3", MEDIA),
]

_BEGINNINGS = tuple(magic for magic, _ in _MAGIC)
_NOT_CONTROL = bytes(set(range(0x20, 0x100)) - {0x7F}) + b"\t\r\n\f\x1b"

_EXTENSIONS = {
    # What Windows, macOS or Linux runs, installs or mounts when it is opened, and what mail programs and gateways
    # refuse by default for that reason. Without the types that ordinary mail contains: certificates, databases, web
    # pages.
    EXECUTABLE: "exe com scr pif bat cmd vb vbs vbe vbp vbscript js jse mjs ws wsf wsc wsh sct ps1 ps1xml ps2 ps2xml "
    "psc1 psc2 psd1 psdm1 psm1 pssc cdxml msh msh1 msh2 mshxml msh1xml msh2xml msc msi msp mst msu hta htc cpl dll ocx "
    "sys drv vxd efi mui jar jnlp lnk url website webloc reg scf inf ins isp app application appref-ms appx appxbundle "
    "msix msixbundle appinstaller appcontent-ms settingcontent-ms library-ms search-ms searchconnector-ms diagcab "
    "diagcfg diagpkg gadget xbap xnk dmg pkg mpkg apk xapk aab ipa deb rpm snap flatpak appimage elf sh bash csh ksh "
    "zsh fish run command tool workflow scpt scptd applescript action desktop chm hlp its xll wll vsto iso img udf vhd "
    "vhdx vhdset wim esd swm py pyc pyo pyw pyz pyzw pl rb php phar ahk au3 ade adp mad maf mag mam maq mar mas mau "
    "mav maw mda mde accde accda mdw mdz osd pcd plg prg ops bas bgi fxp grp hpj ex_ ex shb shs rdp theme "
    "terminal inetloc fileloc afploc ftploc vncloc atloc nfsloc httploc mailloc newsloc saver prefpane dylib wsb "
    "xpi crx oxt vsix a3x mcf mdt accdr accdu odc contact xsn "
    "themepack deskthemepack iqy oqy dqy rqy slk printerexport webpnp nsh air swf paf rgs tlb udl vsmacros "
    "vsw mobileconfig ppkg sparseimage prf pyd rbw flatpakref flatpakrepo",
    DOCUMENT: "pdf doc docx dot dotx docm dotm xls xlsx xlsm xlsb xlt xlam ppt pptx pptm pps ppsx "
    "ppsm potm potx ppam ppa sldm xla xlm xltm xltx rtf odt ods odp one",
    ARCHIVE: "zip gz tgz bz2 xz tar rar 7z cab arj lzh ace zipx",
    IMAGE: "png jpg jpeg gif bmp tif tiff webp svg ico heic",
    MEDIA: "mp3 mp4 wav avi mov mkv ogg webm flac",
    TEXT: "txt csv log md ics vcf eml htm html xml json",
}
_FAMILY = {extension: family for family, names in _EXTENSIONS.items() for extension in names.split()}
_ZIPPED, _OLE = (
    frozenset(extensions.split())
    for extensions in (
        "docx dotx docm dotm xlsx xlsm xlsb xlam xltm xltx pptx pptm ppsx ppsm potm potx ppam sldm odt ods odp jar apk "
        "xapk aab ipa epub kmz appx appxbundle msix msixbundle phar vsto air",
        "doc dot xls xlt xla ppt pps ppa msi msp mst msg pub vsd db ade adp mda mde",
    )
)
_MACRO_FILES = re.compile(rb"vbaProject\.bin|macrosheets/", re.IGNORECASE)
_OLE_MACRO = ("_VBA_PROJECT".encode("utf-16-le"), "VBA".encode("utf-16-le") + b"\x00\x00")

# Bidirectional overrides and invisible characters: `gpj.exe` shown as `exe.jpg`.
_DECEIVING = re.compile("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\u00ad\ufeff\x00-\x1f\x7f]| {8,}|\\.\\s+$")


def family_of(content: bytes) -> str:
    """The family that the first bytes indicate; empty if they do not indicate any."""
    if not content.startswith(_BEGINNINGS):  # nearly all content ends here
        return ""
    for magic, family in _MAGIC:
        if content.startswith(magic):
            return IMAGE if content[8:12] == b"WEBP" and magic == b"RIFF" else family
    return ""


def is_program(content: bytes) -> bool:
    """Whether this is certainly a program: two letters at its start alone could be a coincidence."""
    if content.startswith(b"MZ") and len(content) >= 64:
        at = int.from_bytes(content[60:64], "little")
        return content[at : at + 4] == b"PE\0\0"
    return content.startswith(b"\x7fELF")


def is_noise(content: bytes) -> bool:
    """Whether nothing opens this as a file: it has no known type, and is not text that could be a script."""
    if family_of(content) or content[257:262] == b"ustar" or content[0x8001:0x8006] == b"CD001":
        return False
    return not is_text(content)


def is_text(content: bytes) -> bool:
    """Whether it may be text, in any charset: nearly none of its first bytes are control characters."""
    return _has_few_controls(content[:1024])


def is_binary(content: bytes) -> bool:
    """Whether it is a file of a known type, and not text, even if its first bytes are: as of most PDF documents.

    What begins as an old Office document is none, although most of it may be text.
    """
    return content.startswith(_OLE_START) or (bool(family_of(content)) and not _has_few_controls(content))


def _has_few_controls(content: bytes) -> bool:
    content = content.replace(b"\0", b"")
    return len(content.translate(None, _NOT_CONTROL)) * 32 <= len(content)


def extension_of(name: str) -> str:
    """What decides how a file is opened, once it is saved: a program's extension if any reading of the name has one."""
    found = extensions_of(name)
    return next((extension for extension in found if _FAMILY.get(extension) == EXECUTABLE), found[0])


def has_extension(names: Iterable[str], extensions: Collection[str]) -> bool:
    """Whether any reading of any of the names has one of these extensions."""
    return any(extension in extensions for name in names for extension in extensions_of(name))


@lru_cache(maxsize=512)  # asked several times for each attachment
def extensions_of(name: str) -> tuple[str, ...]:
    """The extension in each reading of the name."""
    if _PLAIN_NAME.fullmatch(name):
        return (_last_extension(name.rstrip(". \t")),)
    shown = _DOTS.sub(".", _INVISIBLE.sub("", unicodedata.normalize("NFKC", name))).rstrip(_AFTER)
    found = [_last_extension(name.rstrip(". \t")), _last_extension(shown)]
    if found[1] not in _FAMILY:
        parts = (part for mark in ":;?#%" if mark in shown for part in (shown.partition(mark), shown.rpartition(mark)))
        found += [_last_extension(before.rstrip(_AFTER)) for before, _, _ in parts]
    return tuple(found)


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ .()+-]*")
_INVISIBLE = re.compile("[\u0000-\u001f\u007f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_DOTS = re.compile("[\u2024\u3002\uff0e\uff61\ufe52]")
# What systems and programs remove from the end of a name, or do not allow there. What follows one of `:;?#%` may go
# too: `x.exe::$DATA`, `x.exe;1`, `x.exe?a=b`, `x.exe%20`.
_AFTER = " \t\r\n\v\f.?*|/\\\"'<>;,:&#`\xa0\x85\ufffd"  # the last is what bytes of no known charset become


def _last_extension(name: str) -> str:
    _, dot, extension = name.rpartition(".")
    extension = extension.strip().lower() if dot else ""
    return "lnk" if _CLASS.fullmatch(extension) else extension


_CLASS = re.compile(r"\{[0-9a-f-]{25,}\}")  # `x.{3050f4d8-...}`: Windows opens it with that class, and hides this


def named_family(name: str) -> str:
    return _FAMILY.get(extension_of(name), "")


def is_program_type(content_type: str) -> bool:
    """Whether a part without a name would, by its type, get the extension of a program when it is saved."""
    return content_type in _PROGRAM_TYPES or named_family(content_type) == EXECUTABLE


_PROGRAM_TYPES = frozenset(
    f"{kind}/{name}"
    for kind, names in (
        (
            "application",
            "x-msdownload x-msdos-program x-dosexec x-exe x-ms-dos-executable vnd.microsoft.portable-executable x-com "
            "x-bat x-msi x-ms-installer x-ms-shortcut x-ms-application x-java-archive java-archive x-java-jnlp-file "
            "hta javascript x-javascript ecmascript x-ecmascript x-vbscript x-powershell x-sh x-shellscript x-csh "
            "x-executable x-mach-binary x-sharedlib x-apple-diskimage vnd.android.package-archive "
            "x-cd-image x-iso9660-image x-iso9660-appimage x-raw-disk-image x-vhd-disk x-vhdx-disk x-ms-wim x-xar "
            "x-mswinurl internet-shortcut x-desktop x-rdp x-internet-signup x-windows-themepack x-xpinstall winhlp "
            "x-php x-perl x-ruby x-python-code x-python-bytecode x-silverlight vnd.adobe.flash.movie vnd.ms-htmlhelp "
            "vnd.debian.binary-package vnd.apple.installer+xml vnd.openofficeorg.extension x-rpm x-source-rpm "
            "x-redhat-package-manager",
        ),
        (
            "text",
            "javascript vbscript ecmascript jscript livescript x-javascript x-ecmascript x-python x-sh vbs x-vbscript "
            "scriptlet x-component x-ms-regedit spreadsheet",
        ),
    )
    for name in names.split()
)


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
