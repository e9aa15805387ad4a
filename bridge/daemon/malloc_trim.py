"""Returns memory that mail no longer needs to the system.

The C library keeps freed memory that lies below anything still in use. Without this, a process would
stay as large after a burst as it was at its peak: with thousands of mails in flight, room for the
content of hundreds would be held and not used.

Only an optimisation: without the GNU C library, without /proc, or where a sandbox forbids what ctypes does, the process
runs without it, and the log says so once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_WORTH_IT = 4 * 1024 * 1024  # bytes; memory that is returned and needed again costs a page fault per 4 KiB
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Heap:
    """The C library's: how many bytes of it are allocated, and a way to return the others."""

    allocated: Callable[[], int]
    trim: Callable[[], object]


class MallocTrim:
    """`watch` trims the heap whenever more than a little of it is unused."""

    def __init__(self) -> None:
        self._resident = self._used = 0  # at the last moment without unused memory
        self.heap: Heap | None = None  # None: it cannot be trimmed
        try:
            self.heap = _heap()
            self._note_baseline()
        except (OSError, ImportError, MemoryError, AttributeError, ValueError) as exc:
            self._give_up(exc)

    def _note_baseline(self) -> None:
        if self.heap is not None:
            self._resident, self._used = resident_bytes(), self.heap.allocated()

    def _give_up(self, exc: Exception) -> None:
        self.heap = None
        log.info("unused memory is not returned to the system: %s", str(exc) or type(exc).__name__)

    async def watch(self) -> None:
        """Until cancelled; returns immediately if the heap cannot be trimmed."""
        while self.heap is not None:
            await asyncio.sleep(_LOOK_S)
            try:
                self.look()
            except (OSError, MemoryError, ValueError) as exc:  # no descriptor left, or /proc is gone
                log.debug("unused memory: %s", exc)

    def look(self) -> None:
        """Trim if it is worth it. Looking takes a few microseconds, trimming some milliseconds per 100 MB."""
        assert self.heap is not None
        unused = (resident_bytes() - self._resident) - (self.heap.allocated() - self._used)
        if unused > _WORTH_IT:
            self.heap.trim()
        if unused > _WORTH_IT or unused < 0:
            self._note_baseline()


def _heap() -> Heap:
    """The GNU C library's, 2.33 or later. Raises OSError for any other (musl), and whatever ctypes raises."""
    import ctypes  # imported here: it allocates executable memory, which a sandbox may forbid

    class Mallinfo2(ctypes.Structure):
        """As in malloc.h; `uordblks` is the number of bytes allocated from the heap."""

        _fields_ = [
            *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")),
            *((name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")),
        ]

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2") or not hasattr(libc, "malloc_trim"):
        raise OSError("the C library has no malloc_trim or mallinfo2")
    libc.mallinfo2.restype = Mallinfo2
    return Heap(lambda: int(libc.mallinfo2().uordblks), lambda: libc.malloc_trim(0))


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * _PAGE
