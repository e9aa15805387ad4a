"""Message: the raw bytes of one mail, in memory while small, in an unlinked file when large.

Content is kept exactly as received (CRLF line ends, dots unstuffed). All mail in processing uses one
`Spool`, which counts bytes in memory and on disk against one limit: without it, a burst of large mail
would end with the kernel's out-of-memory killer.

`spool_file` writes the file: in the bridge by threads, so that a disk that hangs does not stop the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from bridge.errors import Saturated
from bridge.mail.spool import BLOCK, LOOK_S, SpoolDisk
from bridge.mail.spool_file import DirectFile, QueuedFile, SpoolFile

_SMALL = 4096
_SPILL_EARLY = 0.75  # of the memory limit, while more content is to come
HEAD_LIMIT = 1024 * 1024  # a longer header section is cut here, see `is_head_cut`


class ByteAccount(Protocol):
    """Counts the bytes in processing: of this process, or of all workers together."""

    @property
    def in_use(self) -> int: ...

    def take(self, count: int, limit: int) -> bool:
        """Count `count` more bytes; False, and no change, if that would exceed the limit."""

    def give_back(self, count: int) -> None: ...


class OwnBytes:
    """The bytes in processing of a single process."""

    def __init__(self) -> None:
        self.in_use = 0

    def take(self, count: int, limit: int) -> bool:
        if self.in_use + count > limit:
            return False
        self.in_use += count
        return True

    def give_back(self, count: int) -> None:
        self.in_use -= count


class Spool:
    """The one account of all bytes in processing."""

    def __init__(
        self,
        limit: int,
        memory_per_mail: int = BLOCK,
        directory: str | None = None,
        account: ByteAccount | None = None,
        disk: SpoolDisk | None = None,  # None: writing a mail waits for the disk
    ) -> None:
        self.limit = limit
        self.memory_per_mail = memory_per_mail
        self.directory = directory
        self._account = OwnBytes() if account is None else account
        self.disk = disk

    @property
    def in_use(self) -> int:
        return self._account.in_use

    @property
    def is_half_full(self) -> bool:
        """Whether more than half of the limit is in use."""
        return 2 * self.in_use > self.limit

    def take(self, count: int) -> None:
        if not self._account.take(count, self.limit):
            raise Saturated("the limit on bytes in processing has been reached")

    def give_back(self, count: int) -> None:
        self._account.give_back(count)

    @property
    def is_behind(self) -> bool:
        """Whether a lot of data is waiting to be written to the disk."""
        return self.disk is not None and self.disk.is_behind()

    def may_go_on(self) -> bool:
        """Whether a client that was stopped because of the disk may send a block."""
        return self.disk is None or self.disk.may_go_on()

    async def wait_for_disk(self, until: float) -> None:
        """Waits until a client may send a block, or until this time of the event loop."""
        clock = asyncio.get_running_loop().time
        while clock() < until and not self.may_go_on():  # noqa: ASYNC110 - the disk gives no notice
            await asyncio.sleep(LOOK_S)

    def make_file(self) -> SpoolFile:
        """For a mail that is too large for memory. Raises OSError."""
        return DirectFile(self.directory) if self.disk is None else QueuedFile(self.disk, self.directory)


class Message:
    """`write` appends, `chunks` reads as often as needed, `close` releases everything."""

    __slots__ = ("_chunks", "_file", "_head", "_skip", "_spool", "_written", "has_clean_lines")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._chunks: list[bytes] = []
        self._file: SpoolFile | None = None
        self._written = 0
        self._head: bytes | None = None  # replaces the first _skip bytes, see replace_head
        self._skip = 0
        self.has_clean_lines = False  # True: the intake found no bare CR, bare LF or NUL, see `bare_line_ends`

    @classmethod
    def of(cls, chunks: Iterable[bytes]) -> Message:
        """A stored mail: it gets a separate spool, and writing it waits for the disk. Raises OSError."""
        message = cls(Spool(sys.maxsize))
        try:
            for chunk in chunks:
                message.write(chunk)
        except BaseException:
            message.close()
            raise
        return message

    @property
    def size(self) -> int:
        return self._written if self._head is None else self._written - self._skip + len(self._head)

    def write(self, chunk: bytes, is_last: bool = True) -> None:
        """Append. Raises Saturated above the common limit, and OSError when the disk is full.

        A mail that has nearly reached its memory limit, and is not complete, is moved to the file early: hundreds of
        mails may arrive at the same time, and all of them would wait in memory just below the limit.
        """
        self._spool.take(len(chunk))
        self._written += len(chunk)
        if self._file is not None:
            self._file.write(chunk)
            return
        if self._chunks and len(chunk) < _SMALL and len(self._chunks[-1]) < _SMALL:
            self._chunks[-1] += chunk  # a client that sends one byte at a time must not cost an object for each
        else:
            self._chunks.append(chunk)
        if self._written > self._spool.memory_per_mail * (1 if is_last else _SPILL_EARLY):
            self._spill()

    def _spill(self) -> None:
        self._file = self._spool.make_file()
        for chunk in self._chunks:
            self._file.write(chunk)
        self._chunks = []

    def chunks(self) -> Iterator[bytes]:
        """The content from its start, in chunks of at most a few hundred KiB."""
        if self._head is None and self._file is None:  # the usual case: a small mail as it came
            return iter(self._chunks)
        return itertools.chain((self._head,) if self._head else (), self._raw(self._skip))

    def _raw(self, offset: int) -> Iterator[bytes]:
        if self._file is not None:
            yield from self._file.read(offset)
            return
        for chunk in self._chunks:
            if offset >= len(chunk):
                offset -= len(chunk)
            else:
                yield chunk[offset:] if offset else chunk
                offset = 0

    @contextmanager
    def original(self) -> Iterator[bytes | mmap.mmap]:
        """The whole content as it was received, for readers that need it in one piece."""
        descriptor = None if self._file is None else self._file.descriptor
        if descriptor is None:
            yield b"".join(self._raw(0))
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content

    @property
    def is_in_file(self) -> bool:
        return self._file is not None

    async def is_kept(self) -> bool:
        """Whether a mail in a file could be written. A disk that hangs is not waited for: the rest is in memory.

        Before this has returned, a read may have to wait for the thread that writes.
        """
        return self._file is None or await self._file.is_kept()

    @property
    def is_behind(self) -> bool:
        """Whether it is in a file, and a lot of data is waiting to be written."""
        return self._file is not None and self._spool.is_behind

    def stop(self) -> None:
        """The client is stopped because of the disk."""
        if self._file is not None:
            self._file.expect(more=False)

    def may_go_on(self) -> bool:
        """Whether a client that was stopped may send a block. If so, more of them may follow."""
        if self._file is None:
            return True
        is_allowed = self._spool.may_go_on()
        if is_allowed:
            self._file.expect(more=True)
        return is_allowed

    def head(self) -> bytes:
        """The header section, including the CRLF of its last field but not the blank line."""
        if self._head is not None:
            return self._head
        first = self._chunks[0] if self._chunks else b""
        end = first.find(b"\r\n\r\n")
        if end > 0 and not first.startswith(b"\r\n"):  # the usual case
            return first[: end + 2]
        head = b""
        for chunk in self._raw(0):
            start = max(len(head) - 3, 0)
            head = head + chunk if head else chunk
            if head.startswith(b"\r\n"):
                return b""
            end = head.find(b"\r\n\r\n", start)
            if end >= 0:
                return head[: end + 2]
            if len(head) > HEAD_LIMIT:
                end = head.rfind(b"\r\n", 0, HEAD_LIMIT)
                return head[: end + 2] if end >= 0 else b""  # not even the first line is complete
        return head

    def begins_with_space(self) -> bool:
        """Whether the first line, however long, would continue a header field that is put in front of it."""
        if self._head is None and self._chunks:  # the usual case
            first = self._chunks[0]
        else:
            first = self._head or next(self._raw(self._skip), b"")
        return first.startswith((b" ", b"\t"))

    def is_head_cut(self) -> bool:
        """Whether `head` ended at its limit, and more fields follow. It stays true, whatever is removed from `head`."""
        return self._written > HEAD_LIMIT and self._after_head() not in (b"", b"\r\n")

    def is_head_cut_in_field(self) -> bool:
        """Whether `head` ended at its limit, and the last field in it continues in the rest."""
        return self._after_head()[:1] in (b" ", b"\t")

    def _after_head(self) -> bytes:
        """The first two bytes after `head`; also b"" if the whole mail is too short for the limit."""
        if self._written <= HEAD_LIMIT:
            return b""
        found = b""
        for chunk in self._raw(self._skip if self._head is not None else len(self.head())):
            found += chunk[:2]
            if len(found) >= 2:
                break
        return found[:2]

    def replace_head(self, head: bytes) -> None:
        """From now on the content reads as if `head` had been received instead of `self.head()`."""
        if self._head is None:
            self._skip = len(self.head())
        self._head = head

    def with_head(self, head: bytes) -> Message:
        """The same content with another header section, to be read before this message is closed."""
        return _WithHead(self, head)

    def close(self) -> None:
        """Release memory, file and the spool's bytes. Reading after this yields nothing."""
        if not self._written and self._head is None:  # a mail is closed by the filter, and once more by its connection
            return
        self._spool.give_back(self._written)
        self._written = self._skip = 0
        self._chunks = []
        self._head = None
        if self._file is not None:
            self._file.close()
            self._file = None


class _WithHead(Message):
    """Its own header section, followed by another message's content; it owns no resources."""

    __slots__ = ("_origin",)

    def __init__(self, origin: Message, head: bytes) -> None:
        super().__init__(origin._spool)
        self._origin = origin
        self._written = origin._written
        self._skip = origin._skip if origin._head is not None else len(origin.head())
        self._head = head
        self.has_clean_lines = origin.has_clean_lines

    def _raw(self, offset: int) -> Iterator[bytes]:
        return self._origin._raw(offset)

    def close(self) -> None:
        """The other message is closed by its owner."""
