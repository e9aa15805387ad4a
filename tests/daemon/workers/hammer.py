"""Processes that take and give back at random, some of them killed at random; prints what it saw as JSON.

A separate program, because it forks: `hammer.py SECONDS WORKERS LIMIT BYTES_LIMIT`. It takes longer on a machine on
which too little has happened by then.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from bridge.daemon.workers.shared_counters import SharedCounters

LONGEST_S = 60.0
TOO_MANY = 3  # exit code of a worker that saw a limit exceeded


def work(counters: SharedCounters, held_now: SharedCounters, row: int, limit: int, bytes_limit: int) -> None:
    """`held_now` is the reference: counted after a slot is taken and before it is given back, under another lock."""
    mails, room, truth = counters.mails(row), counters.bytes(row), held_now.mails(row)
    held: list[int] = []
    ending = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    while not ending:
        if len(held) < 8 and random.random() < 0.6:
            size = random.randrange(1, bytes_limit // 4)
            if room.take(size, bytes_limit) is not None:
                if mails.take_one(limit) is None:
                    room.give_back(size)
                else:
                    held.append(size)
                    if truth.take(1, limit) is None:
                        os._exit(TOO_MANY)
        elif held:
            truth.give_back(1)
            mails.give_back(1)
            room.give_back(held.pop(random.randrange(len(held))))
        if room.total > bytes_limit:
            os._exit(TOO_MANY)
    while held:
        truth.give_back(1)
        mails.give_back(1)
        room.give_back(held.pop())
    os._exit(0)


def start(counters: SharedCounters, held_now: SharedCounters, row: int, limit: int, bytes_limit: int) -> int:
    pid = os.fork()
    if pid == 0:
        random.seed()
        work(counters, held_now, row, limit, bytes_limit)
    return pid


def hammer(seconds: float, workers: int, limit: int, bytes_limit: int) -> dict[str, int]:
    counters, held_now = SharedCounters(workers), SharedCounters(workers)
    mails, room, truth = counters.mails(0), counters.bytes(0), held_now.mails(0)
    pids = [start(counters, held_now, row, limit, bytes_limit) for row in range(workers)]
    seen = {"most": 0, "most_bytes": 0, "killed": 0, "wrong": 0, "fullest_deaths": 0}
    start_s = time.monotonic()

    def is_over() -> bool:
        has_all = seen["most"] >= limit and seen["killed"] > 20 and seen["fullest_deaths"] > 0
        return time.monotonic() - start_s > (seconds if has_all else LONGEST_S)

    while not is_over():
        next_kill = time.monotonic() + random.uniform(0.001, 0.02)
        while time.monotonic() < next_kill:
            seen["most"] = max(seen["most"], truth.total)
            seen["most_bytes"] = max(seen["most_bytes"], room.total)
        row = random.randrange(workers)
        os.kill(pids[row], signal.SIGKILL)
        seen["wrong"] += os.waitstatus_to_exitcode(os.waitpid(pids[row], 0)[1]) == TOO_MANY
        seen["killed"] += 1
        seen["fullest_deaths"] = max(seen["fullest_deaths"], counters.mails(row).own)
        held_now.clear(row)
        counters.clear(row)
        pids[row] = start(counters, held_now, row, limit, bytes_limit)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        seen["wrong"] += code not in (0, -signal.SIGTERM)
    return {**seen, "left": mails.total, "left_bytes": room.total}


if __name__ == "__main__":
    print(json.dumps(hammer(float(sys.argv[1]), *map(int, sys.argv[2:5]))))
