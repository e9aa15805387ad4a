"""Failed sign-ins, counted for each user and each client address, so that passwords cannot be guessed.

Counted in the database, so that a restart or a second console does not reset the counts. A user who is being attacked
cannot sign in with a password for a while; a sign-in link still works.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, delete, func, insert, or_, select

from bridge.console import database
from bridge.console.database import ConsoleStore
from bridge.console.tokens import AHEAD_S
from bridge.runtime.ip import client_of

WINDOW_S = 900.0
MAX_PER_USER = 10
MAX_PER_ADDRESS = 30
_LOCK = 0xC0A501F  # in PostgreSQL, one count at a time
_a = database.attempts.c


class Attempts:
    def __init__(self, store: ConsoleStore) -> None:
        self._store = store

    def admit(
        self, name: str | None, address: str | None, *, pages: str = "", max_per_address: int = MAX_PER_ADDRESS
    ) -> float:
        """0 if a password may be tried now; otherwise how long to wait, in seconds. A None does not count.

        `pages`: which pages it is for, other than the console; they are counted separately.

        An attempt counts as a failure until it succeeds, so parallel attempts do not get around the limit.
        """
        now = time.time()
        keys = [] if address is None else [(_from(address, pages), max_per_address)]
        keys += [] if name is None else [(_of(name), MAX_PER_USER)]
        with self._store.writing(_LOCK) as connection:
            # An attempt in the future is from a clock that was ahead: nobody has to wait until then.
            is_old = or_(_a.at < now - WINDOW_S, _a.at > now + AHEAD_S)
            connection.execute(delete(database.attempts).where(is_old))
            wait_s = max(_wait_s(connection, about, limit, now) for about, limit in keys)
            if not wait_s:
                connection.execute(insert(database.attempts), [{"about": about, "at": now} for about, _ in keys])
        return wait_s

    def succeeded(self, name: str | None, address: str, *, pages: str = "") -> None:
        """Forget this user's failures, and this attempt from the address, which may also have tried other users."""
        last = select(func.max(_a.seq)).where(_a.about == _from(address, pages)).scalar_subquery()
        with self._store.writing() as connection:
            if name is not None:
                connection.execute(delete(database.attempts).where(_a.about == _of(name)))
            connection.execute(delete(database.attempts).where(_a.seq == last))


def _of(name: str) -> str:
    return f"user:{name[:100]}"


def _from(address: str, pages: str) -> str:
    client = client_of(address)
    return f"from:{pages} {client}" if pages else f"from:{client}"


def _wait_s(connection: Connection, about: str, limit: int, now: float) -> float:
    counted = select(func.count(), func.min(_a.at)).where(_a.about == about)
    number, first = connection.execute(counted).one()
    return max(first + WINDOW_S - now, 1.0) if number >= limit else 0.0
