"""API keys of the List API: made here, kept as hashes, checked in memory.

A key is 32 random bytes, so a plain SHA-256 is a sufficient hash: there is nothing to guess. The
key itself is shown once, when it is made. Revoked keys keep their row, for the record.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import insert, select, update
from starlette.types import Scope

from bridge.api.lists import AUTH_SCHEME
from bridge.errors import BridgeError
from bridge.service.auth import credentials, digest
from bridge.service.responses import Refused, storage_unavailable
from bridge.service.store import STORAGE_ERRORS, Store, api_key

LOOK_EVERY_S = 0.2
CHALLENGE = f'{AUTH_SCHEME} realm="lists"'


class KeyExists(BridgeError):
    """A key of this name is in use."""


class NoSuchKey(BridgeError):
    """No key of this name is in use."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    name: str
    created_at: str
    revoked_at: str | None


class KeyRing:
    """The keys of one database, kept in memory by `refresh`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._valid: tuple[bytes, ...] | None = None  # not known yet
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")

    def refresh(self) -> None:
        with self._store.reading() as connection:
            query = select(api_key.c.digest).where(api_key.c.revoked_at.is_(None))
            self._valid = tuple(bytes.fromhex(one) for one in connection.execute(query).scalars())

    async def check(self, scope: Scope) -> None:
        """Raises Refused, with 401 unless the request carries a key that is in use.

        A key made a moment ago works at once: before one is called unknown, the database is asked,
        for all who wait together and a few times a second at most.
        """
        given = digest(credentials(scope, AUTH_SCHEME, CHALLENGE))
        if self._knows(given):
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again())
        await asyncio.shield(self._looking)
        if not self._knows(given):
            raise Refused(401, "unauthorized", "the API key is not known", challenge=CHALLENGE)

    def _knows(self, given: bytes) -> bool:
        if self._valid is None:
            raise storage_unavailable()
        found = False
        for known in self._valid:
            found |= hmac.compare_digest(known, given)
        return found

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._looked_at + LOOK_EVERY_S - loop.time())
        self._looked_at = loop.time()
        try:
            await asyncio.to_thread(self.refresh)
        except STORAGE_ERRORS:  # what is known stays
            pass

    def create(self, name: str) -> str:
        """Make a key and return it, for the only time. Raises KeyExists."""
        key = secrets.token_hex(32)
        with self._store.writing() as connection:
            if connection.execute(select(api_key.c.name).where(_in_use(name))).first() is not None:
                raise KeyExists(f"there is a key named {name}; revoke it first, or take another name")
            connection.execute(insert(api_key).values(digest=digest(key).hex(), name=name, created_at=_now()))
        return key

    def adopt(self, name: str, key: str) -> None:
        """Have this key in use under this name, and no other. One that was revoked stays so: raises NoSuchKey."""
        own = digest(key).hex()
        with self._store.writing() as connection:
            known = connection.execute(select(api_key.c.revoked_at).where(api_key.c.digest == own)).first()
            if known is not None:
                if known.revoked_at is not None:
                    raise NoSuchKey(f"the key {name} was revoked")
                return
            connection.execute(update(api_key).where(_in_use(name)).values(revoked_at=_now()))
            connection.execute(insert(api_key).values(digest=own, name=name, created_at=_now()))

    def listed(self) -> list[ApiKey]:
        query = select(api_key.c.name, api_key.c.created_at, api_key.c.revoked_at).order_by(api_key.c.created_at)
        with self._store.reading() as connection:
            return [ApiKey(*row) for row in connection.execute(query)]

    def revoke(self, name: str) -> None:
        """Raises NoSuchKey."""
        with self._store.writing() as connection:
            done = connection.execute(update(api_key).where(_in_use(name)).values(revoked_at=_now()))
            if not done.rowcount:
                raise NoSuchKey(f"there is no key named {name} in use")


def _in_use(name: str):  # type: ignore[no-untyped-def]
    return (api_key.c.name == name) & api_key.c.revoked_at.is_(None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
