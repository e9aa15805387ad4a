"""Runs a target on mutations of its corpus, guided by the lines of `bridge` that an input reaches.

Small and slow compared with libFuzzer, which `fuzz.py` uses where atheris is installed; but it is always available,
needs no compiler, and the same seed repeats the same run. Inputs that reach new lines are mutated further.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import bridge
from tests.fuzz.targets import TARGETS, Target, seeds
from tests.processor_time import cpu_s

MAX_INPUT = 12_000
SLOW_S = 2.0  # CPU time for one input: no input from a stranger may cost more
WATCHED = str(Path(bridge.__file__).parent)
WORDS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"\xff",
        b".",
        b"\r\n.\r\n",
        b" ",
        b"\t",
        b":",
        b";",
        b"=",
        b'"',
        b"\\",
        b"<",
        b">",
    ),
    *(
        b"@",
        b"--",
        b"--b",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"%",
        b"+0D+0A",
        b"=?",
        b"?=",
        b"\\ud800",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
    ),
    *(
        b"0",
        b"-1",
        b"65536",
        b"99999999999999999999",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\1",
        b"&a",
        b"*a",
        b"!!",
        b"- ",
    ),
    *("\u0130".encode(), "\u00df".encode(), "\u3002".encode(), "\u2028".encode(), "\u00b2".encode(), "\ufeff".encode()),
)


@dataclass
class Broken(Exception):
    """A promise broken by an input."""

    target: str
    data: bytes
    cause: BaseException

    def __str__(self) -> str:
        return f"{self.target}: {type(self.cause).__name__}: {self.cause}"


@dataclass
class Run:
    """One run of a target. `inputs` counts them; `pool` gains the inputs that reach new lines."""

    name: str
    dice: Random
    inputs: int = 0
    pool: list[bytes] = field(default_factory=list)
    reached: set[tuple[Any, int]] = field(default_factory=set)

    @property
    def target(self) -> Target:
        return TARGETS[self.name]

    def replay(self, watch_each: int = 1) -> None:
        """Runs the unchanged corpus, and sees what every one of `watch_each` inputs reaches."""
        for number, data in enumerate(seeds(self.name)):
            self.pool.append(data)
            self.try_one(data, watch=number % watch_each == 0)

    def mutate(self, seconds: float = 0.0, inputs: int = 0) -> None:
        """Runs mutations until the time is up and `inputs` have been tried."""
        end, last = time.monotonic() + seconds, self.inputs + inputs
        while self.inputs < last or time.monotonic() < end:
            data = changed(self.dice, self.pool)
            if self.try_one(data, watch=self.inputs % 4 == 0):  # tracing makes an input ten times slower
                self.pool.append(data)

    def try_one(self, data: bytes, watch: bool = False) -> bool:
        """Whether the input reached a line that no earlier input did. Raises Broken."""
        self.inputs += 1
        before, start = len(self.reached), time.process_time()
        trace = sys.gettrace()
        if watch:
            sys.settrace(self._enter)
        try:
            self.target(data)
        except Exception as exc:
            raise Broken(self.name, data, exc) from exc
        finally:
            sys.settrace(trace)
        # Being watched, a first import and a busy machine cost time, too: only an input that stays slow is one.
        if time.process_time() - start > SLOW_S and cpu_s(lambda: self.target(data)) > SLOW_S:
            raise Broken(self.name, data, TimeoutError("the input takes too long"))
        return len(self.reached) > before

    def _enter(self, frame: FrameType, _event: str, _arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(WATCHED) else None

    def _line(self, frame: FrameType, _event: str, _arg: object) -> Any:
        self.reached.add((frame.f_code, frame.f_lineno))
        return self._line


def changed(dice: Random, pool: list[bytes]) -> bytes:
    """A random mutation of inputs in the pool."""
    data = bytearray(dice.choice(pool))
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        at = dice.randint(0, len(data))
        to = min(len(data), at + dice.choice((0, 1, 1, 2, 5, 40)))
        match dice.randrange(7):
            case 0:
                data[at:to] = b""
            case 1:
                data[at:to] = dice.choice(WORDS)
            case 2:
                data[at:at] = dice.choice(WORDS)
            case 3:
                data[at:to] = dice.randbytes(dice.randint(1, 4))
            case 4:
                data[at:at] = data[at:to] * dice.choice((1, 2, 100))
            case 5:
                other = dice.choice(pool)
                start = dice.randint(0, len(other))
                data[at:to] = other[start : start + dice.choice((1, 10, 100, 5000))]
            case _:
                if at < len(data):
                    data[at] ^= 1 << dice.randrange(8)
    return bytes(data[:MAX_INPUT])


def smaller(broken: Broken, seconds: float = 10.0) -> bytes:
    """A shorter input with the same kind of failure."""
    data, end, size = broken.data, time.monotonic() + seconds, max(1, len(broken.data) // 2)
    while size and time.monotonic() < end:
        for start in range(0, len(data), size):
            shorter = data[:start] + data[start + size :]
            try:
                TARGETS[broken.target](shorter)
            except Exception as exc:
                if type(exc) is type(broken.cause):
                    data = shorter
                    break
        else:
            size //= 2
    return data
