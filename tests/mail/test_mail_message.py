"""Message and Spool: exact bytes, one limit for all mail."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import Saturated
from bridge.mail.message import HEAD_LIMIT, Message, Spool
from bridge.mail.spool import SpoolDisk


def content(message: Message) -> bytes:
    return b"".join(message.chunks())


def filled(spool: Spool, data: bytes, step: int = 1 << 16) -> Message:
    message = Message(spool)
    for start in range(0, len(data), step):
        message.write(data[start : start + step])
    return message


@pytest.fixture(params=["memory", "file", "thread"])
def spool(request: pytest.FixtureRequest) -> Iterator[Spool]:
    """One spool that keeps mail in memory, two that write everything to a file: themselves, or by a thread."""
    disk = SpoolDisk() if request.param == "thread" else None
    spool = Spool(1 << 24, memory_per_mail=1 << 24 if request.param == "memory" else 0, disk=disk)
    yield spool
    assert spool.in_use == 0, "bytes were not given back"


@pytest.mark.parametrize("step", [1, 5, 4096, 1 << 16])
def test_content_can_be_read_repeatedly(spool: Spool, step: int) -> None:
    """The bytes are read as they were written, twice."""
    data = bytes(range(256)) * 40
    message = filled(spool, data, step)
    assert content(message) == content(message) == data
    assert message.size == spool.in_use == len(data)
    message.close()
    assert content(message) == b"" and message.size == 0


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_mail_over_the_threshold_goes_to_a_file_without_a_name(tmp_path) -> None:
    """Above the threshold nothing stays in memory, the directory looks empty, and `close` closes the file."""
    spool = Spool(1 << 20, memory_per_mail=1000, directory=str(tmp_path))
    message = Message(spool)
    before = open_files()
    message.write(b"x" * 1000)
    assert open_files() == before
    message.write(b"y")
    assert len(open_files() - before) == 1
    assert list(tmp_path.iterdir()) == []
    message.write(b"z" * 10)
    assert content(message) == b"x" * 1000 + b"y" + b"z" * 10
    message.close()
    assert open_files() == before


def test_mail_close_to_the_threshold_goes_to_a_file_early(tmp_path) -> None:
    """Hundreds of concurrent mails would fill the memory; a mail that ends below the threshold stays in memory."""
    spool = Spool(1 << 20, memory_per_mail=1000, directory=str(tmp_path))
    before = open_files()
    coming, whole = Message(spool), Message(spool)
    coming.write(b"x" * 750, is_last=False)
    assert open_files() == before
    coming.write(b"y", is_last=False)
    assert len(open_files() - before) == 1
    whole.write(b"x" * 750, is_last=False)
    whole.write(b"z" * 250)
    assert len(open_files() - before) == 1
    coming.write(b"z")
    assert content(coming) == b"x" * 750 + b"yz"
    for message in (coming, whole):
        message.close()
    assert open_files() == before


def test_file_systems_without_unnamed_files_are_supported(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without O_TMPFILE, a named file is created and unlinked."""
    real, refused = os.open, []

    def without_unnamed_files(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            refused.append(path)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", without_unnamed_files)
    message = filled(Spool(1 << 20, memory_per_mail=0, directory=str(tmp_path)), b"abc")
    assert content(message) == b"abc"
    assert list(tmp_path.iterdir()) == [] and refused == [str(tmp_path)]
    message.close()


def test_limit_applies_to_all_mail_together() -> None:
    """The byte that would exceed the common limit is refused, and released bytes can be used again."""
    spool = Spool(100)
    first, second = filled(spool, b"x" * 60), filled(spool, b"x" * 40)
    with pytest.raises(Saturated):
        second.write(b"x")
    assert spool.in_use == 100
    first.close()
    second.write(b"x" * 60)
    second.close()
    second.close()
    assert spool.in_use == 0


def test_content_that_arrives_byte_by_byte_uses_no_more_memory() -> None:
    """A client that sends one byte per segment does not make us keep an object for each."""
    spool = Spool(1 << 20, memory_per_mail=1 << 20)
    message = filled(spool, b"x" * 100_000, step=1)
    assert sum(map(sys.getsizeof, message._chunks)) < 110_000
    message.close()


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b"A: 1\r\nB: 2\r\n\r\nbody\r\n", b"A: 1\r\nB: 2\r\n"),
        (b"\r\nbody\r\n", b""),
        (b"A: 1\r\n", b"A: 1\r\n"),
        (b"", b""),
        (b"A: 1\r\n\r\n", b"A: 1\r\n"),
        (b"no header at all\r\n", b"no header at all\r\n"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_head_ends_at_the_blank_line(spool: Spool, data: bytes, head: bytes, step: int) -> None:
    """The header section is found however the content is divided; without a blank line all of it is header."""
    message = filled(spool, data, step)
    assert message.head() == head
    message.replace_head(b"N: new\r\n")
    assert message.head() == b"N: new\r\n"
    assert content(message) == b"N: new\r\n" + data[len(head) :]
    assert message.size == len(content(message))
    message.replace_head(b"")
    assert content(message) == data[len(head) :]
    message.close()


def test_endless_head_is_cut_at_a_line_end(spool: Spool) -> None:
    """More than a MiB of header is treated as if it ended there."""
    data = b"X: y\r\n" * 300_000
    message = filled(spool, data)
    head = message.head()
    assert len(head) <= HEAD_LIMIT + 2 and head.endswith(b"y\r\n")
    message.replace_head(head)
    assert content(message) == data
    message.close()


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(0, 300), st.binary(max_size=20) | st.none())
def test_content_is_the_same_for_any_writes_and_any_threshold(
    writes: list[bytes], threshold: int, head: bytes | None
) -> None:
    """Memory or file, the content is the concatenation of the writes, with the head replaced if it was."""
    spool = Spool(1 << 20, memory_per_mail=threshold)
    message = Message(spool)
    for data in writes:
        message.write(data)
    expected = b"".join(writes)
    assert content(message) == expected
    if head is not None:
        expected = head + expected[len(message.head()) :]
        message.replace_head(head)
    assert content(message) == expected and message.size == len(expected)
    message.close()
    assert spool.in_use == 0
