"""The audit log: who saw and did what, when, from where, and how it ended.

An action is recorded before it is carried out, and its result afterwards, so that no crash hides it; if it cannot be
recorded, it is not carried out. Ids of mails are kept, never their content.

What people do without signing in is also recorded, but only up to a limit in each quarter of an hour; the rest is
counted. If this is wrong, a stranger can fill the disk, or hide among many entries.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, or_, select, update

from bridge.console import database
from bridge.console.database import ConsoleStore
from bridge.console.roles import Person
from bridge.runtime.storable import storable

STARTED, DONE, REFUSED, FAILED = "started", "done", "refused", "failed"
OTHERS = "others who had not signed in"
MAX_STRANGERS = 200  # entries in a window, whatever addresses they come from
STRANGERS_S = 900.0
_STRANGER = "audit: a stranger"  # in the table of attempts, from which old rows are deleted anyway
_LOCK = 0xC0A5020  # in PostgreSQL, one count at a time
_a, _t = database.audit.c, database.attempts.c


@dataclass(frozen=True, slots=True)
class AuditEntry:
    seq: int
    at: float
    name: str
    role: str
    address: str
    action: str
    mail: str
    detail: str
    result: str
    provider: str = ""
    subject: str = ""


def _cut(text: str, length: int) -> str:
    """Nothing in a text may keep an entry from being written."""
    return storable(text.replace("\0", "?"))[:length]  # type: ignore[no-any-return]


class Audit:
    def __init__(self, store: ConsoleStore) -> None:
        self._store = store

    def write(
        self, person: Person | None, address: str, action: str, *, mail: str = "", detail: str = "", result: str = DONE,
        name: str = "",
    ) -> int:  # fmt: skip
        """Returns the number of the entry. `name`: whose entry it is, if it is none of the console's users."""
        values = {
            "at": time.time(),
            "name": _cut(person.shown if person else name, 100),
            "role": str(person.role) if person else "",
            "address": _cut(address, 64),
            "action": _cut(action, 60),
            "mail": _cut(mail, 64),
            "detail": _cut(detail, 1000),
            "result": result,
            "provider": _cut(person.provider, 300) if person else "",
            "subject": _cut(person.subject, 255) if person else "",
        }
        with self._store.writing() as connection:
            done = connection.execute(insert(database.audit).values(**values).returning(_a.seq))
            return int(done.scalar_one())

    def write_stranger(
        self, address: str, action: str, *, name: str = "", detail: str = "", result: str = REFUSED, pages: str = ""
    ) -> None:
        """Record what a person did without signing in; too many are only counted. `name`: the name that was typed.

        `pages`: which pages, other than the console's. Each has its own limit: strangers there must not be able to hide
        that somebody guesses passwords here.
        """
        if self._is_one_of_few(f"{_STRANGER} {pages}".rstrip()):
            self.write(None, address, action, name=name, detail=detail, result=result)

    def _is_one_of_few(self, about: str) -> bool:
        """Whether it gets its own entry; otherwise it is counted in one for all others of this window."""
        now = time.time()
        since = now - STRANGERS_S
        counted = select(func.count()).where(_t.about == about, _t.at >= since)
        with self._store.writing(_LOCK) as connection:
            connection.execute(delete(database.attempts).where(_t.about == about, _t.at < since))
            if connection.execute(counted).scalar_one() < MAX_STRANGERS:
                connection.execute(insert(database.attempts).values(about=about, at=now))
                return True
            last = select(_a.seq, _a.detail).where(_a.at >= since, _a.action == OTHERS).order_by(_a.seq.desc())
            row = connection.execute(last.limit(1)).first()
            number = 1 if row is None else 1 + int(row.detail.partition(" ")[0])
            detail = f"{number} more {'attempt' if number == 1 else 'attempts'}"
            if row is not None:
                connection.execute(update(database.audit).where(_a.seq == row.seq).values(detail=detail))
                return False
        self.write(None, "", OTHERS, detail=detail, result=REFUSED)
        return False

    def finish(self, seq: int, result: str, detail: str) -> None:
        with self._store.writing() as connection:
            ended = update(database.audit).where(_a.seq == seq).values(result=result, detail=_cut(detail, 1000))
            connection.execute(ended)

    def find(
        self, *, before: int = 0, limit: int = 100, name: str = "", mail: str = "", action: str = ""
    ) -> list[AuditEntry]:
        """The newest first; `before` is the number of the last entry of the previous page.

        `name` may also be a subject: names change, and may have belonged to somebody else.
        """
        wanted = select(database.audit).order_by(_a.seq.desc()).limit(limit)
        wanted = wanted.where(or_(_a.name == _cut(name, 1000), _a.subject == _cut(name, 1000))) if name else wanted
        for column, value in ((_a.mail, mail), (_a.action, action)):
            wanted = wanted.where(column == _cut(value, 1000)) if value else wanted
        wanted = wanted.where(_a.seq < before) if before else wanted
        with self._store.reading() as connection:
            return [AuditEntry(*row) for row in connection.execute(wanted)]

    def delete_before(self, moment: float) -> int:
        with self._store.writing() as connection:
            return connection.execute(delete(database.audit).where(_a.at < moment)).rowcount
