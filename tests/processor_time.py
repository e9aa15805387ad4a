"""The processor time of a piece of work, whatever else this process and this machine do meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

SLACK_S = 0.003  # what a clock and a busy machine add


def cpu_s(work: Callable[[], object], attempts: int = 3) -> float:
    """The least of several attempts: the others met something else."""
    best = 9.0
    gc.disable()
    try:
        for _ in range(attempts):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
    finally:
        gc.enable()
    return best


def is_linear(work: Callable[[Any], object], short: Any, long: Any) -> bool:
    """Four times the text takes four times as long, not sixteen times. Doubts are resolved by trying again."""
    return any(_is_linear(work, short, long, attempts) for attempts in (1, 3, 9))


def _is_linear(work: Callable[[Any], object], short: Any, long: Any, attempts: int) -> bool:
    taken_s = cpu_s(lambda: work(long), attempts)
    return taken_s <= SLACK_S or taken_s <= 8 * cpu_s(lambda: work(short), attempts) + SLACK_S
