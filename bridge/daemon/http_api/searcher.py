"""The program that searches the history: `python -m bridge.daemon.http_api.searcher`, started by `query_queue`.

Searching is CPU-bound, and Python runs one thread at a time: a search in a thread of the daemon made mail wait for
tenths of a second. A separate process has lower priority than the others, limited memory, and can be killed.

It reads JSON from standard input, one object per line: first where the history is, then questions. It answers each
with a line of JSON, and as many bytes as that line says. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.daemon.http_api import answers
from bridge.daemon.http_api.failures import ApiError
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryError, HistoryStore
from bridge.runtime.early_signals import ignore_hangup

MAX_MEMORY = 256 * 1024**2  # bytes of address space; it needs 85 MB before the first question
LONGEST_S = 60  # if the daemon is killed, nothing else ends a long search
_NICE = 10
_DATABASE_S = 12.0  # for one statement


def main() -> None:
    ignore_hangup()
    with suppress(OSError):
        os.nice(_NICE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    store = _open(json.loads(sys.stdin.buffer.readline()))
    for line in sys.stdin.buffer:
        signal.alarm(LONGEST_S)
        head, body = _answer(store, json.loads(line))
        signal.alarm(0)
        sys.stdout.buffer.write(json.dumps({**head, "size": len(body)}).encode() + b"\n" + body)
        sys.stdout.buffer.flush()


def _open(place: dict[str, Any]) -> HistoryStore:
    if "directory" in place:
        return SqliteHistory(Path(place["directory"]))
    from bridge.history.postgresql import PostgresHistory  # it needs the driver
    from bridge.runtime.database import Database

    return PostgresHistory(Database(place["url"], place["password"]), busy_s=_DATABASE_S)


def _answer(store: HistoryStore, question: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    try:
        return {}, _ask(store, question)
    except ApiError as exc:
        return exc.body, b""
    except HistoryError as exc:
        is_slow = "statement timeout" in str(exc)  # PostgreSQL
        return {"error": "query_timeout" if is_slow else "history_unavailable", "message": str(exc)}, b""
    except MemoryError:
        problem = "the query needs too much memory; narrow it, for example with `since`"
        return ApiError("query_too_large", problem).body, b""


def _ask(store: HistoryStore, question: dict[str, Any]) -> bytes:
    tenants = None if question["tenants"] is None else frozenset(question["tenants"])
    if question["about"] == "mail":
        quarantine = question["quarantine"]
        return answers.story(store, question["id"], tenants, None if quarantine is None else Path(quarantine))
    query = replace(HistoryQuery(**question["query"]), tenants=tenants)
    return answers.sums(store, question["by"], query) if question["about"] == "stats" else answers.page(store, query)


if __name__ == "__main__":
    main()
