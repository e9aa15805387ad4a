"""API keys of the List API: created here, stored as hashes, checked in memory.

A key is 32 random bytes, so a plain SHA-256 is a sufficient hash: there is nothing to guess. The
key itself is shown only once, when it is created. The row of a revoked key stays, as a record.
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
from bridge.runtime.shared_call import SharedCall
from bridge.runtime.suggestion import did_you_mean
from bridge.service.auth import credentials, digest
from bridge.service.database_calls import DatabaseCalls
from bridge.service.responses import Refused, storage_unavailable
from bridge.service.store import STORAGE_ERRORS, Store, api_key

REFRESH_INTERVAL_S = 0.2  # at most this often for unknown keys
CHALLENGE = f'{AUTH_SCHEME} realm="lists"'


class KeyExists(BridgeError):
    """There is already an active key of this name."""


class NoSuchKey(BridgeError):
    """There is no active key of this name."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    name: str
    created_at: str
    revoked_at: str | None


class KeyRing:
    """The keys of one database, kept in memory by `refresh`."""

    def __init__(self, store: Store, calls: DatabaseCalls | None = None) -> None:
        self._store = store
        self._calls = calls or DatabaseCalls()
        self._valid: tuple[bytes, ...] | None = None  # None: not loaded yet
        self._refresh_soon = SharedCall(self._refresh_in_thread)
        self._refreshed_at = float("-inf")

    def refresh(self) -> None:
        with self._store.reading() as connection:
            query = select(api_key.c.digest).where(api_key.c.revoked_at.is_(None))
            self._valid = tuple(bytes.fromhex(known) for known in connection.execute(query).scalars())

    async def check(self, scope: Scope) -> None:
        """Raises Refused with 401 unless the request carries an active key.

        A new key works immediately: before a key is rejected as unknown, the keys are read from the
        database again, once for all waiting requests and a few times a second at most.
        """
        given = digest(credentials(scope, AUTH_SCHEME, CHALLENGE))
        if self._knows(given):
            return
        await self._refresh_soon()
        if not self._knows(given):
            raise Refused(401, "unauthorized", "unknown API key", challenge=CHALLENGE)

    def _knows(self, given: bytes) -> bool:
        if self._valid is None:
            raise storage_unavailable()
        found = False
        for known in self._valid:
            found |= hmac.compare_digest(known, given)
        return found

    async def _refresh_in_thread(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._refreshed_at + REFRESH_INTERVAL_S - loop.time())
        self._refreshed_at = loop.time()
        try:
            await self._calls.ask(self.refresh)
        except STORAGE_ERRORS:  # keep the keys that are already in memory
            pass

    def create(self, name: str) -> str:
        """Create a key and return it; it cannot be shown again. Raises KeyExists."""
        key = secrets.token_hex(32)
        with self._store.writing() as connection:
            if connection.execute(select(api_key.c.name).where(_in_use(name))).first() is not None:
                raise KeyExists(f"there is already a key named {name}; revoke it first, or choose another name")
            connection.execute(insert(api_key).values(digest=digest(key).hex(), name=name, created_at=_now()))
        return key

    def adopt(self, name: str, key: str) -> None:
        """Make this key the only active one of this name. Raises NoSuchKey if it was revoked before."""
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
                used = [
                    key for (key,) in connection.execute(select(api_key.c.name).where(api_key.c.revoked_at.is_(None)))
                ]
                hint = did_you_mean(name, used) or f"; active keys: {', '.join(sorted(used)) or 'none'}"
                raise NoSuchKey(f"there is no active key named {name}{hint}")


def _in_use(name: str):  # type: ignore[no-untyped-def]
    return (api_key.c.name == name) & api_key.c.revoked_at.is_(None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
