"""Local users: names, argon2 hashes, roles. There is no user at the start, and no default password."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from functools import cache

import argon2
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from bridge.console import database
from bridge.console.database import ConsoleStore
from bridge.console.roles import Person, Role, Tenants, tenants_from_text, tenants_to_text
from bridge.console.sessions import find_password_link
from bridge.errors import BridgeError

MIN_PASSWORD, MAX_PASSWORD = 10, 1000  # characters; NIST SP 800-63B asks for at least 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_AT_ONCE = threading.Semaphore(2)  # each hash takes 64 MiB: a flood of attempts must not take all memory
_HASHER = argon2.PasswordHasher()  # argon2id, with the parameters of RFC 9106 for little memory
_t = database.users.c


class UserMistake(BridgeError):
    """A name, password or role that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A user who gave the right password or link. It was true when the user was looked up."""

    person: Person
    password: str | None = field(default=None, repr=False)  # the hash it was compared with; None: it does not matter

    def is_still_true(self, connection: Connection) -> bool:
        """Whether the user exists, with this role, these tenants and this password; they stay until the end of the
        transaction. Comparing a password takes a while, during which the user may have been removed or changed."""
        row = connection.execute(select(database.users).where(_t.name == self.person.name).with_for_update()).first()
        if row is None or self.password not in (None, row.password):
            return False
        return _user(row).person == self.person


@dataclass(frozen=True, slots=True)
class User:
    person: Person
    made_at: float
    seen_at: float  # the last sign-in; 0: never
    has_password: bool


class Users:
    def __init__(self, store: ConsoleStore) -> None:
        self._store = store

    def add(self, name: str, password: str | None, role: Role, tenants: Tenants = None) -> None:
        """`password` is None for a user who signs in only with links. Raises UserMistake if the name is taken."""
        if not _NAME.fullmatch(name):
            raise UserMistake("a name consists of letters, digits and . _ @ + -, and starts with a letter or digit")
        values = {"role": str(role), "tenants": tenants_to_text(tenants), "made_at": time.time()}
        hashed = "" if password is None else self._hash(password, name)
        with self._store.writing() as connection:
            if connection.execute(select(_t.name).where(_t.name == name)).first():
                raise UserMistake(f"user {name} already exists")
            connection.execute(insert(database.users).values(name=name, password=hashed, **values))

    def set_password(self, name: str, password: str) -> None:
        """Raises UserMistake if there is no such user."""
        hashed = self._hash(password, name)
        with self._store.writing() as connection:
            changed = connection.execute(update(database.users).where(_t.name == name).values(password=hashed))
            if not changed.rowcount:
                raise UserMistake(f"there is no user {name}")
            _end_sign_ins(connection, name)

    def change(self, name: str, role: Role, tenants: Tenants) -> None:
        """Their sessions end. Raises UserMistake if there is no such user, or if no administrator would be left."""
        with self._store.writing() as connection:
            if role is not Role.ADMIN or tenants is not None:
                _check_admin_left(connection, name)
            values = {"role": str(role), "tenants": tenants_to_text(tenants)}
            if not connection.execute(update(database.users).where(_t.name == name).values(**values)).rowcount:
                raise UserMistake(f"there is no user {name}")
            _end_sign_ins(connection, name)

    def use_link(self, token: str, password: str) -> str:
        """Set the password of the user that the link is for, once; returns the name, or "" if there is no such link.

        Raises UserMistake if the password cannot be used; the link still works then.
        """
        with self._store.reading() as connection:
            name = find_password_link(connection, token)
        if not name:
            return ""
        hashed = self._hash(password, name)
        with self._store.writing() as connection:
            if find_password_link(connection, token) != name:  # used in the meantime
                return ""
            connection.execute(update(database.users).where(_t.name == name).values(password=hashed))
            _end_sign_ins(connection, name)
        return name

    def remove(self, name: str, *, keep_admin: bool = False) -> None:
        """Removes the user with all sessions and links. Raises UserMistake if there is no such user.

        With `keep_admin`, also raises it if no administrator would be left.
        """
        with self._store.writing() as connection:
            if keep_admin:
                _check_admin_left(connection, name)
            if not connection.execute(delete(database.users).where(_t.name == name)).rowcount:
                raise UserMistake(f"there is no user {name}")
            _end_sign_ins(connection, name)

    def listed(self, *, after: str = "", limit: int | None = None) -> list[User]:
        """By name; `after` is the last name of the previous page."""
        wanted = select(database.users).where(_t.name > after).order_by(_t.name).limit(limit)
        with self._store.reading() as connection:
            return [_user(row) for row in connection.execute(wanted)]

    def find(self, name: str) -> User | None:
        with self._store.reading() as connection:
            row = connection.execute(select(database.users).where(_t.name == name)).first()
        return None if row is None else _user(row)

    def has(self, person: Person) -> bool:
        """Whether a local user still has these rights; of a person of a provider, only the provider knows."""
        if person.provider:
            return True
        found = self.find(person.name)
        return found is not None and found.person == person

    def verify(self, name: str, password: str) -> Proven | None:
        """Who this is, if the password is right. Takes the same time if there is no such user."""
        with self._store.reading() as connection:
            row = connection.execute(select(database.users).where(_t.name == name)).first()
        with _AT_ONCE:
            hashed = row.password if row is not None and row.password else _of_nobody()
            try:
                _HASHER.verify(hashed, password[: MAX_PASSWORD + 1])
            except argon2.exceptions.Argon2Error:
                return None
        if row is None or not row.password:
            return None
        now = self._hash(password, name) if _HASHER.check_needs_rehash(hashed) else hashed
        same = (_t.name == name, _t.password == hashed)
        with self._store.writing() as connection:
            connection.execute(update(database.users).where(*same).values(seen_at=time.time(), password=now))
        return Proven(_user(row).person, now)

    def _hash(self, password: str, name: str) -> str:
        if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
            raise UserMistake(f"a password must be {MIN_PASSWORD} to {MAX_PASSWORD} characters long")
        if password.lower() in (name.lower() * 2, name.lower() * 3) or len(set(password)) < 4:
            raise UserMistake("this password is too easy to guess")
        with _AT_ONCE:
            return str(_HASHER.hash(password))


@cache
def _of_nobody() -> str:
    """What an unknown name is compared with, so that it takes as long as a known one. Within `_AT_ONCE`."""
    return str(_HASHER.hash("nobody has this password"))


def _check_admin_left(connection: Connection, name: str) -> None:
    """There must be an administrator for all mail besides this user. Raises UserMistake."""
    is_admin = (_t.role == str(Role.ADMIN)) & (_t.tenants == tenants_to_text(None))
    names = set(connection.execute(select(_t.name).where(is_admin)).scalars())
    if names == {name}:
        raise UserMistake(f"{name} is the last administrator for all mail, and must remain one")


def _end_sign_ins(connection: Connection, name: str) -> None:
    connection.execute(delete(database.sessions).where(_is_session_of(name)))
    connection.execute(delete(database.links).where(database.links.c.name == name))


def _is_session_of(name: str) -> ColumnElement[bool]:
    """The sessions of a local user: a person of a provider may have the same name."""
    return (database.sessions.c.name == name) & (database.sessions.c.provider == "")


def _user(row: object) -> User:
    values = row._mapping  # type: ignore[attr-defined]
    person = Person(values["name"], Role.named(values["role"]), tenants_from_text(values["tenants"]))
    return User(person, values["made_at"], values["seen_at"], bool(values["password"]))
