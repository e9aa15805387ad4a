"""The files of a history in SQLite: which segments there are, what their names say, and which of them count.

The contents of a segment, and how they are written, are in `segments`. If this is wrong, mails are counted twice, or
not at all.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from bridge.history.store import HistoryError
from bridge.runtime import durable_files

_FINISHED = re.compile(r"(\d{13})-(\d{13})-([0-9a-f]{8})\.sqlite")
_LIVE = re.compile(r"slot-(\d{1,3})-([0-9a-f]{8})\.live")
MERGING = "merging.json"  # see `segment_merge`
_MAX_MERGING = 1024 * 1024
_MERGING_STEP = "find out who changed it, restore the history from a backup if you have one, then remove this file"


def has_mails(directory: Path) -> bool:
    try:
        return any(_FINISHED.fullmatch(path.name) or _LIVE.fullmatch(path.name) for path in directory.iterdir())
    except OSError:
        return False


def finished_name(first: float, last: float, token: str) -> str:
    return f"{int(first * 1000):013d}-{int(last * 1000):013d}-{token}.sqlite"


def remove_live(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)


def delete_old(directory: Path, before: float, max_size: int | None) -> tuple[int, int]:
    """Delete finished segments that end before this time, then the oldest until all fit. Returns both numbers."""
    finished = sorted((last, path) for _, last, path in segment_files(directory) if not is_live(path))
    old = [path for last, path in finished if last < before]
    left = [path for last, path in finished if last >= before]
    sizes = {path: size_of(path) for path in left}
    total = sum(sizes.values()) + sum(map(size_of, live_files(directory)))
    too_many = []
    while max_size is not None and total > max_size and left:
        too_many.append(left.pop(0))
        total -= sizes[too_many[-1]]
    for path in (*old, *too_many):
        path.unlink(missing_ok=True)
    return len(old), len(too_many)


def total_size(directory: Path) -> int:
    return sum(map(size_of, _files(directory)))


def segment_files(directory: Path) -> list[tuple[float, float, Path]]:
    """All segments with the times of their first and last mail; the newest first. A live one has no end."""
    files = _files(directory)
    if any(path.name == MERGING for path in files):
        files = _without_parts(directory, files)
    finished = {found[3]: (*_span(found), path) for path in files if (found := _FINISHED.fullmatch(path.name))}
    live = [
        (0.0, math.inf, path) for path in files if (found := _LIVE.fullmatch(path.name)) and found[2] not in finished
    ]
    return sorted((*finished.values(), *live), key=lambda segment: segment[1], reverse=True)


def _without_parts(directory: Path, files: list[Path]) -> list[Path]:
    """The parts of a merged segment do not count; the merged segment itself counts once it has its final name."""
    merging = read_merging(directory)
    if merging is None:  # it is complete now
        return [path for path in files if path.exists()]
    if not (directory / merging["merged"]).exists():
        return files
    return [path for path in files if path.name not in merging["parts"]]


def read_merging(directory: Path) -> dict[str, Any] | None:
    """None if nothing is being merged. Raises HistoryError if the file is not ours: we write it completely or
    not at all, and without it, a day would be counted twice or not at all."""
    path = directory / MERGING
    try:
        merging = json.loads(durable_files.read(path, _MAX_MERGING)[0])
        names = [merging["merged"], *merging["parts"]]
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise HistoryError(f"{path} cannot be used: {exc.strerror}; {_MERGING_STEP}") from exc
    except (ValueError, TypeError, KeyError) as exc:
        raise HistoryError(f"{path} is damaged; {_MERGING_STEP}") from exc
    if not all(isinstance(name, str) and _FINISHED.fullmatch(name) for name in names):
        raise HistoryError(f"{path} names files that are not segments; {_MERGING_STEP}")
    return {"merged": merging["merged"], "parts": merging["parts"]}


def live_files(directory: Path) -> list[Path]:
    """Live segments; the remains of those that have been finished are removed."""
    files = _files(directory)
    finished = {found[3] for path in files if (found := _FINISHED.fullmatch(path.name))}
    live = sorted(path for path in files if _LIVE.fullmatch(path.name))
    for path in live:
        if token_of(path) in finished:
            remove_live(path)
    return [path for path in live if token_of(path) not in finished]


def is_live(path: Path) -> bool:
    return path.suffix == ".live"


def _files(directory: Path) -> list[Path]:
    """Raises HistoryError, but not if there is no such directory."""
    try:
        return [Path(entry.path) for entry in os.scandir(directory)]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise HistoryError(f"{directory}: {exc.strerror}") from exc


def _span(found: re.Match[str]) -> tuple[float, float]:
    return int(found[1]) / 1000, (int(found[2]) + 1) / 1000


def slot_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def token_of(path: Path) -> str:
    return path.stem.split("-")[-1]


def quoted(path: Path) -> str:
    """As a part of a URI for SQLite."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
