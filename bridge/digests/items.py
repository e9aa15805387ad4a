"""Items: which held mail belongs to whom, and whether they have been notified.

The quarantine's index is read in order of time, from where the last run stopped, with an overlap for mail that was
indexed late. It is read from its beginning once a day, and when the configuration assigns addresses to other people
than before. An item is claimed before its digest is sent and confirmed afterwards. A claim that was never confirmed
belongs to a process that died: its digest may have arrived, so it is not repeated at once; its items are in the
person's next digest, at the earliest a day later. A clock that was wrong and is set back delays nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from bridge.digests import database
from bridge.digests.database import DigestStore
from bridge.digests.people import People
from bridge.mail.address import comparable_address
from bridge.quarantine.index import Arrival
from bridge.quarantine.index_tables import CUT, is_short, search_text
from bridge.quarantine.quarantine import Quarantine

UNSURE_S = 86400.0  # a claim that was not confirmed is repeated with the next digest after this time
REFUSED_S = 7 * 86400.0  # an address that does not exist is not tried again for this long
_OVERLAP_S = 3600.0
_WHOLE_S = 86400.0  # how often the whole index is read
_PAGE = 1000
_LISTED_PAGE = 500  # items read at a time to write one digest
_RETRY_S = 300.0
MAX_RETRY_S = 6 * 3600.0
_LOCK = 0xD16E572  # in PostgreSQL, one claim at a time
_i, _p, _s = database.items.c, database.people.c, database.state.c


@dataclass(frozen=True, slots=True)
class Item:
    mail: str
    recipient: str
    kept_at: float


@dataclass(frozen=True, slots=True)
class Person:
    """What is stored about a person; an address without a row is a person with the defaults."""

    address: str
    schedule: str = ""  # "": that of the configuration
    language: str = ""
    last_at: float = 0.0
    retry_at: float = 0.0
    tries: int = 0
    refused_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A person with mail that they were not told about."""

    person: Person
    oldest_new: float
    count: int


@dataclass(frozen=True, slots=True)
class Claim:
    """All items that a person has not been notified of, claimed by one run."""

    person: Person  # as it was before
    at: float


class Items:
    def __init__(self, store: DigestStore, place: str) -> None:
        self._store = store
        self._place = place
        self._applied = ""  # fingerprint of the address owners that this process has stored
        self._refreshing = threading.Lock()

    # From the quarantine

    def refresh(
        self,
        quarantine: Quarantine,
        people: People,
        on_page: Callable[[int], None] = lambda count: None,
        *,
        is_quick: bool = False,
    ) -> int:
        """Read what came into the quarantine; return how many items are new. Raises BridgeError.

        `is_quick`: only what followed the last reading, for a page that somebody waits for; nothing if another thread
        reads it.
        """
        if not self._refreshing.acquire(blocking=not is_quick):
            return 0
        try:
            return self._refresh(quarantine, people, on_page, is_quick=is_quick)
        finally:
            self._refreshing.release()

    def _refresh(
        self, quarantine: Quarantine, people: People, on_page: Callable[[int], None], *, is_quick: bool
    ) -> int:
        now, count, whose = time.time(), 0, people.fingerprint()
        at, mail = min(self._state("cursor"), (now, ""))  # a mail may have been stored while the clock was wrong
        is_whole = not is_quick and (self._is_moved(whose) or not 0 <= now - self._state("whole")[0] <= _WHOLE_S)
        after = (0.0, "") if is_whole else (at, mail) if is_quick else (max(0.0, at - _OVERLAP_S), "")
        while arrivals := quarantine.arrivals(after, _PAGE):
            after = (arrivals[-1].kept_at, arrivals[-1].id)
            count += self._add(self._rows(arrivals, quarantine, people), after if after > (at, mail) else None)
            on_page(count)
        if is_whole:
            with self._store.writing(_LOCK) as connection:
                self._set(connection, "whole", now)
                self._set(connection, "people", now, whose)
            self._applied = whose
        return count

    def _is_moved(self, whose: str) -> bool:
        """Whether addresses have changed owner since the index was read.

        Two processes with different configurations do not keep undoing each other's changes.
        """
        return whose not in (self._applied, self._state("people")[1])

    def forget(self, older_than: float) -> int:
        """Delete the items of mail that was held before this time and is gone."""
        old = and_(_i.place == self._place, _i.kept_at < older_than)
        with self._store.writing() as connection:
            return connection.execute(delete(database.items).where(old)).rowcount

    def _rows(self, arrivals: list[Arrival], quarantine: Quarantine, people: People) -> list[dict[str, object]]:
        """The person is "" for recipients who get no digests."""
        return [
            {
                "place": self._place, "mail": arrival.id, "recipient": recipient,
                "person": people.person_of(recipient) or "", "kept_at": arrival.kept_at, "sent_at": 0.0, "hidden": 0,
            }
            for arrival in arrivals
            for recipient in _recipients(arrival, quarantine)
        ]  # fmt: skip

    def _add(self, rows: list[dict[str, object]], cursor: tuple[float, str] | None) -> int:
        """Add new items; for known ones, update only the owner."""
        if not rows and cursor is None:
            return 0
        with self._store.writing(_LOCK) as connection:
            ids = sorted({str(row["mail"]) for row in rows})
            known = select(_i.mail, _i.recipient, _i.person).where(_i.place == self._place, _i.mail.in_(ids))
            have = {(row.mail, row.recipient): row.person for row in connection.execute(known)} if ids else {}
            found = {(row["mail"], row["recipient"]): row for row in rows}
            new = [row for key, row in found.items() if key not in have and row["person"]]
            if new:
                connection.execute(insert(database.items), new)
            self._move(connection, [row for key, row in found.items() if have.get(key, row["person"]) != row["person"]])
            if cursor is not None:
                self._set(connection, "cursor", *cursor)
        return len(new)

    def _move(self, connection: Connection, rows: list[dict[str, object]]) -> None:
        """Change the owner of items. The new owner, if there is one, has not been notified of them yet."""
        if not rows:
            return
        chosen = and_(_i.place == self._place, _i.mail == bindparam("m"), _i.recipient == bindparam("r"))
        values = [{"m": row["mail"], "r": row["recipient"], "p": row["person"]} for row in rows]
        untold = update(database.items).where(chosen, _i.person != "", bindparam("p") != "")
        connection.execute(untold.values(sent_at=0.0), values)
        connection.execute(update(database.items).where(chosen).values(person=bindparam("p")), values)

    # Who is told

    def waiting(self, now: float) -> Iterator[list[Waiting]]:
        """Everyone with mail that they were not told about, in pages, in the order of their addresses."""
        after = ""
        while page := self._waiting_page(after, now):
            yield page
            after = page[-1].person.address

    def waiting_count(self, now: float) -> int:
        number = select(func.count(_i.person.distinct())).where(self._is_new(now))
        with self._store.reading() as connection:
            return int(connection.execute(number).scalar_one())

    def _waiting_page(self, after: str, now: float) -> list[Waiting]:
        wanted = select(_i.person, func.min(_i.kept_at).label("oldest"), func.count().label("number"))
        wanted = wanted.where(self._is_new(now), _i.person > after).group_by(_i.person).order_by(_i.person)
        with self._store.reading() as connection:
            rows = connection.execute(wanted.limit(_PAGE // 2)).all()
            people = self._people(connection, [row.person for row in rows])
        return [Waiting(people.get(row.person, Person(row.person)), row.oldest, row.number) for row in rows]

    def claim(self, person: Person, now: float) -> Claim | None:
        """Take the person's new items, if nobody else has since `person` was read."""
        with self._store.writing(_LOCK) as connection:
            current = self._people(connection, [person.address]).get(person.address, Person(person.address))
            if current.last_at != person.last_at:
                return None
            mine = and_(self._is_new(now), _i.person == person.address)
            connection.execute(update(database.items).where(mine).values(sent_at=-now))
            self._put(connection, current, last_at=now)
        return Claim(current, now)

    def claimed(self, claim: Claim) -> Iterator[list[Item]]:
        """What was claimed, in pages, the newest first."""
        return self._pages(and_(self._of(claim.person.address), _i.sent_at == -claim.at))

    def new_of(self, person: str, now: float) -> Iterator[list[Item]]:
        """What a digest would be about now, in pages, the newest first."""
        return self._pages(and_(self._is_new(now), _i.person == person))

    def _pages(self, chosen: ColumnElement[bool]) -> Iterator[list[Item]]:
        before = None
        while page := self._page(chosen, before, _LISTED_PAGE):
            yield page
            before = page[-1]

    def _page(self, chosen: ColumnElement[bool], before: Item | None, limit: int) -> list[Item]:
        """The newest first; a person may have a mail more than once."""
        wanted = select(_i.mail, _i.recipient, _i.kept_at).where(chosen)
        if before is not None:
            position = tuple_(_i.kept_at, _i.mail, _i.recipient)
            wanted = wanted.where(position < (before.kept_at, before.mail, before.recipient))
        wanted = wanted.order_by(_i.kept_at.desc(), _i.mail.desc(), _i.recipient.desc()).limit(limit)
        with self._store.reading() as connection:
            return [Item(*row) for row in connection.execute(wanted)]

    def confirm(self, claim: Claim) -> None:
        """Their digest was sent, or there was nothing to tell."""
        self._settle(claim, claim.at, retry_at=0.0, tries=0, refused_at=0.0)

    def refused(self, claim: Claim) -> None:
        """There is no such mailbox."""
        self._settle(claim, claim.at, refused_at=claim.at)

    def retry(self, claim: Claim) -> None:
        """It could not be sent, not even in part: try again later."""
        self._settle(claim, 0.0, last_at=claim.person.last_at, **_pause(claim))

    def postpone(self, claim: Claim) -> None:
        """The digest was refused, not the recipient: the next one due lists the same mail."""
        self._settle(claim, 0.0, **_pause(claim))

    def _settle(self, claim: Claim, sent_at: float, **values: float) -> None:
        mine = and_(_i.place == self._place, _i.person == claim.person.address, _i.sent_at == -claim.at)
        with self._store.writing(_LOCK) as connection:
            connection.execute(update(database.items).where(mine).values(sent_at=sent_at))
            row = and_(_p.place == self._place, _p.address == claim.person.address)
            connection.execute(update(database.people).where(row).values(**values))

    # What is whose

    def of(self, person: str, *, before: Item | None = None, limit: int = 50) -> list[Item]:
        """A person's held mail, the newest first."""
        return self._page(self._of(person), before, limit)

    def of_mail(self, person: str, mail: str) -> list[Item]:
        """The person's copies of one mail: several if it came to several of their addresses."""
        wanted = select(_i.mail, _i.recipient, _i.kept_at).where(self._of(person), _i.mail == mail)
        with self._store.reading() as connection:
            return [Item(*row) for row in connection.execute(wanted.order_by(_i.recipient))]

    def addresses_of(self, person: str) -> list[str]:
        """Their own, and the other ones for which mail was held."""
        wanted = select(_i.recipient).where(_i.place == self._place, _i.person == person).distinct().limit(100)
        with self._store.reading() as connection:
            return list(dict.fromkeys([person, *sorted(row.recipient for row in connection.execute(wanted))]))

    def is_hidden(self, mail: str, recipient: str) -> bool:
        row = and_(_i.place == self._place, _i.mail == mail, _i.recipient == recipient, _i.hidden == 1)
        with self._store.reading() as connection:
            return connection.execute(select(_i.mail).where(row)).first() is not None

    def hide(self, mail: str, recipients: Sequence[str]) -> list[str]:
        """The person deleted these copies; returns all recipients whose copies are deleted by now."""
        row = and_(_i.place == self._place, _i.mail == mail)
        with self._store.writing(_LOCK) as connection:
            theirs = _i.recipient.in_(recipients)
            connection.execute(update(database.items).where(row, theirs).values(hidden=1))
            hidden = connection.execute(select(_i.recipient).where(row, _i.hidden == 1))
            return [str(each.recipient) for each in hidden]

    def _of(self, person: str) -> ColumnElement[bool]:
        return and_(_i.place == self._place, _i.person == person, _i.hidden == 0)

    # What a person chose

    def person(self, address: str) -> Person:
        with self._store.reading() as connection:
            return self._people(connection, [address]).get(address, Person(address))

    def choose(self, address: str, *, schedule: str | None = None, language: str | None = None) -> None:
        """None: unchanged; "": that of the configuration."""
        with self._store.writing(_LOCK) as connection:
            current = self._people(connection, [address]).get(address, Person(address))
            chosen = {"schedule": schedule, "language": language}
            self._put(connection, current, **{name: value for name, value in chosen.items() if value is not None})
            if current.schedule == "never" and schedule not in (None, "never"):  # older mail is only on the page
                mine = and_(_i.place == self._place, _i.person == address, _i.sent_at <= 0)
                connection.execute(update(database.items).where(mine).values(sent_at=time.time()))

    def _people(self, connection: Connection, addresses: Iterable[str]) -> dict[str, Person]:
        wanted = select(database.people).where(_p.place == self._place, _p.address.in_(list(addresses)))
        return {row.address: _person(row) for row in connection.execute(wanted)}

    def _put(self, connection: Connection, person: Person, **values: object) -> None:
        row = and_(_p.place == self._place, _p.address == person.address)
        if connection.execute(update(database.people).where(row).values(**values)).rowcount == 0:
            empty = {"schedule": "", "language": "", "last_at": 0.0, "retry_at": 0.0, "tries": 0, "refused_at": 0.0}
            whole = {**empty, **values, "place": self._place, "address": person.address}
            connection.execute(insert(database.people).values(**whole))

    # Small values

    def _is_new(self, now: float) -> ColumnElement[bool]:
        """Not told about, or claimed a day ago without a result; or in a day, by a clock that was wrong."""
        unsure = and_(_i.sent_at < 0, or_(_i.sent_at > -(now - UNSURE_S), _i.sent_at < -(now + UNSURE_S)))
        return and_(_i.place == self._place, _i.person != "", _i.hidden == 0, or_(_i.sent_at == 0, unsure))

    def _state(self, name: str) -> tuple[float, str]:
        with self._store.reading() as connection:
            row = connection.execute(select(database.state).where(_s.place == self._place, _s.name == name)).first()
        return (row.number, row.text) if row is not None else (0.0, "")

    def _set(self, connection: Connection, name: str, number: float, text: str = "") -> None:
        row = and_(_s.place == self._place, _s.name == name)
        values = {"number": number, "text": text}
        if connection.execute(update(database.state).where(row).values(**values)).rowcount == 0:
            connection.execute(insert(database.state).values(place=self._place, name=name, **values))


def _recipients(arrival: Arrival, quarantine: Quarantine) -> list[str]:
    """In the form that is compared, without those that are too long for an index."""
    # A local part may contain spaces, and an address that was cut may be another one.
    if any('"' in address or address.startswith(CUT) for address in arrival.addresses):
        records = quarantine.records([arrival.id])
        found = {search_text(comparable_address(each)) for mail in records for each in mail.envelope.addresses}
    else:
        found = {address.rpartition(" ")[2] for address in arrival.addresses}
    return sorted(filter(is_short, found))


def _pause(claim: Claim) -> dict[str, float]:
    """The delay doubles after each failure."""
    pause_s = min(_RETRY_S * 2.0**claim.person.tries, MAX_RETRY_S)
    return {"retry_at": claim.at + pause_s, "tries": min(claim.person.tries + 1, 20)}


def _person(row: Row[tuple[object, ...]]) -> Person:
    return Person(row.address, row.schedule, row.language, row.last_at, row.retry_at, row.tries, row.refused_at)
