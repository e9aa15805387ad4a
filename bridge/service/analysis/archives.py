"""Containers: which kinds of container some bytes are, and the files in them.

A small archive can contain a huge file, and archives can contain archives. So everything unpacked from one mail is
charged to one `Budget`, and `TooMuch` ends the walk. The same bytes can be several containers, each of which some
program opens. Formats that are not opened are recognised, by their content or by their name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from bridge.service.analysis.decompression import bzip2_members, gzip_members, is_lzma, lzma_members, xz_members
from bridge.service.analysis.file_types import extensions_of, family_of
from bridge.service.analysis.openpgp import BEGIN as OPENPGP
from bridge.service.analysis.openpgp import is_message, openpgp_members
from bridge.service.analysis.tar_archive import is_tar, tar_members
from bridge.service.analysis.tnef import MAGIC as TNEF
from bridge.service.analysis.tnef import tnef_members
from bridge.service.analysis.unpacking import BadArchive, Budget, Member
from bridge.service.analysis.zip_archive import has_zip_member, zip_members

__all__ = ["BadArchive", "Budget", "Member", "has_zip_member"]

_ZIP_TAIL = 22 + 65_535  # the end-of-central-directory record and the longest comment

_MAGIC: list[tuple[bytes, str]] = [
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (TNEF, "tnef"),
    # not opened:
    (b"Rar!\x1a\x07", "rar"),
    (b"RE~^", "rar"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"MSCF\0\0\0\0", "cab"),
    (b"ISc(", "cab"),
    (b"LZIP", "lzip"),
    (b"\x1f\x9d", "compress"),
    (b"\x1f\xa0", "compress"),
    (b"\x1f\x1e", "compress"),
    (b"070701", "cpio"),
    (b"070702", "cpio"),
    (b"070707", "cpio"),
    (b"\xc7\x71", "cpio"),
    (b"!<arch>\n", "ar"),
    (b"\xed\xab\xee\xdb", "rpm"),
    (b"MSWIM\0\0\0", "wim"),
    (b"xar!", "xar"),
    (b"hsqs", "squashfs"),
    (b"ALZ\x01", "alz"),
    (b"EGGA", "egg"),
    (b"StuffIt (c)", "stuffit"),
    (b"vhdxfile", "disk"),
    (b"conectix", "disk"),
    (b"KDMV", "disk"),
    (b"QFI\xfb", "disk"),
]
_BEGINNINGS = tuple(magic for magic, _ in _MAGIC)
_UNOPENED_BEGINNING = re.compile(
    rb"""
    [\x22-\x28]\xb5\x2f\xfd | [\x50-\x5f]\x2a\x4d\x18  # Zstandard, perhaps after a frame to be skipped
    | \x04\x22\x4d\x18 | \x02\x21\x4c\x18  # lz4
    | \x60\xea.[\0-\x0a]  # ARJ
    | ..-l[hz][0-9sd]-  # LZH
    | .{7}\*\*ACE\*\*
    | .{20}\xdc\xa7\xc4\xfd  # zoo
    """,
    re.DOTALL | re.VERBOSE,
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OUTLOOK = "__properties_version1.0".encode("utf-16-le")  # in each mail that Outlook writes to a file (`.msg`)
_DISK = re.compile(rb"CD001|BEA01|NSR0|CDROM")
_DISK_AT = 0x8001
_DISK_END = (b"conectix", b"koly")  # in the last 512 bytes
_UNOPENED = """
    7z 001 ace alz ar arc arj br cab cpio deb dmg egg esd img iso lha lz lz4 lzh lzo nrg pkg r00 rar rpm rz sit sitx
    squashfs sz swm tzst udf vdi vhd vhdx vmdk wim xar z z01 zoo zpaq zst
"""
_TAR_NAMES = frozenset({"tar", "tgz", "taz", "tbz", "tbz2", "tb2", "tz2", "txz", "tlz"})  # compressed or not
_UNOPENED_NAMES = frozenset(_UNOPENED.split())


def kind_of(content: bytes) -> str:
    """The format by its first bytes, or by the end of a zip file; empty if this is no container."""
    if content.startswith(_BEGINNINGS):
        return next(kind for magic, kind in _MAGIC if content.startswith(magic))
    if is_tar(content):
        return "tar"
    if _UNOPENED_BEGINNING.match(content):
        return "unopened"
    if len(content) >= 512 and (content.startswith(_DISK_END, len(content) - 512) or _DISK.match(content, _DISK_AT)):
        return "disk"
    if b"\x05" in content and content.rfind(b"PK\x05\x06", max(0, len(content) - _ZIP_TAIL)) >= 0:
        return "zip"  # programs recognise a zip file by its end, whatever comes before it
    return ""


def kinds_of(content: bytes, names: Collection[str]) -> list[str]:
    """Everything that some program opens it as: first what it is by its first bytes."""
    suffixes = {extension for name in names for extension in extensions_of(name)}
    kinds = [kind_of(content)]
    is_unknown = bool(suffixes & _TAR_NAMES) or not (kinds[0] or family_of(content))
    if (kinds[0] and is_tar(content)) or (is_unknown and is_tar(content, is_unknown=True)):
        kinds.append("tar")
    if has_zip_member(content):
        kinds.append("zip")
    if is_lzma(content) or (content and "lzma" in suffixes):
        kinds.append("lzma")
    if OPENPGP in content or is_message(content) or (content and suffixes & {"gpg", "pgp"}):
        kinds.append("openpgp")
    if content.startswith(_OLE) and _OUTLOOK in content:
        kinds.append("msg")
    if content and not any(kinds):
        kinds += suffixes & _UNOPENED_NAMES
    return [kind for kind in dict.fromkeys(kinds) if kind]


def members(content: bytes, kind: str, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """The files in it. Raises TooMuch if the budget is exhausted, BadArchive if it is damaged."""
    yield from _OPENERS[kind](content, names, budget)


_OPENERS: dict[str, Callable[[bytes, Collection[str], Budget], Iterator[Member]]] = {
    "zip": zip_members,
    "tar": tar_members,
    "gzip": gzip_members,
    "bzip2": bzip2_members,
    "xz": xz_members,
    "lzma": lzma_members,
    "tnef": tnef_members,
    "openpgp": openpgp_members,
}
OPENABLE = frozenset(_OPENERS)
# They contain a single file, or are part of the mail: no nesting that deserves a tag.
COMPRESSORS = frozenset({"gzip", "bzip2", "xz", "lzma", "tnef", "openpgp"})
