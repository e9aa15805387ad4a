"""How users sign in: codes that are sent to their address, and the sessions that follow.

The browser has the secret, the database its hash. A code belongs to the browser that asked for it, works once and for
a few minutes, and ends after a few wrong guesses. If this is wrong, somebody reads another person's mail.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from sqlalchemy import delete, insert, select, update

from bridge.console.tokens import AHEAD_S, hash_of, is_recent, is_token, new_token
from bridge.digests import database
from bridge.digests.database import DigestStore

CODE_S = 900.0
_DIGITS = 8
_MAX_TRIES = 5
_TOUCH_S = 30.0
_MAX_PER_PERSON = 50  # the oldest is ended: the link of a digest can be used again and again
_LOCK = 0xD16E574
_s, _c = database.sessions.c, database.codes.c


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
        """Whose session it is, if it lasts."""
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


class SignInCodes:
    def __init__(self, store: DigestStore) -> None:
        self._store = store

    def make(self, person: str, browser: str) -> str:
        """A code for this person in this browser; it replaces an earlier one."""
        code, now = f"{secrets.randbelow(10**_DIGITS):0{_DIGITS}d}", time.time()
        row = {"hash": _key(person, browser), "code": _hashed(code, browser), "person": person, "until": now + CODE_S}
        with self._store.writing(_LOCK) as connection:
            over = (_c.until < now) | (_c.until > now + CODE_S + AHEAD_S)
            connection.execute(delete(database.codes).where(over | (_c.hash == row["hash"])))
            connection.execute(insert(database.codes).values(**row, tries=0))
        return code

    def use(self, person: str, browser: str, code: str) -> bool:
        """Whether it is the code; then it is used up."""
        mine = _c.hash == _key(person, browser)
        with self._store.writing(_LOCK) as connection:
            row = connection.execute(select(database.codes).where(mine)).first()
            if row is None or row.tries >= _MAX_TRIES or not is_recent(row.until - CODE_S, time.time(), CODE_S):
                return False
            if not hmac.compare_digest(row.code, _hashed(code, browser)):
                connection.execute(update(database.codes).where(mine).values(tries=row.tries + 1))
                return False
            connection.execute(delete(database.codes).where(mine))
        return True


def _key(person: str, browser: str) -> str:
    return hash_of(f"{browser} {person}")


def _hashed(code: str, browser: str) -> str:
    """The browser's secret is the salt: the database alone does not give the code away."""
    return hmac.new(browser.encode(), code.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
