"""Tells the other bridges and workers, about once a second, how much mail clients have sent here, and learns the sums.

A separate thread talks to the database. While the database is slow or fails, mail is limited by the counts that this
process has; nothing waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.filter.mail_rates import MailRates
from bridge.filter.rate_store import FILE, RatesFailed, RateStore
from bridge.runtime.database import Database
from bridge.runtime.threads import Threads

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_PATIENCE_S = 4.0  # then a problem is logged: a server that hangs may never answer, and causes no error either
_threads = Threads("mail rates", 1)


class RateExchange:
    """`watch` runs until cancelled. Without a store, this process is the only one that counts."""

    def __init__(self, rates: MailRates, store: RateStore | None) -> None:
        self._rates = rates
        self._store = store
        self._problem = ""

    async def watch(self) -> None:
        while self._store is not None:
            await asyncio.sleep(_INTERVAL_S)
            if self._rates.is_asked:
                await self._exchange(self._store)
        await asyncio.Event().wait()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    async def _exchange(self, store: RateStore) -> None:
        counts, began = self._rates.report(), time.monotonic()
        exchange = _threads.run(partial(store.exchange, counts, self._rates.least))
        try:
            if not (await asyncio.wait([exchange], timeout=_PATIENCE_S))[0]:
                self._report_problem(f"the database has not answered for {_PATIENCE_S:g} s")
            sums, now = await exchange
        except RatesFailed as exc:  # the counts are sent again; twice, if only the answer to the commit was lost
            self._report_problem(str(exc))
            self._rates.is_asked = True  # or the counts would wait until another mail arrives
            return
        finally:
            exchange.cancel()
        if self._problem:
            log.info("mail rates are shared again")
        self._problem = ""
        self._rates.told(counts)
        self._rates.learn(sums, now, time.monotonic() - began)

    def _report_problem(self, problem: str) -> None:
        if problem != self._problem:
            log.error("mail rates are not shared (%s); each bridge uses only its own counts", problem)
        self._problem = problem


def rate_exchange(conf: Config, state: Path, rates: MailRates) -> RateExchange:
    """Raises ConfigError."""
    place = wiring.state_database(conf, state, "")
    if not place.is_sqlite:
        return RateExchange(rates, RateStore(place))
    if wiring.worker_count(conf) > 1:
        return RateExchange(rates, RateStore(Database.file(state / FILE)))
    return RateExchange(rates, None)
