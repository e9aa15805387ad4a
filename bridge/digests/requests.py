"""What users ask for and may not do themselves: it waits here until a releaser decides.

A crash loses no request. Whether releasers must still be notified is stored with it. A request that is being granted is
only reserved: unless the grant is completed, it waits again after a while.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update

from bridge.digests import database
from bridge.digests.database import DigestStore

RELEASE, ALLOW = "release", "allow"
WAITING, GRANTED, REFUSED = "waiting", "granted", "refused"
MAX_WAITING = 200  # of one person; a program could ask for everything
TAKEN_S = 600.0  # for a grant to be carried out; longer than a release may take
NOTICE_S = 120.0  # for the page that stored a request to tell the releasers
_MAX_NOTICE_S = 6 * 3600.0  # between two attempts
_GIVE_UP_S = 7 * 86400.0
_MAX_NOTICES = 50  # in a round
_NOTICE = "notice "  # followed by the request's number, in the table of states; the text lists who was told
_LOCK = 0xD16E573
_r, _s = database.requests.c, database.state.c


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


@dataclass(frozen=True, slots=True)
class Notice:
    """Releasers have to be told of this request."""

    request: Request
    told: tuple[str, ...]  # those who have been told


class Requests:
    def __init__(self, store: DigestStore, place: str) -> None:
        self._store = store
        self._place = place

    def ask(
        self, kind: str, mail: str, recipient: str, person: str, tenant: str, *, has_notice: bool = True
    ) -> Request | None:
        """None if it was asked for before, or if the person has too many requests waiting.

        `has_notice`: releasers are to be told; call `told` once they have been.
        """
        now = time.time()
        same = and_(_r.place == self._place, _r.kind == kind, _r.mail == mail, _r.recipient == recipient)
        theirs = and_(_r.place == self._place, _r.person == person, _r.state == WAITING)
        with self._store.writing(_LOCK) as connection:
            if connection.execute(select(_r.seq).where(same)).first() is not None:
                return None
            if connection.execute(select(func.count()).where(theirs)).scalar_one() >= MAX_WAITING:
                return None
            values = {
                "place": self._place, "kind": kind, "mail": mail, "recipient": recipient, "person": person,
                "tenant": tenant, "asked_at": now, "state": WAITING, "decided_at": 0.0, "decided_by": "",
            }  # fmt: skip
            made = connection.execute(insert(database.requests).values(**values).returning(database.requests))
            request = Request(*made.one())
            if has_notice:
                name = f"{_NOTICE}{request.seq}"
                notice = {"place": self._place, "name": name, "number": now + NOTICE_S, "text": ""}
                connection.execute(insert(database.state).values(**notice))
        return request

    def take(self, seq: int, by: str) -> Request | None:
        """To grant it: nobody else can, until it is settled or reopened, or `TAKEN_S` have passed.

        None if it was decided or taken before.
        """
        return self._change(seq, WAITING, by)

    def refuse(self, seq: int, by: str) -> Request | None:
        """None if it was decided or taken before."""
        return self._change(seq, REFUSED, by)

    def _change(self, seq: int, state: str, by: str) -> Request | None:
        now = time.time()
        chosen = and_(_r.place == self._place, _r.seq == seq, self._is_waiting(now))
        values = {"state": state, "decided_at": now, "decided_by": by[:200]}
        with self._store.writing(_LOCK) as connection:
            done = connection.execute(update(database.requests).where(chosen).values(**values))
            if done.rowcount != 1:
                return None
            row = connection.execute(select(database.requests).where(_r.seq == seq)).one()
        return Request(*row)

    def settle(self, taken: Request) -> None:
        """It was granted and carried out."""
        chosen = and_(_r.place == self._place, _r.seq == taken.seq, _r.state == WAITING)
        values = {"state": GRANTED, "decided_at": time.time(), "decided_by": taken.decided_by}
        with self._store.writing(_LOCK) as connection:
            connection.execute(update(database.requests).where(chosen).values(**values))

    def _is_waiting(self, now: float) -> ColumnElement[bool]:
        """A request that was taken has a time, too; a clock that was set back must not hide it."""
        return and_(_r.state == WAITING, (_r.decided_at < now - TAKEN_S) | (_r.decided_at > now + TAKEN_S))

    def reopen(self, seq: int) -> None:
        """It was taken, but could not be done."""
        with self._store.writing(_LOCK) as connection:
            chosen = and_(_r.place == self._place, _r.seq == seq, _r.state == WAITING)
            values = {"decided_at": 0.0, "decided_by": ""}
            connection.execute(update(database.requests).where(chosen).values(**values))

    def find(self, seq: int) -> Request | None:
        with self._store.reading() as connection:
            wanted = select(database.requests).where(_r.place == self._place, _r.seq == seq)
            row = connection.execute(wanted).first()
        return None if row is None else Request(*row)

    def waiting(self, tenants: frozenset[str] | None = None, limit: int = 200) -> list[Request]:
        """Of these tenants: the oldest of each person first, so that no one hides the requests of others."""
        wanted = select(database.requests).where(_r.place == self._place, self._is_waiting(time.time()))
        if tenants is not None:
            wanted = wanted.where(_r.tenant.in_(sorted(tenants - {""})))
        turn = func.row_number().over(partition_by=_r.person, order_by=_r.asked_at)
        with self._store.reading() as connection:
            return [Request(*row) for row in connection.execute(wanted.order_by(turn, _r.asked_at).limit(limit))]

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

    # Notices to the releasers

    def told(self, seq: int) -> None:
        """All releasers were told of this request, or cannot be reached."""
        with self._store.writing(_LOCK) as connection:
            connection.execute(delete(database.state).where(self._is_notice(seq)))

    def told_some(self, seq: int, told: Collection[str]) -> None:
        with self._store.writing(_LOCK) as connection:
            connection.execute(update(database.state).where(self._is_notice(seq)).values(text="\n".join(told)))

    def due_notices(self, now: float) -> list[Notice]:
        """Those that are due, each only for this caller: the next attempt is due later, at twice the age.

        A time further ahead than any pause is that of a clock that was wrong.
        """
        is_due = or_(_s.number <= now, _s.number > now + 2 * _MAX_NOTICE_S)
        due = and_(_s.place == self._place, _s.name.startswith(_NOTICE), is_due)
        found: list[Notice] = []
        with self._store.writing(_LOCK) as connection:
            for row in connection.execute(select(_s.name, _s.text).where(due).limit(_MAX_NOTICES)).all():
                seq = int(row.name.removeprefix(_NOTICE))
                wanted = select(database.requests).where(_r.place == self._place, _r.seq == seq, _r.state == WAITING)
                request = connection.execute(wanted).first()
                if request is None or now - request.asked_at > _GIVE_UP_S:
                    connection.execute(delete(database.state).where(self._is_notice(seq)))
                    continue
                wait_s = min(max(now - request.asked_at, NOTICE_S), _MAX_NOTICE_S)
                connection.execute(update(database.state).where(self._is_notice(seq)).values(number=now + wait_s))
                found.append(Notice(Request(*request), tuple(row.text.splitlines())))
        return found

    def _is_notice(self, seq: int) -> ColumnElement[bool]:
        return and_(_s.place == self._place, _s.name == f"{_NOTICE}{seq}")
