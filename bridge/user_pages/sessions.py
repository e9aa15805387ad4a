"""The sessions of users who have signed in: the browser has the secret, the database its hash.

If this is wrong, people can read one another's mail.
"""

from __future__ import annotations

import time

from sqlalchemy import delete, insert, select, update

from bridge.console.tokens import AHEAD_S, hash_of, is_recent, is_token, new_token
from bridge.digests import database
from bridge.digests.database import DigestStore

_TOUCH_S = 30.0
_MAX_PER_PERSON = 50  # the oldest is ended: the link of a digest can be used again and again
_s = database.sessions.c


class UserSessions:
    def __init__(self, store: DigestStore, idle_s: float, max_s: float) -> None:
        self._store, self._idle_s, self._max_s = store, idle_s, max_s

    def begin(self, person: str) -> str:
        """The id for the browser, always a new one."""
        token, now = new_token(), time.time()
        over = (_s.used_at < now - self._idle_s) | (_s.begun_at < now - self._max_s)
        over |= (_s.used_at > now + AHEAD_S) | (_s.begun_at > now + AHEAD_S)
        with self._store.writing() as connection:
            connection.execute(delete(database.sessions).where(over))
            many = select(_s.hash).where(_s.person == person).order_by(_s.begun_at.desc()).offset(_MAX_PER_PERSON - 1)
            surplus = [row.hash for row in connection.execute(many)]
            connection.execute(delete(database.sessions).where(_s.hash.in_(surplus)))
            row = {"hash": hash_of(token), "person": person, "begun_at": now, "used_at": now}
            connection.execute(insert(database.sessions).values(**row))
        return token

    def find(self, token: str) -> str | None:
        """Whose session it is, if it is still valid."""
        if not is_token(token):
            return None
        now, mine = time.time(), _s.hash == hash_of(token)
        with self._store.reading() as connection:
            row = connection.execute(select(database.sessions).where(mine)).first()
        if row is None:
            return None
        if not (is_recent(row.used_at, now, self._idle_s) and is_recent(row.begun_at, now, self._max_s)):
            return None
        if now - row.used_at > min(_TOUCH_S, self._idle_s / 4):
            with self._store.writing() as connection:
                connection.execute(update(database.sessions).where(mine).values(used_at=now))
        return str(row.person)

    def end(self, token: str) -> None:
        with self._store.writing() as connection:
            connection.execute(delete(database.sessions).where(_s.hash == hash_of(token)))
