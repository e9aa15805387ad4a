"""From entries to mails: all attempts to deliver one mail belong together, whichever of them the search found.

Attempts carry the same key if the process that saw the later one knew of the deferral. If it did not (another machine,
a restart, hidden addresses), the sender and the Message-ID join an attempt to an earlier one that was deferred or
given up. A Message-ID is the sender's word, so a mail that has already been decided on is never joined to another by
it. Mail servers send a message to many recipients in several transactions, which have the same content: only those that
have a recipient in common are attempts to deliver one mail. Recipients who were deferred together may be treated
differently later: their mails then begin with the same attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.history.entry import LaterEvent, MailEntry
from bridge.history.query import CANCELLED, HistoryQuery, client_address
from bridge.history.store import HistoryReader
from bridge.mail.action import Action
from bridge.mail.address import comparable_address

_MANY = 200  # attempts of one mail that are read
_RETRY_S = 5 * 86_400.0  # how long mail servers keep trying


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail with all its attempts, the oldest first."""

    attempts: tuple[MailEntry, ...]
    others: tuple[tuple[MailEntry, ...], ...] = ()  # the same message, sent separately: the attempts of each mail
    before: tuple[MailEntry, ...] = ()  # deferred before there was content: perhaps with this mail
    later: tuple[LaterEvent, ...] = ()

    @property
    def last(self) -> MailEntry:
        return self.attempts[-1]


def is_open(entry: MailEntry) -> bool:
    """Whether the client will come again."""
    return entry.kind.action in (Action.TEMPFAIL.value, CANCELLED)


Recipients = frozenset[str]


def recipients_of(entry: MailEntry) -> Recipients:
    return frozenset(map(comparable_address, entry.recipients))


def share_recipients(one: Recipients, other: Recipients) -> bool:
    """Whether both may be attempts with one mail. A mail that was deferred before RCPT has no recipients yet."""
    return not one or not other or not one.isdisjoint(other)


def identity(entry: MailEntry) -> tuple[object, ...]:
    """Entries of summed refusals have no id."""
    return entry.row.at, entry.row.id, entry.kind.listener, entry.row.client, entry.kind.rule


def gather(found: Iterable[MailEntry]) -> list[Mail]:
    """Each mail once, with those of its attempts that were found, the newest mail first."""
    ordered = sorted(found, key=lambda entry: entry.row.at)
    mails: list[Mail] = []
    for related in _related(ordered):
        mails += [Mail(tuple(group)) for group in _groups(related)]
    return sorted(mails, key=lambda mail: mail.last.row.at, reverse=True)


def whole(store: HistoryReader, mail: Mail) -> Mail:
    """With all its attempts, and everything that belongs to it. Raises HistoryError."""
    entry = mail.last
    related = {identity(attempt): attempt for attempt in mail.attempts}
    for query in _queries(entry):
        for other in store.find(query):
            if _is_related(entry, other):
                related[identity(other)] = other
    groups = _groups(sorted(related.values(), key=lambda other: other.row.at))
    own = next(group for group in groups if identity(entry) in map(identity, group))
    others = tuple(tuple(group) for group in groups if group is not own)
    ids = [attempt.row.id for attempt in own if attempt.row.id]
    return Mail(tuple(own), others, tuple(_before(store, own[0])), tuple(store.later(ids) if ids else ()))


def _related(ordered: Iterable[MailEntry]) -> Iterable[list[MailEntry]]:
    """Groups of entries that may be about one mail."""
    found: dict[tuple[object, ...], list[MailEntry]] = {}
    keys: dict[str, tuple[object, ...]] = {}  # of attempts
    for entry in ordered:
        row = entry.row
        name: tuple[object, ...] = (row.sender, row.message_id) if _tells_apart(row.message_id) else identity(entry)
        if row.attempt:
            name = keys.setdefault(row.attempt, name)
        found.setdefault(name, []).append(entry)
    return found.values()


def _queries(entry: MailEntry) -> Iterable[HistoryQuery]:
    since, until = entry.row.at - _RETRY_S, entry.row.at + _RETRY_S  # so that only part of the history is read
    if entry.row.id:  # other recipients of the same mail, who got another answer
        yield HistoryQuery(id=entry.row.id, since=since, until=until, limit=_MANY)
    if entry.row.attempt:
        yield HistoryQuery(attempt=entry.row.attempt, since=since, until=until, limit=_MANY)
    if _tells_apart(entry.row.message_id):
        yield HistoryQuery(what=entry.row.message_id, since=since, until=until, limit=_MANY)


def _tells_apart(message_id: str) -> bool:
    """Whether it identifies a mail. With `log.addresses: domain`, all mails of a domain have the same one."""
    return bool(message_id.strip("<>")) and not message_id.startswith("<*")


def _is_related(entry: MailEntry, other: MailEntry) -> bool:
    if entry.row.id and other.row.id == entry.row.id:
        return True
    if entry.row.attempt and other.row.attempt == entry.row.attempt:
        return True
    return other.row.message_id == entry.row.message_id and other.row.sender == entry.row.sender


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    entry: MailEntry
    recipients: Recipients
    previous: _Attempt | None
    keys: frozenset[str]  # its own, and those of the attempts before it

    def to_here(self) -> list[MailEntry]:
        attempt, found = self.previous, [self.entry]
        while attempt is not None:
            found.append(attempt.entry)
            attempt = attempt.previous
        return found[::-1]


def _groups(ordered: Sequence[MailEntry]) -> list[list[MailEntry]]:
    """The attempts with each mail; the first ones may belong to several mails."""
    known: list[_Attempt] = []
    for entry in ordered:
        recipients, keys = recipients_of(entry), frozenset({entry.row.attempt} - {""})
        previous = _previous(known, entry, recipients)
        known.append(_Attempt(entry, recipients, previous, keys if previous is None else keys | previous.keys))
    repeated = {attempt.previous for attempt in known}
    return [attempt.to_here() for attempt in known if attempt not in repeated]


def _previous(known: Sequence[_Attempt], entry: MailEntry, recipients: Recipients) -> _Attempt | None:
    """The attempt that this one repeats, for all of its recipients or for some."""
    ended: set[_Attempt | None] = set()  # with a decision, and whatever came before that
    for attempt in reversed(known):
        if attempt in ended:
            ended.add(attempt.previous)
        elif entry.row.id and entry.row.id == attempt.entry.row.id:  # other recipients, other answers
            continue
        elif share_recipients(recipients, attempt.recipients):
            if entry.row.attempt in attempt.keys:
                return attempt
            if is_open(attempt.entry) and entry.row.at - attempt.entry.row.at < _RETRY_S:
                return attempt
            ended.add(attempt.previous)
    return None


def _before(store: HistoryReader, first: MailEntry) -> list[MailEntry]:
    """Deferrals at MAIL of the same sender and client shortly before."""
    if first.kind.stage or not first.row.sender or first.row.sender.startswith("*"):
        return []
    deferred = Action.TEMPFAIL.value
    query = HistoryQuery(
        sender=first.row.sender,
        client=client_address(first.row.client),  # other clients may have sent many more with this sender
        action=deferred,
        stage="mail",
        until=first.row.at,
        since=first.row.at - 86_400,
        limit=50,
    )
    return [entry for entry in reversed(store.find(query)) if entry.row.client == first.row.client]
