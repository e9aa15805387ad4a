"""Memory that mail no longer needs goes back to the system.

The C library keeps what was freed below anything that is still in use. After a burst a process would stay as large as
it was at its peak; beside thousands of mails in flight, room for the content of hundreds would lie idle.
"""

from __future__ import annotations

import asyncio
import ctypes
import os

_LOOK_S = 1.0
_WORTH_IT = 4 * 1024 * 1024  # bytes; what is given back and needed again costs a page fault for every 4 KiB
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Heap:
    """`watch` it, and it is trimmed when more than a little lies idle in it."""

    def __init__(self) -> None:
        self._libc = _libc()
        self._resident = self._used = 0  # when nothing lay idle
        self._begin()

    def _begin(self) -> None:
        self._resident, self._used = _resident(), self._allocated()

    def _allocated(self) -> int:
        return int(self._libc.mallinfo2().uordblks) if self._libc is not None else 0

    async def watch(self) -> None:
        """For ever; not at all where the C library is another."""
        while self._libc is not None:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """It takes a few microseconds; trimming takes some milliseconds for 100 MB."""
        assert self._libc is not None
        idle = (_resident() - self._resident) - (self._allocated() - self._used)
        if idle > _WORTH_IT:
            self._libc.malloc_trim(0)
        if idle > _WORTH_IT or idle < 0:
            self._begin()


class _Mallinfo2(ctypes.Structure):
    """As in malloc.h; `uordblks` is what is allocated from the heap."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def _libc() -> ctypes.CDLL | None:
    """The GNU one, from 2.33 on."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2") or not hasattr(libc, "malloc_trim"):
        return None
    libc.mallinfo2.restype = _Mallinfo2
    return libc


def _resident() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * _PAGE
