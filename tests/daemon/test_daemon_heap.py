"""What content needed is given back to the system when it is gone, though something behind it is still in use."""

from __future__ import annotations

from bridge.daemon.heap import Heap, _resident

MiB = 1024 * 1024
BLOCK, KEPT, COUNT = 60_000, 700, 1000  # below what the C library maps apart, above what Python has pools for


def test_memory_of_mail_that_is_over_goes_back() -> None:
    """A burst leaves the process as large as before it, not as large as at its peak."""
    heap = Heap()
    before = _resident()
    content, kept = [], []
    for number in range(COUNT):
        content.append(bytes([number % 256]) * BLOCK)
        kept.append(bytes([number % 256]) * KEPT)
    heap.look()
    assert _resident() - before > 40 * MiB, "what is in use stays"
    content.clear()
    heap.look()
    assert _resident() - before < 15 * MiB
    assert all(len(one) == KEPT for one in kept)


def test_a_little_is_not_worth_the_work() -> None:
    """What is soon needed again stays: each page that is given back has to be asked for anew."""
    heap = Heap()
    trimmed: list[int] = []
    assert heap._libc is not None
    heap._libc.malloc_trim = trimmed.append
    content = [bytes([number]) * BLOCK for number in range(20)]
    content.clear()
    heap.look()
    assert trimmed == []
