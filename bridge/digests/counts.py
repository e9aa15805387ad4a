"""How many digests were sent since the database was made, and when a run last worked.

Runs are separate commands and processes, so they count in the database; the daemon reads it for its metrics.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import and_, func, insert, select, update

from bridge.digests import database
from bridge.digests.database import DigestStore
from bridge.digests.requests import WAITING

_LOCK = 0xD16E575
_PREFIX = "count "  # other rows of the table are those of `items`
_RUN_AT = "run_at"
_s, _r = database.state.c, database.requests.c


@dataclass(frozen=True, slots=True)
class Counts:
    sent: int = 0
    failed: int = 0  # they are tried again
    refused: int = 0  # by the next hop, for good
    run_at: float = 0.0  # when a run was last at work; 0: never
    requests_waiting: int = 0


class DigestCounts:
    def __init__(self, store: DigestStore, place: str) -> None:
        self._store = store
        self._place = place

    def add(self, *, sent: int = 0, failed: int = 0, refused: int = 0) -> None:
        """A run is at work, and has done this since its last call."""
        with self._store.writing(_LOCK) as connection:
            for name, number in (("sent", sent), ("failed", failed), ("refused", refused), (_RUN_AT, 0)):
                row = and_(_s.place == self._place, _s.name == _PREFIX + name)
                value = time.time() if name == _RUN_AT else _s.number + number
                if not connection.execute(update(database.state).where(row).values(number=value)).rowcount:
                    first = time.time() if name == _RUN_AT else number
                    values = {"place": self._place, "name": _PREFIX + name, "number": first, "text": ""}
                    connection.execute(insert(database.state).values(**values))

    def read(self) -> Counts:
        mine = and_(_s.place == self._place, _s.name.startswith(_PREFIX))
        waiting = and_(_r.place == self._place, _r.state == WAITING)
        with self._store.reading() as connection:
            rows = connection.execute(select(_s.name, _s.number).where(mine))
            found = {row.name.removeprefix(_PREFIX): row.number for row in rows}
            number = connection.execute(select(func.count()).where(waiting)).scalar_one()
        sent, failed, refused = (int(found.get(name, 0)) for name in ("sent", "failed", "refused"))
        return Counts(sent, failed, refused, float(found.get(_RUN_AT, 0.0)), int(number))
