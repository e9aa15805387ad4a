"""Work that continues until it is cancelled, whatever happens in one of its rounds.

A task whose coroutine raises is gone, and no one notices until its work is missed: a poll, a clean-up, a sign of life.
An unexpected error is logged here, and the work starts again after a pause. The work itself handles the errors that it
expects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)

_PAUSE_S = 5.0


async def lasting(work: Callable[[], Coroutine[Any, Any, None]], name: str, pause_s: float = _PAUSE_S) -> None:
    """Await `work()`, and again whenever it raises. `name` is for the log."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("%s: unexpected error; starting again in %g s", name, pause_s)
        await asyncio.sleep(pause_s)
