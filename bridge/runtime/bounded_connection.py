"""Connections to PostgreSQL that do not wait for an answer for ever.

The server itself keeps `statement_timeout`. It cannot if it is frozen or its disk hangs, and a proxy may keep our
connection open though it has lost the server. TCP notices nothing: the kernel or the proxy confirms whatever we send.
A thread of the daemon would then be lost until the next restart, and a command would never end. So there is a limit of
our own, which is longer than the server's. Once it has passed, the connection is closed.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from psycopg import Connection, OperationalError

T = TypeVar("T")


def bounded(limit_s: float) -> type[Connection[Any]]:
    """A kind of connection on which no single step takes longer."""

    class Bounded(Connection[Any]):
        _given_up = False

        def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
            """Everything that the library asks the server goes through here."""
            try:
                return super().wait(_until(time.monotonic() + limit_s, gen), *arguments, **options)
            except OperationalError as exc:
                self._given_up = self._given_up or isinstance(exc, _NoAnswer)
                if not self._given_up:
                    raise
                self.close()
                raise _NoAnswer(_NO_ANSWER) from None  # also in the steps that follow, for example the end of a COPY

    return Bounded


class _NoAnswer(OperationalError):
    pass


_NO_ANSWER = "the server does not answer"


def _until(end: float, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The library resumes this ten times a second, with nothing, while no bytes arrive."""
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise _NoAnswer(_NO_ANSWER)
            wanted = steps.send(ready)
    except StopIteration as done:
        found: T = done.value
        return found
