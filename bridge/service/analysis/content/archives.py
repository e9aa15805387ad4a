"""Containers: which kinds of container some bytes are, and the files in them.

A small archive can contain a huge file, and archives can contain archives. So everything unpacked from one mail is
charged to one `Budget`, and `TooMuch` ends the walk. The same bytes can be several containers, each of which some
program opens. Formats that are not opened are recognised, by their content or by their name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial

from bridge.service.analysis.content import archive_marks, more_archives
from bridge.service.analysis.content.apple_files import apple_members, is_apple_file
from bridge.service.analysis.content.buried_archives import buried_members, has_buried
from bridge.service.analysis.content.decompression import (
    begins_as_plain_gzip,
    bzip2_members,
    gzip_members,
    is_lzma,
    is_lzma86,
    lzma_members,
    xz_members,
)
from bridge.service.analysis.content.file_types import IMAGE, MEDIA, extensions_of, family_of, named_family
from bridge.service.analysis.content.intel_hex import intel_hex_members, is_intel_hex
from bridge.service.analysis.content.openpgp import BEGIN as OPENPGP
from bridge.service.analysis.content.openpgp import is_message, openpgp_members
from bridge.service.analysis.content.tar_archive import begins_as_plain_tar, is_tar, tar_members
from bridge.service.analysis.content.tnef import MAGIC as TNEF
from bridge.service.analysis.content.tnef import tnef_members
from bridge.service.analysis.content.unpacking import UNOPENED, BadArchive, Budget, CutOff, Member
from bridge.service.analysis.content.zip_archive import begins_as_plain_zip, has_zip_member, zip_members
from bridge.service.analysis.content.zip_archive import is_volume as is_zip_volume

__all__ = ["BadArchive", "Budget", "CutOff", "Member", "has_zip_member"]

_ZIP_TAIL = 22 + 65_535  # the end-of-central-directory record and the longest comment

_MAGIC: list[tuple[bytes, str]] = [
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (TNEF, "tnef"),
    # not opened, or by libarchive:
    (b"Rar!\x1a\x07", "rar"),
    (b"RE~^", "old-rar"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"MSCF\0\0\0\0", "cab"),
    (b"ISc(", "installshield"),
    (b"LZIP", "lzip"),
    (b"\x1f\x9d", "compress"),
    (b"\x1f\xa0", "old-lzh"),
    (b"\x1f\x1e", "pack"),
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
    (b"SZDD\x88\xf0\x27\x33", "mslz"),
    (b"SZ \x88\xf0\x27\x33\xd1", "mslz"),
    (b"KWAJ\x88\xf0\x27\xd1", "mslz"),
    (b"\x8f\xaf\xac\x84", "ppmd"),
    (b"ITOLITLS", "help"),
    (b"\x89LZO\0\r\n\x1a\n", "lzop"),
    (b"LRZI\0", "lrzip"),
    (b"ArC\x01", "freearc"),
    (b"bvx2", "lzfse"),
    (b"AEA1", "apple-archive"),
    (b"!BDN", "pst"),  # the folders of Outlook
    (b"sprs\0\0\0", "disk"),
    (b"vhdxfile", "disk"),
    (b"conectix", "disk"),
    (b"KDMV", "disk"),
    (b"QFI\xfb", "disk"),
]
_BEGINNINGS = tuple(magic for magic, _ in _MAGIC)
_OTHER_BEGINNING = re.compile(
    rb"""
    (?P<zstd>[\x22-\x28]\xb5\x2f\xfd | [\x50-\x5f]\x2a\x4d\x18)  # perhaps after a frame to be skipped
    | (?P<lz4>\x04\x22\x4d\x18 | \x02\x21\x4c\x18)
    | (?P<arj>\x60\xea.[\0-\x0a])
    | (?P<lha>..-l[hz][0-9sd]-)
    | (?P<ace>.{7}\*\*ACE\*\*)
    | (?P<zoo>.{20}\xdc\xa7\xc4\xfd)
    | (?P<apple_archive>(?:AA01|YAA1).[\0-\x0f] | pbz[-4ezx]\0)
    | (?P<swf>[CFZ]WS[\1-\x32].{3}[\0-\x08\x0b\x0c\x0e-\x1f])
    | (?P<disk>.{3}NTFS\x20{4} | .{32}NXSB | .{54}FAT1[26] | .{64}\x7f\x10\xda\xbe | .{82}FAT32 | .{512}EFI\x20PART
        | .{446}(?:[\0\x80].{15} | .{4}\0.{11}){4}U\xaa | .{1024}H[+X]\0[\4\5])
    """,
    re.DOTALL | re.VERBOSE,
)
_DISK = re.compile(rb"BEA01|NSR0|CDROM")
_DISK_AT = 0x8001
_DISK_END = (b"conectix", b"koly")  # in the last 512 bytes
_UNOPENED = """
    7z 001 aar ace aea alz apfs ar arc arj br cab cpio deb dmg egg esd hfs img iso lha lrz lz lz4 lzfse lzh lzma86 lzo
    nrg ost pkg pmd pst qcow qcow2 r00 rar rpm rz sit sitx squashfs sz swm tzst udf vdi vhd vhdx vmdk wim xar xip yaa z
    z01 zoo zpaq zst
"""
_TAR_NAMES = frozenset({"tar", "tgz", "taz", "tbz", "tbz2", "tb2", "tz2", "txz", "tlz"})  # compressed or not
_UNOPENED_NAMES = frozenset(_UNOPENED.split())
_OWN_NAMES = _TAR_NAMES | {"zip", "zipx", "gz", "gzip", "bz2", "bzip2", "xz", "lzma"}
_COMPRESSED = "br bz2 gz lrz lz lz4 lzfse lzma lzma86 lzo pmd rz sz xz z zst"
_COMPRESSED_NAMES = frozenset(_COMPRESSED.split())
_PICTURES = (IMAGE, MEDIA)
BURIED = "buried"
_BEHIND = (*archive_marks.KINDS, BURIED)
_OPENED_BEHIND = tuple(kind for kind in archive_marks.KINDS if kind in more_archives.KINDS)
_SPLIT = frozenset({"zip", "tar", "gzip", "bzip2", "xz"})
_VOLUME = re.compile(r"\.(?:\d{3}|aa|z\d\d)\Z", re.IGNORECASE)
_GUESSES = frozenset({BURIED, "lzma"})


def kind_of(content: bytes) -> str:
    """The format by its first bytes, or by the end of a zip file; empty if this is not a container."""
    if content.startswith(_BEGINNINGS):
        return next(kind for magic, kind in _MAGIC if content.startswith(magic))
    if is_tar(content):
        return "tar"
    if content.startswith(b"CD001", _DISK_AT):  # perhaps with a partition table as well
        return "iso"
    if other := _OTHER_BEGINNING.match(content):
        return other.lastgroup or ""
    if len(content) >= 512 and (content.startswith(_DISK_END, len(content) - 512) or _DISK.match(content, _DISK_AT)):
        return "disk"
    if b"\x05" in content and content.rfind(b"PK\x05\x06", max(0, len(content) - _ZIP_TAIL)) >= 0:
        return "zip"  # programs recognise a zip file by its end, whatever comes before it
    return ""


def kinds_of(content: bytes, names: Collection[str]) -> list[str]:
    """Every kind that some program opens it as: first, the one that its first bytes indicate."""
    suffixes = {extension for name in names for extension in extensions_of(name)}
    kinds = [kind_of(content)]
    is_unknown = bool(suffixes & _TAR_NAMES) or not (kinds[0] or family_of(content))
    if (kinds[0] and is_tar(content)) or (is_unknown and is_tar(content, is_unknown=True)):
        kinds.append("tar")
    if has_zip_member(content):
        kinds.append("zip")
    if is_lzma(content) or is_lzma86(content) or (content and "lzma" in suffixes):
        kinds.append("lzma")
    if OPENPGP in content or is_message(content) or (content and suffixes & {"gpg", "pgp"}):
        kinds.append("openpgp")
    if is_apple_file(content):
        kinds.append("apple")
    if is_intel_hex(content):
        kinds.append("ihex")
    # Archive programs search for the start of these, whatever precedes it, unless they open that as an archive.
    begins_with_own = _PLAIN_BEGINNINGS.get(kinds[0], _is_never_plain)(content)
    others = archive_marks.LONG if _is_only_picture(content, names) else _BEHIND
    kinds += behind(content, suffixes if begins_with_own else others)
    if content and not any(kinds):
        kinds += suffixes & _UNOPENED_NAMES
        kinds += ["unknown"] if suffixes & _OWN_NAMES else []
    return [kind for kind in dict.fromkeys(kinds) if kind]


def _is_never_plain(_content: bytes) -> bool:
    return False


# Whether every archive program opens a file of this kind at its beginning; ours open more.
_PLAIN_BEGINNINGS: dict[str, Callable[[bytes], bool]] = {
    "zip": begins_as_plain_zip,
    "tar": begins_as_plain_tar,
    "gzip": begins_as_plain_gzip,
    "bzip2": bool,
    "xz": bool,
}


def begins_as_archive(content: bytes) -> bool:
    return content.startswith(_BEGINNINGS)


def is_other_file(content: bytes, names: Collection[str]) -> bool:
    """Whether it begins as a document, say, and no name says that it is an archive: it may have pieces of one in it."""
    suffixes = {extension for name in names for extension in extensions_of(name)}
    is_other = bool(family_of(content)) and not begins_as_archive(content)
    return is_other and suffixes.isdisjoint(_OWN_NAMES | _UNOPENED_NAMES)


def is_only_guessed(kinds: Collection[str], names: Collection[str]) -> bool:
    """Whether only a name says that it is an archive, apart from marks that may be a coincidence."""
    suffixes = {extension for name in names for extension in extensions_of(name)}
    return bool(kinds) and _GUESSES.issuperset(kinds) and not suffixes.isdisjoint(_OWN_NAMES | _UNOPENED_NAMES)


def behind(content: bytes, wanted: Collection[str] = _BEHIND) -> list[str]:
    """Those archives that may begin anywhere in it."""
    found = archive_marks.kinds_in(content, wanted)
    return [*found, BURIED] if BURIED in wanted and has_buried(content) else found


def may_have_one_behind(content: bytes) -> bool:
    """Whether an object in doubt may be an archive that `kind_of` does not recognise, of a kind that is opened.

    The marks of others may be a coincidence, and most of what is tested is noise.
    """
    is_marked = bool(archive_marks.kinds_in(content, _OPENED_BEHIND))
    return is_marked or has_buried(content) or is_lzma(content) or is_lzma86(content)


def _is_only_picture(content: bytes, names: Collection[str]) -> bool:
    """By its content and by its name: no one opens that with an archive program, and most large files are pictures."""
    return family_of(content) in _PICTURES and all(named_family(name) in _PICTURES for name in names)


def is_opened(kind: str, has_library: bool) -> bool:
    return kind in _OWN or (has_library and kind in more_archives.KINDS)


def inner_names(names: Collection[str]) -> list[str]:
    """The names of the single file in a compressed one, which is named after it: `a.js.Z`."""
    return [name.rpartition(".")[0] for name in names if not _COMPRESSED_NAMES.isdisjoint(extensions_of(name))]


def members(content: bytes, kind: str, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """The files in it. Raises TooMuch if the budget is exhausted, BadArchive if it is damaged."""
    found = _OPENERS[kind](content, names, budget)
    if kind not in _SPLIT or not (_is_volume_name(names) or (kind == "zip" and names and is_zip_volume(content))):
        yield from found
        return
    try:
        for member in found:
            is_split = member.broken and member.is_cut_off
            yield replace(member, broken=False, tags=(*member.tags, UNOPENED)) if is_split else member
    except CutOff:
        yield Member((), None, tags=(UNOPENED,))


def _is_volume_name(names: Collection[str]) -> bool:
    """One file of several: `a.zip.001`, or `a.tgz.aa` by `split`."""
    return any(_VOLUME.search(name) for name in names)


def _with_library(kind: str, content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    return more_archives.archive_members(content, kind, names, budget, is_at_start=kind_of(content) == kind)


_OPENERS: dict[str, Callable[[bytes, Collection[str], Budget], Iterator[Member]]] = {
    "zip": zip_members,
    "tar": tar_members,
    "gzip": gzip_members,
    "bzip2": bzip2_members,
    "xz": xz_members,
    "lzma": lzma_members,
    "tnef": tnef_members,
    "openpgp": openpgp_members,
    "apple": apple_members,
    "ihex": intel_hex_members,
    BURIED: buried_members,
}
_OWN = frozenset(_OPENERS)
_OPENERS |= {kind: partial(_with_library, kind) for kind in more_archives.KINDS}
# They contain a single file, or are part of the mail: no nesting that deserves a tag.
COMPRESSORS = (
    frozenset({"gzip", "bzip2", "xz", "lzma", "tnef", "openpgp", "apple", "ihex", BURIED}) | more_archives.SINGLE
)
