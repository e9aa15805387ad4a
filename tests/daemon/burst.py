"""A burst of content in a process of its own: prints what it grew by, with the content and when that was gone."""

from __future__ import annotations

import json

from bridge.daemon.malloc_trim import Heap, _resident

BLOCK, KEPT, COUNT = 60_000, 700, 1000  # below what the C library maps apart, above what Python has pools for


def burst() -> list[int]:
    heap = Heap()
    before = _resident()
    content, kept = [], []
    for number in range(COUNT):
        content.append(bytes([number % 256]) * BLOCK)
        kept.append(bytes([number % 256]) * KEPT)  # what is still in use behind it
    heap.look()
    grown = [_resident() - before]
    content.clear()
    heap.look()
    return [*grown, _resident() - before, sum(map(len, kept))]


if __name__ == "__main__":
    print(json.dumps(burst()))
