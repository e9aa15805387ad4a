"""Keeps the learned layers in memory in step with the database, including votes that other nodes have received.

If the database is unavailable, the layers are kept: mail is judged with what was learned before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping

from bridge.service.database_calls import DatabaseCalls
from bridge.service.learning.score_shift import EMPTY, Layer, combined, layer_of
from bridge.service.learning.store import VoteStore
from bridge.service.polling import next_poll
from bridge.service.store import STORAGE_ERRORS

POLL_INTERVAL_S = 1.0
EXPIRE_INTERVAL_S = 6 * 3600.0
DEPLOYMENT = ""  # the scope of mail without a tenant, whose votes count for all

log = logging.getLogger("bridge.service")


class Learned:
    """Starts after the database was opened."""

    def __init__(self, votes: VoteStore, calls: DatabaseCalls | None = None) -> None:
        self._votes = votes
        self._calls = calls or DatabaseCalls()
        self._layers: dict[str, Layer] = {}
        self._versions: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""
        self._expired_at = time.monotonic()
        self.followed_at = 0.0  # Unix time at which the votes in memory were last compared with the database

    async def start(self) -> None:
        await self._refresh()
        self._task = asyncio.create_task(self._follow(), name="learning")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Check the database now, because this process has received a vote."""
        self._wake.set()

    @property
    def has_votes(self) -> bool:
        return any(layer.votes for layer in self._layers.values())

    @property
    def votes(self) -> int:
        return sum(layer.votes for layer in self._layers.values())

    @property
    def weights(self) -> int:
        """How many signals and senders have a learned weight, in all scopes."""
        return sum(len(layer.signals) + len(layer.senders) for layer in self._layers.values())

    def shift(
        self,
        tenant: str | None,
        senders: Collection[str],
        signals: Collection[str],
        weights: Mapping[str, float],
        *,
        is_dangerous: bool,
    ) -> float:
        """How much reports change the score of a mail like this."""
        scopes = dict.fromkeys((DEPLOYMENT, tenant or DEPLOYMENT))
        layers = [self._layers.get(scope, EMPTY) for scope in scopes]
        return combined(layers, senders, signals, weights, is_dangerous=is_dangerous)

    async def _follow(self) -> None:
        while True:
            await next_poll(self._wake, POLL_INTERVAL_S)
            await self._refresh()

    async def _refresh(self) -> None:
        try:
            versions, layers = await self._calls.ask(self._current)
        except STORAGE_ERRORS as exc:
            if type(exc).__name__ != self._trouble:
                log.error("learning: cannot read the database, using what is in memory: %s", type(exc).__name__)
            self._trouble = type(exc).__name__
        except Exception as exc:  # if the task ended here, nothing more would be learned
            log.error("learning: cannot use the votes in the database: %s", type(exc).__name__)
        else:
            self._versions, self._layers = versions, layers
            self._trouble = ""
            self.followed_at = time.time()

    def _current(self) -> tuple[dict[str, int], dict[str, Layer]]:
        """The versions and layers of all scopes. Those whose version has changed are read; deleted scopes are gone.

        The version is read first: a vote in between is found next time. The caller keeps the result: if this takes too
        long, nobody waits for it any more, and the next reading has begun.
        """
        if time.monotonic() - self._expired_at > EXPIRE_INTERVAL_S:
            self._expired_at = time.monotonic()
            self._votes.expire()
        found = self._votes.versions()
        kept = {scope for scope, version in found.items() if self._versions.get(scope) == version} & set(self._layers)
        layers = {
            scope: self._layers[scope] if scope in kept else layer_of(self._votes.votes(scope)) for scope in found
        }
        return found, layers
