"""The audit log: who saw and did what, when, from where, and how it ended.

An action is recorded before it is carried out, and its result afterwards, so that no crash hides it; if it cannot be
recorded, it is not carried out. Ids of mails are kept, never their content.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from bridge.console import database
from bridge.console.database import ConsoleStore
from bridge.console.roles import Person

STARTED, DONE, REFUSED, FAILED = "started", "done", "refused", "failed"
_a = database.audit.c


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


def is_storable(text: str) -> bool:
    """Whether a database can keep it as text: PostgreSQL accepts neither NUL nor half a character."""
    return "\0" not in text and text == text.encode("utf-8", "replace").decode()


def _cut(text: str, length: int) -> str:
    """Nothing in a text may keep an entry from being written."""
    return (text if is_storable(text) else text.encode("utf-8", "replace").decode().replace("\0", "?"))[:length]


class Audit:
    def __init__(self, store: ConsoleStore) -> None:
        self._store = store

    def write(
        self, person: Person | None, address: str, action: str, *, mail: str = "", detail: str = "", result: str = DONE,
        name: str = "",
    ) -> int:  # fmt: skip
        """Returns the number of the entry. `name`: the name that was typed, if nobody is signed in."""
        values = {
            "at": time.time(),
            "name": _cut(person.shown if person else name, 100),
            "role": str(person.role) if person else "",
            "address": _cut(address, 64),
            "action": _cut(action, 60),
            "mail": _cut(mail, 64),
            "detail": _cut(detail, 1000),
            "result": result,
        }
        with self._store.writing() as connection:
            done = connection.execute(insert(database.audit).values(**values).returning(_a.seq))
            return int(done.scalar_one())

    def finish(self, seq: int, result: str, detail: str) -> None:
        with self._store.writing() as connection:
            ended = update(database.audit).where(_a.seq == seq).values(result=result, detail=_cut(detail, 1000))
            connection.execute(ended)

    def find(
        self, *, before: int = 0, limit: int = 100, name: str = "", mail: str = "", action: str = ""
    ) -> list[AuditEntry]:
        """The newest first; `before` is the number of the last entry of the page before."""
        wanted = select(database.audit).order_by(_a.seq.desc()).limit(limit)
        for column, value in ((_a.name, name), (_a.mail, mail), (_a.action, action)):
            wanted = wanted.where(column == _cut(value, 1000)) if value else wanted
        wanted = wanted.where(_a.seq < before) if before else wanted
        with self._store.reading() as connection:
            return [AuditEntry(*row) for row in connection.execute(wanted)]

    def delete_before(self, moment: float) -> int:
        with self._store.writing() as connection:
            return connection.execute(delete(database.audit).where(_a.at < moment)).rowcount
