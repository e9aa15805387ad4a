"""Codes sent to users' addresses, with which they sign in.

A code belongs to the browser that asked for it, works once and for a few minutes, and ends after a few wrong guesses.
If this is wrong, people can read one another's mail.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time

from sqlalchemy import delete, insert, select, update

from bridge.console.tokens import AHEAD_S, hash_of, is_recent
from bridge.digests import database
from bridge.digests.database import DigestStore

CODE_S = 900.0
_DIGITS = 8
_MAX_TRIES = 5
_LOCK = 0xD16E574
_c = database.codes.c


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
        """Whether the code is right; it is then used up."""
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
