"""Archives that are not opened, or only in part, but are not damaged either."""

from __future__ import annotations

import bz2
import gzip
import random
import subprocess
import zlib
from pathlib import Path

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.requirements import library, need
from tests.service.container_kit import decision, entry, local, tags, with_directory
from tests.service.service_kit import attached
from tests.service.test_service_forgiving_programs import FORGIVEN, TEXT

NOISE = random.Random(4).randbytes(150_000)


def made(directory: Path, *command: str) -> dict[str, bytes]:
    """The files that a program makes of one."""
    need(command[0])
    (directory / "a.bin").write_bytes(NOISE)
    subprocess.run([*command, "a.bin"], cwd=directory, capture_output=True, check=True, timeout=60)
    (directory / "a.bin").unlink()
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("command", [("zip", "-q", "-s", "64k", "o.zip"), ("7z", "a", "-v64k", "-tzip", "o.zip")])
def test_volumes_counted_as_damaged(command: tuple[str, ...], tmp_path: Path) -> None:
    files = made(tmp_path, *command)
    assert len(files) == 3
    found = [tags(content, name) for name, content in sorted(files.items())]
    assert set().union(*found) == {"mime:unopened-archive"}
    assert found.count({"mime:unopened-archive"}) == 2  # what is between them has no mark


def test_a_split_file_counted_as_damaged() -> None:
    content = gzip.compress(NOISE)[:65536]
    for name in ("a.tgz.aa", "a.gz.001"):
        assert tags(content, name) == {"mime:unopened-archive"}
    assert decision(content, "a.gz") == "quarantine"


def test_data_that_others_read_is_held_in_volumes_too() -> None:
    data, content = FORGIVEN["288 symbols"][0], TEXT
    facts = {"method": 8, "crc": zlib.crc32(content), "size": len(content)}
    content = with_directory(local(b"a.txt", data, **facts), entry(b"a.txt", packed=len(data), **facts))
    end = content.rindex(b"PK\x05\x06")
    marked = content[: end + 4] + b"\x01\0" + content[end + 6 :]
    for name in ("a.zip", "a.zip.001"):
        assert "mime:broken-archive" in tags(marked, name)


@pytest.mark.parametrize("method", [("Deflate64",), ("Swap2", "LZMA"), ("ARM64", "LZMA"), ("RISCV", "LZMA"), ("BCJ2",)])
def test_methods_that_the_library_does_not_know_counted_as_damage(method: tuple[str, ...], tmp_path: Path) -> None:
    library("libarchive", "archives")
    try:
        files = made(tmp_path, "7z", "a", *(f"-m{number}={name}" for number, name in enumerate(method)), "o.7z")
    except subprocess.CalledProcessError:
        pytest.skip("this 7-Zip does not know the method")
    assert inspect(attached(files["o.7z"], "o.7z"), Limits(formats=("libarchive",))).tags == {"mime:unopened-archive"}


def test_text_after_a_bzip2_stream_counted_as_damage() -> None:
    content = bz2.compress(NOISE[:900])
    assert tags(content + b"BZh is how it begins", "a.bz2") == set()
    assert decision(content + bz2.compress(NOISE[:900])[:500], "a.bz2") == "quarantine"
