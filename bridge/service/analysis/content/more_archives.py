"""Archives that libarchive opens: RAR, 7z, cab, ISO images, cpio, ar, LHA, rpm, and Zstandard, lz4, lzip, compress.

Runs only in the process that inspects archives: libarchive is written in C and reads hostile bytes. Only the formats
below are enabled. Others would read files of this machine (mtree), start programs (lrzip, grzip, lzop), parse XML
(xar), or read again what our own stricter readers have read (zip, tar). Without the package `libarchive-c` or the
library, nothing here is called: the archive gets the tag of those that are not opened.

Everything that comes out is charged to the budget of the mail, block by block, and what goes in as work. What takes
long and yields nothing is ended by the time limit of the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from types import ModuleType
from typing import Any

from bridge.service.analysis.content import archive_marks
from bridge.service.analysis.content.rar_headers import facts_of
from bridge.service.analysis.content.unpacking import MAX_MEMBER, UNOPENED, BadArchive, Budget, CutOff, Member

# For each kind: the filters and the formats of libarchive that are enabled.
_READERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rar": ((), ("rar", "rar5")),
    "7z": ((), ("7zip",)),
    "cab": ((), ("cab",)),
    "iso": ((), ("iso9660",)),
    "cpio": ((), ("cpio",)),
    "ar": ((), ("ar",)),
    "lha": ((), ("lha",)),
    "rpm": (("rpm", "gzip", "bzip2", "xz", "lzma", "zstd"), ("cpio",)),
    "zstd": (("zstd", "lz4"), ("raw",)),  # both may begin with a frame to be skipped
    "lz4": (("lz4",), ("raw",)),
    "lzip": (("lzip",), ("raw",)),
    "compress": (("compress",), ("raw",)),
}
KINDS = frozenset(_READERS)
SINGLE = frozenset(kind for kind, (_, formats) in _READERS.items() if formats == ("raw",))  # one file, without a name
# Engines open these themselves. But ClamAV supports few methods of 7z, and none of RAR without a non-free library.
_KNOWN_TO_ENGINES = frozenset({"rar", "7z", "cab", "iso", "cpio"})

_BLOCK = 256 * 1024
_SLOW_WORK = 3  # for each byte: up to 40 ns with PPMd
_MEMBER_WORK = 4096  # for each member: names are converted
_MAX_PLACES = 20  # where an archive may begin
_PLACE_WORK = 16 * 1024  # for each of them, and
_MAX_PLACE_WORK = 1024 * 1024  # at most this much for its bytes: most are not read
_DESCRIPTORS = slice(0x8000, 0x8000 + 32 * 2048)  # of an ISO image
_JOLIET = (b"%/@", b"%/C", b"%/E")  # a second tree of names, perhaps of other files
_OUT_OF_MEMORY = 12  # ENOMEM
_SUFFIXES = {".tzst": ".tar", ".zst": "", ".lz4": "", ".lz": "", ".z": ""}


@cache
def library() -> ModuleType | None:
    """`libarchive.ffi`, or None if the package or the library is missing."""
    os.environ.setdefault("LIBARCHIVE", "libarchive.so.13")  # else a subprocess would search for it
    try:
        from libarchive import ffi
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    try:
        for name, arguments in (("entry_is_encrypted", 1), ("read_has_encrypted_entries", 1)):
            ffi.ffi(name, [ffi.c_void_p] * arguments, ffi.c_int)
        ffi.ffi("read_set_options", [ffi.c_void_p, ffi.c_char_p], ffi.c_int)
    except AttributeError:  # older than libarchive 3.2
        return None
    return ffi  # type: ignore[no-any-return]


def archive_members(
    content: bytes, kind: str, names: Collection[str], budget: Budget, *, is_at_start: bool
) -> Iterator[Member]:
    """The files in it, wherever it begins. Raises TooMuch, and BadArchive if it is damaged.

    Other programs open the first archive that they can read, so each place is tried until one can be read; for a
    mark that is no coincidence, the others are tried as well, because we read some archives that others refuse.
    """
    if library() is None:
        yield Member((), None, tags=(UNOPENED,))
        return
    found = islice(archive_marks.places(content, kind), _MAX_PLACES + 1)
    places = list(dict.fromkeys([0, *found] if is_at_start else found)) or [0]
    is_long, is_bad = kind in archive_marks.LONG, False
    for number, start in enumerate(places[:_MAX_PLACES]):
        rest = content[start:] if start else content
        budget.take_work(len(rest) if number == 0 else _PLACE_WORK + min(len(rest), _MAX_PLACE_WORK))
        is_certain = number == 0 and (is_long or start == 0)
        is_whole = True
        try:
            for member in _archive(rest, kind, names, budget):
                is_whole = is_whole and not member.broken and UNOPENED not in member.tags
                yield member if is_certain else replace(member, broken=False)
        except BadArchive:
            is_bad, is_whole = is_bad or is_certain, False
            if not is_certain:
                yield Member((), None, tags=(UNOPENED,))
        if is_whole and not is_long:
            break
    else:
        if len(places) > _MAX_PLACES:
            yield Member((), None, tags=(UNOPENED,))
    if is_bad:
        raise BadArchive


def _archive(content: bytes, kind: str, names: Collection[str], budget: Budget) -> Iterator[Member]:
    facts = facts_of(content, budget)
    if facts.is_encrypted:
        yield Member((), None, encrypted=True)
    if facts.is_volume:
        yield Member((), None, tags=(UNOPENED,))
    try:
        yield from _members(content, kind, names, budget, b"")
    except BadArchive:
        if not facts.is_encrypted and not facts.is_volume:  # else, that is the reason
            raise
    if kind == "iso":
        descriptors = content[_DESCRIPTORS]
        if any(mark in descriptors for mark in _JOLIET):
            budget.take_work(len(content))
            yield from _members(content, kind, names, budget, b"iso9660:!joliet")
        if b"NSR0" in descriptors:  # UDF as well: perhaps other files
            yield Member((), None, tags=(UNOPENED,))


def _members(content: bytes, kind: str, names: Collection[str], budget: Budget, options: bytes) -> Iterator[Member]:
    from libarchive.exception import ArchiveError

    count, is_known = 0, kind in _KNOWN_TO_ENGINES
    charge = _charge(budget, len(content))
    with _prepared(kind, options) as (ffi, archive, entry):
        try:
            ffi.read_open_memory(archive, content, len(content))
            while ffi.read_next_header2(archive, entry) != ffi.ARCHIVE_EOF:
                count += 1
                budget.take_member()
                budget.take_work(_MEMBER_WORK)
                if ffi.entry_filetype(entry) & 0o170000 != 0o040000:
                    own = _stems(names) if kind in SINGLE else _names(ffi, entry)
                    member, is_over = _member(ffi, archive, entry, own, charge)
                    yield replace(member, is_disputed=not is_known, is_seldom_read=is_known)
                    if is_over and member.broken:
                        raise CutOff if member.is_cut_off else BadArchive
                    if is_over:
                        return
        except ArchiveError as exc:
            member = _unread(ffi, archive if count else None, exc, ())
            if count or not member.broken:
                yield member
            if count and member.broken:
                raise (CutOff if member.is_cut_off else BadArchive) from None
            if member.broken:
                yield Member((), None, tags=(UNOPENED,))
        else:
            if count == 0:  # other programs may find something
                is_encrypted = ffi.read_has_encrypted_entries(archive) == 1
                yield Member((), None, encrypted=is_encrypted, tags=(UNOPENED,))


def _charge(budget: Budget, given: int) -> Callable[[int], None]:
    """For what comes out of an archive of this size: some of its methods are slow."""
    total = 0

    def charge(length: int) -> None:
        nonlocal total
        total += length
        budget.take(length)
        budget.take_slow(length, total, given, _SLOW_WORK)

    return charge


@contextmanager
def _prepared(kind: str, options: bytes) -> Iterator[tuple[Any, int, int]]:
    """The library, an archive and an entry."""
    ffi = library()
    assert ffi is not None
    archive, entry = ffi.read_new(), ffi.entry_new()
    try:
        filters, formats = _READERS[kind]
        for name in filters:
            ffi.get_read_filter_function(name)(archive)
        for name in formats:
            ffi.get_read_format_function(name)(archive)
        if options:
            ffi.read_set_options(archive, options)
        yield ffi, archive, entry
    finally:
        ffi.entry_free(entry)
        ffi.read_free(archive)


def _member(
    ffi: Any, archive: int, entry: int, names: tuple[str, ...], charge: Callable[[int], None]
) -> tuple[Member, bool]:
    """One file, and whether it is the last that can be read: after a fatal error, libarchive would crash."""
    from libarchive.exception import ArchiveError

    if ffi.entry_is_encrypted(entry):
        return Member(names, None, encrypted=True), False
    buffer = ffi.ctypes.create_string_buffer(_BLOCK)
    pieces: list[bytes] = []
    size = 0
    try:
        while (length := ffi.read_data(archive, buffer, _BLOCK)) > 0:
            charge(length)
            size += length
            if size > MAX_MEMBER:
                return Member(names, b"".join(pieces), limit="archive-size"), False
            pieces.append(ffi.ctypes.string_at(buffer, length))
    except ArchiveError as exc:
        member = _unread(ffi, archive, exc, names, b"".join(pieces) or None)
        return member, exc.retcode == ffi.ARCHIVE_FATAL
    return Member(names, b"".join(pieces), broken=length < 0), False


def _unread(ffi: Any, archive: int | None, exc: Any, names: tuple[str, ...], content: bytes | None = None) -> Member:
    """Why the library does not read on: only its text distinguishes unsupported data from damaged data.

    `archive` is None if no format was recognised: asked about such an archive, libarchive crashes.
    """
    text = str(exc).lower()
    if "encrypt" in text or "passphrase" in text:
        return Member(names, None, encrypted=True)
    if exc.errno == _OUT_OF_MEMORY or "memory" in text:
        return Member(names, content, limit="archive-memory")
    if "support" in text or "codec id" in text:  # "unsupported", "not supported", "unknown codec ID"
        return Member(names, content, tags=(UNOPENED,))
    if archive is not None and ffi.read_has_encrypted_entries(archive) == 1:
        return Member(names, None, encrypted=True)
    return Member(names, content, broken=True, is_cut_off="truncated" in text)


def _names(ffi: Any, entry: int) -> tuple[str, ...]:
    wide, narrow = ffi.entry_pathname_w(entry), ffi.entry_pathname(entry)
    found = [wide, narrow.decode("utf-8", "replace") if narrow is not None else None]
    return tuple(dict.fromkeys(name for name in found if name)) or ("",)


def _stems(names: Collection[str]) -> tuple[str, ...]:
    """The name of a compressed file, without the suffix."""
    found = [
        name[: -len(suffix)] + rest
        for name in names
        for suffix, rest in _SUFFIXES.items()
        if name.lower().endswith(suffix)
    ]
    return tuple(found) or tuple(names) or ("",)
