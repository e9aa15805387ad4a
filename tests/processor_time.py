"""The processor time of a piece of work, whatever else this process and this machine do meanwhile."""

from __future__ import annotations

import gc
import math
import re
import time
from collections.abc import Callable
from typing import Any

SLACK_S = 0.003  # what a clock and a busy machine add


def cpu_s(work: Callable[[], object], attempts: int = 3) -> float:
    """The least of several attempts: the others met something else."""
    best = math.inf
    gc.disable()
    try:
        for _ in range(attempts):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
    finally:
        gc.enable()
    return best


REFERENCE_S = 0.012  # what `_known_work` takes on the machine for which the limits in tests were chosen


def fair_cpu_s(work: Callable[[], object], attempts: int = 1) -> float:
    """The same as on the machine for which the limits in tests were chosen, if this one is slower now.

    Up to four times slower: a measurement that was disturbed excuses no work that takes ten times as long.
    """
    before = _slowness()
    taken_s = cpu_s(work, attempts)
    return taken_s / min(4.0, max(1.0, before, _slowness()))


def _slowness() -> float:
    return cpu_s(_known_work, attempts=2) / REFERENCE_S


def _known_work() -> list[str]:
    """Some of what our programs do: text, patterns and dictionaries."""
    words: dict[str, int] = {}
    for number in range(4000):
        word = f"{number * 7919 % 1_000_003:x}"
        words[word] = words.get(word, 0) + len(re.findall("[a-f]", word))
    return sorted(words)


def is_linear(work: Callable[[Any], object], short: Any, long: Any) -> bool:
    """Four times the text takes four times as long, not sixteen times. Doubts are resolved by trying again."""
    return any(_is_linear(work, short, long, attempts) for attempts in (1, 3, 9))


def _is_linear(work: Callable[[Any], object], short: Any, long: Any, attempts: int) -> bool:
    taken_s = cpu_s(lambda: work(long), attempts)
    return taken_s <= SLACK_S or taken_s <= 8 * cpu_s(lambda: work(short), attempts) + SLACK_S
