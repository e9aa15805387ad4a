"""Many held mails at once: rows of the quarantine's index, without the mails. Also for `bench/digests.py`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bridge.quarantine.index import Index
from bridge.quarantine.record import StoredRecord
from bridge.runtime.database import Database

_BATCH = 5000


def fill(
    directory: Path, count: int, people: int, *, first: int = 0, age_s: float = 7200.0, every_s: float = 1e-3
) -> None:
    """`count` mails for `people` recipients in turn, in the index of this directory; the first is the oldest."""
    index = Index(Database.file(directory / "state.sqlite"), busy_s=60.0)
    try:
        batch: list[StoredRecord] = []
        for stored in _records(count, people, first, age_s, every_s):
            batch.append(stored)
            if len(batch) == _BATCH:
                index.put(batch)
                batch = []
        index.put(batch)
    finally:
        index.close()


def _records(count: int, people: int, first: int, age_s: float, every_s: float) -> Iterator[StoredRecord]:
    now = time.time()
    for number in range(first, first + count):
        moment = now - age_s + number * every_s
        data = {
            "id": f"MAIL{number:09d}", "time": datetime.fromtimestamp(moment, UTC).isoformat(),
            "sender": f"sender{number % 977}@client.example", "recipients": [f"user{number % people}@a.example"],
            "subject": f"Held mail number {number}", "tenant": None, "size": 1234,
            "facts": {"decision": "quarantine", "verdict": "spam", "tags": ["spam:bulk"]},
        }  # fmt: skip
        yield StoredRecord(str(data["id"]), json.dumps(data).encode(), b"", moment)
