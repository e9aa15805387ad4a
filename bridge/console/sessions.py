"""Sessions: from a sign-in to its end, and the links that sign a user in once.

A session ends when it is not used for a while, after a fixed time in any case, when it is revoked, and when its user
is removed or changed. The browser has the id, the database its hash. If this is wrong, people stay signed in who
should not be.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, insert, or_, select, update

from bridge.console import database
from bridge.console.database import ConsoleStore
from bridge.console.roles import Person, Role, tenants_from_text, tenants_to_text
from bridge.console.tokens import AHEAD_S, hash_of, is_recent, is_token, new_token

LINK_S = 900.0  # how long a sign-in link may be used
MAX_LINK_S = 3600.0  # at most
PASSWORD_LINK_S = 86_400.0  # a link with which a user chooses a password
_TOUCH_S = 30.0  # the time of the last use is written no more often than this
_MAX_PER_PERSON = 50  # the oldest is ended
IsAllowed = Callable[[Connection], bool]
_s, _l = database.sessions.c, database.links.c


@dataclass(frozen=True, slots=True)
class Session:
    label: str
    person: Person
    address: str
    browser: str
    begun_at: float
    used_at: float


@dataclass(frozen=True, slots=True)
class SessionLimits:
    idle_s: float
    max_s: float


class Sessions:
    def __init__(self, store: ConsoleStore, limits: SessionLimits) -> None:
        self._store = store
        self._limits = limits

    def begin(self, person: Person, address: str, browser: str, is_allowed: IsAllowed | None = None) -> str:
        """The id for the browser: always a new one, so nobody can choose it beforehand. "" if it is not allowed after
        all, at the moment when the session would begin."""
        token, now = new_token(), time.time()
        values = {
            "hash": hash_of(token),
            "label": secrets.token_hex(6),
            "name": person.name,
            "role": str(person.role),
            "tenants": tenants_to_text(person.tenants),
            "provider": person.provider,
            "subject": person.subject,
            "member_of": person.group,
            "address": address[:64],
            "browser": browser[:300],
            "begun_at": now,
            "used_at": now,
        }
        with self._store.writing() as connection:
            if is_allowed is not None and not is_allowed(connection):
                return ""
            connection.execute(delete(database.sessions).where(self._is_over(now)))
            many = select(_s.hash).where(_is_of(person)).order_by(_s.begun_at.desc()).offset(_MAX_PER_PERSON - 1)
            surplus = [row.hash for row in connection.execute(many)]
            connection.execute(delete(database.sessions).where(_s.hash.in_(surplus)))
            connection.execute(insert(database.sessions).values(**values))
        return token

    def find(self, token: str, *, is_use: bool = True) -> Session | None:
        """The session if it is still valid. `is_use`: a person uses it, not only a page that refreshes itself."""
        if not is_token(token):
            return None
        now, hashed = time.time(), hash_of(token)
        with self._store.reading() as connection:
            row = connection.execute(select(database.sessions).where(_s.hash == hashed)).first()
        if row is None or (row.provider and not row.subject):  # from an older version, which identified people by name
            return None
        if not (is_recent(row.used_at, now, self._limits.idle_s) and is_recent(row.begun_at, now, self._limits.max_s)):
            return None
        if is_use and now - row.used_at > min(_TOUCH_S, self._limits.idle_s / 4):
            with self._store.writing() as connection:
                connection.execute(update(database.sessions).where(_s.hash == hashed).values(used_at=now))
        return _session(row)

    def is_there(self, label: str) -> bool:
        """Whether the session has not been ended."""
        with self._store.reading() as connection:
            return connection.execute(select(_s.label).where(_s.label == label)).first() is not None

    def end(self, token: str) -> None:
        with self._store.writing() as connection:
            connection.execute(delete(database.sessions).where(_s.hash == hash_of(token)))

    def revoke(self, label: str, person: Person | None = None) -> str:
        """End the session with this label; with `person`, only if it belongs to them. Returns its owner, or ""."""
        chosen = _s.label == label if person is None else and_(_s.label == label, _is_of(person))
        with self._store.writing() as connection:
            row = connection.execute(select(_s.name).where(chosen)).first()
            connection.execute(delete(database.sessions).where(chosen))
        return "" if row is None else str(row.name)

    def listed(self, person: Person | None = None) -> list[Session]:
        """Sessions that have not ended, most recently used first; with `person`, only their own."""
        wanted = select(database.sessions).where(~self._is_over(time.time())).order_by(_s.used_at.desc()).limit(500)
        wanted = wanted if person is None else wanted.where(_is_of(person))
        with self._store.reading() as connection:
            return [_session(row) for row in connection.execute(wanted)]

    def _is_over(self, now: float) -> ColumnElement[bool]:
        """By the same rules as in `find`."""
        old = or_(_s.used_at < now - self._limits.idle_s, _s.begun_at < now - self._limits.max_s)
        return or_(old, _s.used_at > now + AHEAD_S, _s.begun_at > now + AHEAD_S)


class SignInLinks:
    """Each signs a local user in once, without a password, or lets them choose one; never both."""

    def __init__(self, store: ConsoleStore) -> None:
        self._store = store

    def make(self, name: str, lasts_s: float = LINK_S) -> str:
        token = new_token()
        self._add(hash_of(token), name, min(lasts_s, MAX_LINK_S))
        return token

    def make_for_password(self, name: str) -> str:
        token = new_token()
        self._add(_password_hash(token), name, PASSWORD_LINK_S)
        return token

    def _add(self, hashed: str, name: str, lasts_s: float) -> None:
        now = time.time()
        with self._store.writing() as connection:
            connection.execute(delete(database.links).where(~_is_valid(now, PASSWORD_LINK_S)))
            connection.execute(insert(database.links).values(hash=hashed, name=name, until=now + lasts_s))

    def use(self, token: str) -> Person | None:
        """The person that the link is for. It works only once."""
        if not is_token(token):
            return None
        users = database.users
        with self._store.writing() as connection:
            mine = _l.hash == hash_of(token)
            used = delete(database.links).where(mine, _is_valid(time.time(), MAX_LINK_S)).returning(_l.name)
            row = connection.execute(used).first()
            if row is None:
                return None
            seen = update(users).where(users.c.name == row.name).values(seen_at=time.time()).returning(users)
            found = connection.execute(seen).first()
        return None if found is None else Person(found.name, Role.named(found.role), tenants_from_text(found.tenants))


def find_password_link(connection: Connection, token: str) -> str:
    """The local user who may choose a password with it; "" if there is none."""
    if not is_token(token):
        return ""
    users = database.users
    found = (
        select(users.c.name)
        .join(database.links, _l.name == users.c.name)
        .where(_l.hash == _password_hash(token), _is_valid(time.time(), PASSWORD_LINK_S))
    )
    return str(connection.execute(found).scalar() or "")


def _is_valid(now: float, max_s: float) -> ColumnElement[bool]:
    """A link that seems to last longer than it can was made when a clock was ahead."""
    return _l.until.between(now, now + max_s + AHEAD_S)


def _password_hash(token: str) -> str:
    """Differs from that of a sign-in link, so that neither can be used as the other."""
    return hash_of(f"password {token}")


def _is_of(person: Person) -> ColumnElement[bool]:
    """By what identifies them: the provider may give a name to somebody else."""
    own = _s.subject == person.subject if person.provider else _s.name == person.name
    return and_(_s.provider == person.provider, own)


def _session(row: Row[tuple[object, ...]]) -> Session:
    rights = Role.named(row.role), tenants_from_text(row.tenants)
    person = Person(row.name, *rights, row.provider, row.subject, row.member_of)
    return Session(row.label, person, row.address, row.browser, row.begun_at, row.used_at)
