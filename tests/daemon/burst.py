"""A burst of content in a separate process: prints by how much it grew, with the content and after it was freed."""

from __future__ import annotations

import json

from bridge.daemon.malloc_trim import MallocTrim, resident_bytes

# Bytes: below the C library's mmap threshold, and above what Python's own allocator handles.
BLOCK, KEPT, COUNT = 60_000, 700, 1000


def burst() -> list[int]:
    trim = MallocTrim()
    before = resident_bytes()
    content, kept = [], []
    for number in range(COUNT):
        content.append(bytes([number % 256]) * BLOCK)
        kept.append(bytes([number % 256]) * KEPT)  # still in use, behind the freed content
    trim.look()
    grown = [resident_bytes() - before]
    content.clear()
    trim.look()
    return [*grown, resident_bytes() - before, sum(map(len, kept))]


if __name__ == "__main__":
    print(json.dumps(burst()))
