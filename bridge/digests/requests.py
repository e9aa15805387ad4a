"""What users ask for and may not do themselves: it waits here until a releaser decides."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import and_, delete, func, insert, select, update

from bridge.digests import database
from bridge.digests.database import DigestStore

RELEASE, ALLOW = "release", "allow"
WAITING, GRANTED, REFUSED = "waiting", "granted", "refused"
MAX_WAITING = 200  # of one person; a program could ask for everything
_LOCK = 0xD16E573
_r = database.requests.c


@dataclass(frozen=True, slots=True)
class Request:
    seq: int
    place: str
    kind: str
    mail: str
    recipient: str
    person: str
    tenant: str
    asked_at: float
    state: str
    decided_at: float
    decided_by: str


class Requests:
    def __init__(self, store: DigestStore, place: str) -> None:
        self._store = store
        self._place = place

    def ask(self, kind: str, mail: str, recipient: str, person: str, tenant: str) -> bool:
        """False if it was asked for before, or the person has asked for too much."""
        same = and_(_r.place == self._place, _r.kind == kind, _r.mail == mail, _r.recipient == recipient)
        theirs = and_(_r.place == self._place, _r.person == person, _r.state == WAITING)
        with self._store.writing(_LOCK) as connection:
            if connection.execute(select(_r.seq).where(same)).first() is not None:
                return False
            if connection.execute(select(func.count()).where(theirs)).scalar_one() >= MAX_WAITING:
                return False
            values = {
                "place": self._place, "kind": kind, "mail": mail, "recipient": recipient, "person": person,
                "tenant": tenant, "asked_at": time.time(), "state": WAITING, "decided_at": 0.0, "decided_by": "",
            }  # fmt: skip
            connection.execute(insert(database.requests).values(**values))
        return True

    def decide(self, seq: int, state: str, by: str) -> Request | None:
        """Once: None if it was decided before."""
        chosen = and_(_r.place == self._place, _r.seq == seq, _r.state == WAITING)
        values = {"state": state, "decided_at": time.time(), "decided_by": by[:200]}
        with self._store.writing(_LOCK) as connection:
            done = connection.execute(update(database.requests).where(chosen).values(**values))
            if done.rowcount != 1:
                return None
            row = connection.execute(select(database.requests).where(_r.seq == seq)).one()
        return Request(*row)

    def reopen(self, seq: int) -> None:
        """What was granted could not be done."""
        with self._store.writing(_LOCK) as connection:
            chosen = and_(_r.place == self._place, _r.seq == seq)
            values = {"state": WAITING, "decided_at": 0.0, "decided_by": ""}
            connection.execute(update(database.requests).where(chosen).values(**values))

    def find(self, seq: int) -> Request | None:
        with self._store.reading() as connection:
            wanted = select(database.requests).where(_r.place == self._place, _r.seq == seq)
            row = connection.execute(wanted).first()
        return None if row is None else Request(*row)

    def waiting(self, tenants: frozenset[str] | None = None, limit: int = 200) -> list[Request]:
        """The oldest first; of these tenants."""
        wanted = select(database.requests).where(_r.place == self._place, _r.state == WAITING)
        if tenants is not None:
            wanted = wanted.where(_r.tenant.in_(sorted(tenants - {""})))
        with self._store.reading() as connection:
            return [Request(*row) for row in connection.execute(wanted.order_by(_r.asked_at).limit(limit))]

    def of(self, person: str, mails: list[str]) -> dict[tuple[str, str, str], Request]:
        """By kind, mail and recipient."""
        wanted = select(database.requests).where(_r.place == self._place, _r.person == person, _r.mail.in_(mails))
        with self._store.reading() as connection:
            found = [Request(*row) for row in connection.execute(wanted)]
        return {(each.kind, each.mail, each.recipient): each for each in found}

    def forget(self, older_than: float) -> int:
        with self._store.writing() as connection:
            old = and_(_r.place == self._place, _r.asked_at < older_than)
            return connection.execute(delete(database.requests).where(old)).rowcount
