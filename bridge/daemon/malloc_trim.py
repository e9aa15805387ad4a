"""Returns memory that mail no longer needs to the system.

The C library keeps freed memory that lies below anything still in use. Without this, a process would
stay as large after a burst as it was at its peak: with thousands of mails in flight, room for the
content of hundreds would be held and not used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os

_LOOK_S = 1.0
_WORTH_IT = 4 * 1024 * 1024  # bytes; memory that is returned and needed again costs a page fault per 4 KiB
_PAGE = os.sysconf("SC_PAGE_SIZE")


class MallocTrim:
    """`watch` trims the heap whenever more than a little of it is unused."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._resident = self._used = 0  # at the last moment when nothing was unused
        self._note_baseline()

    def _note_baseline(self) -> None:
        self._resident, self._used = resident_bytes(), self._allocated()

    def _allocated(self) -> int:
        return int(self._libc.mallinfo2().uordblks) if self._libc is not None else 0

    async def watch(self) -> None:
        """Until cancelled; returns immediately if the C library has no malloc_trim."""
        while self._libc is not None:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Trim if it is worth it. Looking takes a few microseconds, trimming some milliseconds per 100 MB."""
        assert self._libc is not None
        unused = (resident_bytes() - self._resident) - (self._allocated() - self._used)
        if unused > _WORTH_IT:
            self._libc.malloc_trim(0)
        if unused > _WORTH_IT or unused < 0:
            self._note_baseline()


class _Mallinfo2(ctypes.Structure):
    """As in malloc.h; `uordblks` is the number of bytes allocated from the heap."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def _libc() -> ctypes.CDLL | None:
    """The GNU C library, 2.33 or later; None for any other."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2") or not hasattr(libc, "malloc_trim"):
        return None
    libc.mallinfo2.restype = _Mallinfo2
    return libc


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * _PAGE
