"""Measures how quickly the history is searched, and its size on disk: `make bench-history`.

    python bench/history.py [--rows 10000000] [--stores sqlite,postgresql] [--out docs/evidence/history.md]

Fills each database with the mails of 30 days. Then looks up mails by every key, reads pages of filtered lists, each
with different values, and deletes old entries while new ones are written.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bridge.history.entry import Kind, Row
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore

DAYS = 30
BATCH = 2_000
_dice = random.Random(4)  # noqa: S311 - the same mails in every run
_KINDS = [
    Kind(
        "mx",
        "",
        "",
        action,
        decision,
        verdict,
        f"policy.{decision or 'unavailable'}",
        tags,
        "",
        "",
        "",
        "",
        "",
        "http://s",
    )
    for action, decision, verdict, tags in (
        *[("relay", "deliver", "clean", "")] * 50,
        *[("relay", "deliver", "clean", "auth:spf:pass,auth:dkim:pass")] * 30,
        *[("quarantine", "quarantine", "spam", f"spam:score:{score},link:list") for score in range(5, 12)],
        ("reject", "bounce", "malware", "malware:eicar"),
        ("tempfail", "", "", ""),
        ("relay", "deliver", "clean", "mime:ambiguous:nul"),
    )
]
_WORDS = [f"word{number}" for number in range(3000)]


def mail(number: int, at: float) -> tuple[Kind, Row]:
    bits = _dice.getrandbits
    subject = " ".join(_dice.choices(_WORDS, k=6))
    return _dice.choice(_KINDS), Row(
        *(at, f"{number:019X}", f"S{bits(40):X}", f"{11 + bits(4)}.{bits(8)}.{bits(8)}.{bits(6)}", "mail.example.net"),
        *(f"u{bits(12)}@d{bits(14)}.example", f"r{bits(11)}@example{bits(3)}.org", 3000 + bits(13)),
        *(f"<{bits(80):x}@mail.example>", subject, "250 2.0.0 Ok: queued as 4bXyZk1234", f"{bits(128):x}"),
        *(0.0001, 0.0123, 0.0021, f"Q{bits(40):X}", f"N{bits(40):X}", "", 1, None),
    )


def fill(store: HistoryStore, rows: int, now: float) -> float:
    """Returns the CPU seconds of the writer, without those of making up the mails."""
    step, used = DAYS * 86400 / rows, 0.0
    for first in range(0, rows, BATCH):
        batch = [mail(number, now - (rows - number) * step) for number in range(first, min(first + BATCH, rows))]
        began = time.process_time()
        store.append(batch)
        used += time.process_time() - began
        if first % (BATCH * 100) == 0:
            print(f"\r{first:,} of {rows:,}", end="", flush=True)
    print(f"\r{rows:,} of {rows:,}")
    return used


def searches(samples: list[Row], now: float) -> dict[str, Callable[[Row], HistoryQuery]]:
    """By name: the search for a mail like this one."""
    day = 86400
    return {
        "key: our id": lambda row: HistoryQuery(what=row.id),
        "key: session": lambda row: HistoryQuery(what=row.session),
        "key: queue id": lambda row: HistoryQuery(what=row.queue_id),
        "key: Message-ID": lambda row: HistoryQuery(what=row.message_id),
        "key: ggrid": lambda row: HistoryQuery(what=row.ggrid),
        "key: sender": lambda row: HistoryQuery(sender=row.sender),
        "key: recipient": lambda row: HistoryQuery(recipient=row.recipients),
        "key: client": lambda row: HistoryQuery(client=row.client),
        "key: subject": lambda row: HistoryQuery(subject=row.subject),
        "key: tag": lambda row: HistoryQuery(tag="malware:eicar"),
        "key: no such mail": lambda row: HistoryQuery(what=f"no{row.id}"),
        "page: the newest": lambda row: HistoryQuery(),
        "page: before a mail": lambda row: HistoryQuery(before=f"{row.at!r}:{row.id}"),
        "page: one day": lambda row: HistoryQuery(since=row.at - day, until=row.at),
        "page: decision": lambda row: HistoryQuery(decision="quarantine", before=f"{row.at!r}:{row.id}"),
        "page: sender's domain": lambda row: HistoryQuery(sender=row.sender.partition("@")[2]),
        "page: recipient and decision": lambda row: HistoryQuery(recipient=row.recipients, decision="deliver"),
        "page: word of the subject": lambda row: HistoryQuery(subject=row.subject.split()[0]),
        "page: network": lambda row: HistoryQuery(client=row.client.rpartition(".")[0] + ".0/24"),
        "page: last week, deferred": lambda row: HistoryQuery(action="tempfail", since=now - 7 * day),
    }


def measure(store: HistoryStore, rows: int, now: float, times: int = 40) -> list[tuple[str, float, float]]:
    """By search: p50 and p95 in milliseconds."""
    step = DAYS * 86400 / rows
    samples: list[Row] = []
    while len(samples) < times:
        at = now - _dice.random() * DAYS * 86400
        samples += [entry.row for entry in store.find(HistoryQuery(until=at, since=at - 100 * step - 1, limit=1))]
    found = []
    for name, search in searches(samples, now).items():
        took = []
        for row in samples:
            began = time.perf_counter()
            result = store.find(search(row))
            took.append((time.perf_counter() - began) * 1000)
            assert result or "no such" in name, name
        found.append((name, statistics.median(took), sorted(took)[int(len(took) * 0.95) - 1]))
        print(f"{name:28} p50 {found[-1][1]:7.1f} ms, p95 {found[-1][2]:7.1f} ms", flush=True)
    return found


def delete_while_writing(store: HistoryStore, now: float) -> tuple[float, float]:
    """Seconds to delete half of the entries, and the longest a batch of the writer took in the same time."""
    import threading

    longest, done = 0.0, threading.Event()

    def delete() -> None:
        store.maintain(now - DAYS / 2 * 86400, None)
        done.set()

    thread = threading.Thread(target=delete)
    began = time.perf_counter()
    thread.start()
    number = 0
    while not done.is_set() or number < 3:
        batch = [replace_time(mail(10**12 + number * 10 + each, 0.0), time.time()) for each in range(10)]
        wrote = time.perf_counter()
        store.append(batch)
        longest = max(longest, time.perf_counter() - wrote)
        number += 1
    thread.join()
    return time.perf_counter() - began, longest


def replace_time(made: tuple[Kind, Row], at: float) -> tuple[Kind, Row]:
    return made[0], made[1]._replace(at=at)


@contextmanager
def opened(kind: str) -> Iterator[HistoryStore]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="history-") as directory:
            store = SqliteHistory(Path(directory) / "history")
            yield store
            store.close()
        return
    from bridge.history.postgresql import PostgresHistory
    from bridge.runtime.database import Database
    from tests.postgresql import cluster, fresh_database

    with cluster() as server:
        made = PostgresHistory(Database(fresh_database(server.url)), busy_s=600)
        yield made
        made.close()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=10_000_000, help="number of mails (default: 10000000)")
    options.add_argument("--stores", default="sqlite,postgresql", help="databases to measure (default: both)")
    options.add_argument("--out", type=Path, help="write the result to this page")
    given = options.parse_args()
    lines = [
        "<!-- written by make bench-history -->",
        "# How quickly the history is searched",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}, {given.rows:,} mails from {DAYS} days.",
        "Goals: every look-up by a key under 50 ms, every page of a filtered list under 200 ms (p95).",
    ]
    for kind in given.stores.split(","):
        with opened(kind) as store:
            now = time.time()
            used = fill(store, given.rows, now)
            began = time.process_time()
            store.maintain(0.0, None)  # merges the segments of each day
            used += time.process_time() - began
            size = store.size() / given.rows
            lines += ["", f"## {kind}", ""]
            lines += [
                f"{size * 1e6 / 1e9:.2f} GB for a million mails; "
                f"our CPU time per mail: {used / given.rows * 1e6:.0f} us.",
                "",
            ]
            lines += ["| search | p50 ms | p95 ms | goal |", "|---|---|---|---|"]
            for name, p50, p95 in measure(store, given.rows, now):
                goal = 50 if name.startswith("key") else 200
                lines.append(f"| {name} | {p50:.1f} | {p95:.1f} | {'holds' if p95 < goal else '**missed**'} |")
            seconds, longest = delete_while_writing(store, now)
            lines += [
                "",
                f"Deleting half of it: {seconds:.1f} s; slowest batch written meanwhile: {longest * 1000:.0f} ms.",
            ]
            print(*lines[-2:], sep="\n")
    text = "\n".join(lines) + "\n"
    if given.out:
        given.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
