"""One action on many mails: each result is reported, a failure does not stop the others, and a summary comes last."""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from bridge.cli.progress import meter
from bridge.cli.quarantine.exit_codes import most_serious
from bridge.cli.terminal import EXIT_INTERRUPTED, say

_MANY = 20  # from here on, a terminal shows a progress bar instead of a line for each success


class Bulk:
    """Reports what happens to each of `total` mails. `done` is the verb: `deleted`."""

    def __init__(self, done: str, total: int, codes: Iterable[int] = ()) -> None:
        self._done = done
        self._codes = list(codes)
        self._total = total + len(self._codes)
        self._succeeded = 0
        self._is_bar = total >= _MANY and sys.stderr.isatty()
        self._meter = meter("quarantine", total, hidden=total < _MANY, what="mails")
        self._advance: Callable[[int], None] = lambda count: None

    def __enter__(self) -> Self:
        self._advance = self._meter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._meter.__exit__(None, None, None)
        is_cut = isinstance(exc, KeyboardInterrupt | CancelledError)
        if is_cut:
            self._codes.append(EXIT_INTERRUPTED)
        failed = self._total - self._succeeded
        if self._total > 1:
            rest = f"; {failed:,} not {self._done}{'' if is_cut else ' (see above)'}" if failed else ""
            cut = "interrupted: " if is_cut else ""
            say(f"{cut}{self._succeeded:,} of {self._total:,} mails {self._done}{rest}", err=True)
        return isinstance(exc, KeyboardInterrupt)

    @property
    def count(self) -> int:
        """How many succeeded."""
        return self._succeeded

    @property
    def code(self) -> int:
        """The exit code: the most serious of all."""
        return most_serious(self._codes)

    def succeeded(self, line: str = "") -> None:
        self._succeeded += 1
        self._advance(1)
        if line and not (self._is_bar and sys.stdout.isatty()):
            say(line)

    def failed(self, line: str, code: int) -> None:
        self._codes.append(code)
        self._advance(1)
        say(line, err=True)
