"""Mails to train and judge the phishing model with: a directory per source, one mail per file. None is committed.

    CORPUS/ham/NAME/*         legitimate mail, one directory for each source
    CORPUS/phishing/NAME/*    phishing, likewise

What a collector or a receiving server added after the border is removed: verdicts of other filters, and the address of
a spam trap, which would tell the answer. Mails of a source are ordered by the time they were received.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

MAX_BYTES = 2_000_000
_VERDICTS = re.compile(
    rb"^(?:x-spam|x-ms-|x-microsoft|x-forefront|x-exchange|x-sid-|x-message-|x-rspamd|x-virus|x-mozilla|x-gmail|x-eopattr|"
    rb"x-incomingheadercount|x-incomingtopheadermarker|x-store-info|x-auth-id|authentication-results|received-spf|arc-|"
    rb"x-pyzor|x-bogosity|x-crm114|x-original-to|delivered-to|x-scan-)[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*\r?\n",
    re.IGNORECASE | re.MULTILINE,
)
_TRAPS = re.compile(rb"phish(?:ing)?@pot", re.IGNORECASE)
_TRAP_NAME = re.compile(rb"(?<![a-z0-9.@-])phishing(?=[^\r\n]{0,3}[,!])", re.IGNORECASE)
_RETURN_PATH = re.compile(rb"^return-path:[ \t]*<?([^>\s]*)", re.IGNORECASE | re.MULTILINE)
_RECEIVED = re.compile(rb"^received:[^;]{0,2000};[ \t\r\n]*([^\r\n;]+)", re.IGNORECASE | re.MULTILINE)
_DATE = re.compile(rb"^date:[ \t]*([^\r\n]+)", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\r?\n(?=\r?\n)")
_NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class CorpusMail:
    source: str
    path: Path
    is_phishing: bool

    def content(self) -> bytes:
        """As the border server got it."""
        raw = self.path.read_bytes().lstrip(b"\r\n")
        if raw.startswith((b"From ", b">From ")):
            raw = raw.partition(b"\n")[2]
        end = _HEAD_END.search(raw)
        size = end.end() if end else len(raw)
        kept = _VERDICTS.sub(b"", raw[:size]) + raw[size:]
        return _TRAP_NAME.sub(b"jane", _TRAPS.sub(b"jane.doe@mailhost.org", kept))


def envelope_from(content: bytes) -> str:
    match = _RETURN_PATH.search(content[:20_000])
    return match[1].decode("latin-1") if match else ""


def time_of(path: Path) -> float:
    """When the last server received it; 0 if nobody says."""
    head = path.read_bytes()[:20_000]
    for pattern in (_RECEIVED, _DATE):
        match = pattern.search(head)
        try:
            if match:
                return parsedate_to_datetime(match[1].decode("latin-1").strip()).timestamp()
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return 0.0


def mails(root: Path, kind: str) -> Iterator[CorpusMail]:
    """All mails of a kind (`ham`, `phishing`), source by source, in the order of their files."""
    for directory in sorted(path for path in (root / kind).iterdir() if path.is_dir()):
        for path in sorted(directory.rglob("*"), key=_natural):
            if path.is_file() and 0 < path.stat().st_size <= MAX_BYTES and path.suffix not in (".csv", ".json", ".md"):
                yield CorpusMail(directory.name, path, kind == "phishing")


def by_time(found: list[CorpusMail]) -> list[CorpusMail]:
    """Oldest first. A mail whose time is unknown or impossible stays beside its neighbour in the collection."""
    times: list[tuple[float, int]] = []
    last = 0.0
    for number, mail in enumerate(found):
        stamp = time_of(mail.path)
        last = stamp if 9e8 < stamp < 1.9e9 else last
        times.append((last, number))
    return [found[number] for _, number in sorted(times)]


def _natural(path: Path) -> list[object]:
    return [int(piece) if piece.isdigit() else piece for piece in _NUMBER.split(str(path))]
