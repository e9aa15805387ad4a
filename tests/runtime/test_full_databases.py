"""A database on a full disk fails with an error, which costs rows: it must not end the process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from bridge.history.entry import LaterEvent
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryError
from bridge.runtime.database import Database, writing
from tests.history.history_kit import mail
from tests.requirements import need, unavailable

LEFT_KIB = range(0, 64, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With blocks of 1 KiB, as ext4 has below 512 MB: SQLite counts on blocks of 4 KiB."""
    need("mkfs.ext4", "mount", "umount", root=True)
    image, place = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, 12 * 1024 * 1024)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-b", "1024", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False, capture_output=True).returncode:
        unavailable("a small disk cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def fill(disk: Path, left_kib: int) -> None:
    with (disk / "fill").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1024)):
            pass
    os.truncate(disk / "fill", max(0, (disk / "fill").stat().st_size - left_kib * 1024))


def ends_by_signal(work: Callable[[], None]) -> bool:
    """Whether the work ends its process, which is a child of ours."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def open_history(directory: Path) -> None:
    with closing(SqliteHistory(directory / "history")) as store:
        for write in (lambda: store.append([mail()]), lambda: store.note([LaterEvent(0.0, "ID", "released")])):
            with suppress(HistoryError):
                write()


def open_database(directory: Path) -> None:
    engine = Database.file(directory / "state.sqlite").engine(wait_s=0.1)
    with suppress(SQLAlchemyError), writing(engine) as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS found (name TEXT)"))


@pytest.mark.parametrize("work", [open_history, open_database])
def test_a_full_disk_with_small_blocks_ended_the_daemon(small_disk: Path, work: Callable[[Path], None]) -> None:
    """SIGBUS, again and again: SQLite's memory-mapped file had no block where it was written."""
    ended = []
    for left_kib in LEFT_KIB:
        directory = small_disk / f"{left_kib}"
        directory.mkdir()
        fill(small_disk, left_kib)
        if ends_by_signal(lambda directory=directory: work(directory)):  # type: ignore[misc]
            ended.append(left_kib)
        (small_disk / "fill").unlink()
    assert ended == []


def test_writing_to_a_database_on_a_full_disk_fails_as_usual(small_disk: Path) -> None:
    """In the daemon, it was an unexpected error with a stack trace."""
    engine = Database.file(small_disk / "state.sqlite").engine(wait_s=0.1)
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE found (name TEXT)"))
    fill(small_disk, 0)
    with pytest.raises(SQLAlchemyError, match="full"), writing(engine):
        pass
    engine.dispose()


def test_a_database_on_a_disk_with_room_is_written(small_disk: Path) -> None:
    open_history(small_disk)
    with closing(SqliteHistory(small_disk / "history")) as store:
        assert len(store.later(["ID"])) == 1
