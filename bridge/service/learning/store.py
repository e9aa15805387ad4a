"""Votes in the service's database, which all nodes share.

A scope is a tenant's UUID, or "" for the deployment. Each change to a scope raises its version, so that other nodes
notice it. The number of votes is limited per scope, and per person, so that nobody can displace the votes of others.
The number of scopes is limited too, and a scope whose last vote has expired is deleted: tenants come and go.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, delete, exists, func, insert, select

from bridge.errors import BridgeError
from bridge.runtime.database import insert_into
from bridge.service.learning.votes import Vote
from bridge.service.learning_tables import learning_scope, learning_vote
from bridge.service.store import Store, analysis

MAX_VOTES = 5000  # per scope; the newest are kept
MAX_OF_REPORTER = 200
KEPT_S = 365 * 86400.0
MAX_SCOPES = 10_000
BATCH = 500


class TooManyScopes(BridgeError):
    """Votes are already kept for the maximum number of tenants."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """What is on record about the analysis of a mail."""

    tenant: str
    size: int
    tags: frozenset[str]


class VoteStore:
    def __init__(self, store: Store, max_votes: int = MAX_VOTES, max_scopes: int = MAX_SCOPES) -> None:
        self._store = store
        self._max_votes = max_votes
        self._max_scopes = max_scopes

    def add(self, scope: str, vote: Vote) -> bool:
        """False if this person has already reported this mail the same way. The opposite vote replaces it.

        Raises TooManyScopes.
        """
        with self._store.writing() as connection:
            same = (learning_vote.c.scope == scope) & (learning_vote.c.mail == vote.mail)
            same &= learning_vote.c.reporter == vote.reporter
            known = connection.execute(select(learning_vote.c.kind).where(same)).scalar()
            if known == vote.kind:
                return False
            _touch(connection, scope, self._max_scopes)
            connection.execute(delete(learning_vote).where(same))
            connection.execute(insert(learning_vote).values(_row(scope, vote)))
            _trim(connection, scope, vote.reporter, self._max_votes)
        return True

    def replace(self, scope: str, votes: Iterable[Vote]) -> int:
        """Replace all votes of the scope; if there are too many, the newest are kept.

        A vote with a time in the future would never expire, and newer votes would be deleted before it.
        """
        now = time.time()
        past = [vote if vote.at <= now else replace(vote, at=now) for vote in votes]
        wanted = {(vote.mail, vote.reporter): vote for vote in sorted(past, key=lambda one: one.at)}
        newest = list(wanted.values())[-self._max_votes :]
        with self._store.writing() as connection:
            _touch(connection, scope, self._max_scopes)
            connection.execute(delete(learning_vote).where(learning_vote.c.scope == scope))
            for start in range(0, len(newest), BATCH):
                connection.execute(insert(learning_vote), [_row(scope, one) for one in newest[start : start + BATCH]])
        return len(newest)

    def reset(self, scope: str) -> int:
        """Forget everything that was learned in this scope; returns the number of votes deleted."""
        with self._store.writing() as connection:
            _touch(connection, scope, self._max_scopes)
            return connection.execute(delete(learning_vote).where(learning_vote.c.scope == scope)).rowcount

    def votes(self, scope: str) -> list[Vote]:
        """The oldest first."""
        query = select(learning_vote).where(learning_vote.c.scope == scope, learning_vote.c.at > time.time() - KEPT_S)
        with self._store.reading() as connection:
            rows = connection.execute(query.order_by(learning_vote.c.at, learning_vote.c.mail)).all()
        return [
            Vote(row.mail, row.reporter, row.kind, row.sender, row.origin, tuple(json.loads(row.signals)), row.at)
            for row in rows
        ]

    def versions(self) -> dict[str, int]:
        with self._store.reading() as connection:
            rows = connection.execute(select(learning_scope.c.scope, learning_scope.c.version))
            return {row.scope: row.version for row in rows}

    def expire(self) -> int:
        """Delete the votes that no longer count, and the scopes without votes; returns how many scopes."""
        with self._store.writing() as connection:
            connection.execute(delete(learning_vote).where(learning_vote.c.at < time.time() - KEPT_S))
        has_votes = exists().where(learning_vote.c.scope == learning_scope.c.scope)
        with self._store.reading() as connection:
            empty = connection.execute(select(learning_scope.c.scope).where(~has_votes)).scalars().all()
        return sum(map(self._delete_empty, empty))

    def _delete_empty(self, scope: str) -> int:
        """Under the lock of the scope, because somebody may vote in it now."""
        here, votes = learning_scope.c.scope == scope, learning_vote.c.scope == scope
        with self._store.writing() as connection:
            connection.execute(select(learning_scope.c.scope).where(here).with_for_update())
            if connection.execute(select(learning_vote.c.mail).where(votes).limit(1)).first() is not None:
                return 0
            return connection.execute(delete(learning_scope).where(here)).rowcount

    def analysed(self, ggrid: str) -> Analysed | None:
        """None if it is not, or no longer, on record."""
        query = select(analysis.c.tenant, analysis.c.size, analysis.c.tags).where(analysis.c.ggrid == ggrid)
        with self._store.reading() as connection:
            row = connection.execute(query).first()
        return None if row is None else Analysed(row.tenant, row.size, frozenset(map(str, json.loads(row.tags))))


def _row(scope: str, vote: Vote) -> dict[str, object]:
    return {
        "scope": scope,
        "mail": vote.mail,
        "reporter": vote.reporter,
        "kind": vote.kind,
        "sender": vote.sender,
        "origin": vote.origin,
        "signals": json.dumps(vote.signals),
        "at": vote.at,
    }


def _touch(connection: Connection, scope: str, max_scopes: int) -> None:
    """Take the lock of the scope, and tell other nodes. Raises TooManyScopes."""
    known = connection.execute(select(learning_scope.c.scope).where(learning_scope.c.scope == scope)).first()
    if known is None and _number_of_scopes(connection) >= max_scopes:
        raise TooManyScopes(f"there are already votes for {max_scopes:,} tenants, the maximum")
    # A scope that was deleted and exists again must not have a version that it had before.
    first = insert_into(connection, learning_scope).values(scope=scope, version=time.time_ns() // 1000)
    more = {"version": learning_scope.c.version + 1}
    connection.execute(first.on_conflict_do_update(index_elements=["scope"], set_=more))


def _number_of_scopes(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(learning_scope)).scalar_one())


def _trim(connection: Connection, scope: str, reporter: str, max_votes: int) -> None:
    here = learning_vote.c.scope == scope
    connection.execute(delete(learning_vote).where(here, learning_vote.c.at < time.time() - KEPT_S))
    for condition, most in ((here & (learning_vote.c.reporter == reporter), MAX_OF_REPORTER), (here, max_votes)):
        _keep_newest(connection, condition, most)


def _keep_newest(connection: Connection, condition: ColumnElement[bool], most: int) -> None:
    if connection.execute(select(func.count()).select_from(learning_vote).where(condition)).scalar_one() <= most:
        return
    times = select(learning_vote.c.at).where(condition).order_by(learning_vote.c.at.desc())
    oldest = connection.execute(times.offset(most - 1).limit(1)).scalar_one()
    connection.execute(delete(learning_vote).where(condition, learning_vote.c.at < oldest))
