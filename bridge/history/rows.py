"""From the record of a mail to its row: called by the recorder's thread, for every mail.

Nearly all mails are ordinary: they have a decision, and nothing special happened. For them, all values that make up
the kind are read at once, and the kind is looked up by them. This takes 5 us instead of 13 (Python 3.11).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bridge.api.scanning import AnalysisResult
from bridge.filter.outcome import Outcome, Record
from bridge.history.entry import Kind, Row
from bridge.history.query import CANCELLED
from bridge.mail.action import Action
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mime.words import subject_text
from bridge.observe.metrics import reason_of
from bridge.observe.redaction import FULL, Redaction
from bridge.relay.reply_reader import queue_id_in

MAX_TEXT = 1000  # characters
_MAX_KEY = 400  # of what is indexed: PostgreSQL takes 2,700 bytes
_MAX_KINDS = 10_000
_APART_S = 1e-6  # between the rows of one mail: a page of the history ends at a time and an id

# Avoids the call to `Row.__new__`, which is written in Python: 0.27 us instead of 0.52.
_new_row = tuple.__new__

_kinds: dict[tuple[Any, ...], Kind] = {}


def rows_of(record: Record, at: float, attempt: str, redaction: Redaction) -> list[tuple[Kind, Row]]:
    """One row; several if the client was told different things about its recipients, one for each of them."""
    if record.outcome is None or not record.outcome.replies or not isinstance(record.error, NextHopError):
        return [row_of(record, at, attempt, redaction)]
    if redaction.mode == "domain":  # the recipients cannot be told apart
        return [row_of(record, at, attempt, redaction)]
    parts = enumerate(_parts(record, record.outcome, record.error))
    return [row_of(part, at + number * _APART_S, attempt, redaction) for number, part in parts]


def row_of(record: Record, at: float, attempt: str, redaction: Redaction) -> tuple[Kind, Row]:
    """`at` is the Unix time of the end of its processing."""
    tx, outcome = record.tx, record.outcome
    session, envelope = tx.session, tx.envelope
    if redaction is not FULL:
        redaction = redaction.of_mail(envelope.sender, envelope.addresses)
    client, recipients = session.client, envelope.recipients
    result = None if outcome is None else outcome.result
    is_special = (
        record.error is not None
        or record.listed is not None
        or record.limit is not None
        or record.is_mixed
        or client.login is not None
        or bool(record.doubts or record.unchecked or record.next_replies or record.is_stopped)
        or bool(record.unsure or record.accepted)
    )
    if is_special or outcome is None or result is None:
        kind = _any_kind(record)
    else:
        kind = _ordinary_kind(record, outcome, result)
    values = (
        at,
        tx.id,
        session.id,
        client.address or "",
        (client.helo or "")[:_MAX_KEY],
        envelope.sender,
        recipients[0].address if len(recipients) == 1 else "\n".join([each.address for each in recipients]),
        record.size,
        record.message_id[:_MAX_KEY],
        subject_text(record.subject),
        "" if outcome is None else str(outcome.reply)[:MAX_TEXT],
        "" if result is None else result.ggrid[:_MAX_KEY],
        record.wait_s,
        record.scan_s,
        record.relay_s,
        (client.ident or "")[:_MAX_KEY],
        record.next_id[:_MAX_KEY],
        attempt,
        1,
        _more(record, redaction) if is_special or (result and (result.reasons or result.listed)) else None,
    )
    row = _new_row(Row, values)
    return (kind, row) if redaction is FULL else _redacted(kind, row, redaction)


def _ordinary_kind(record: Record, outcome: Outcome, result: AnalysisResult) -> Kind:
    values = (
        record.tx.session.listener, record.tenant, record.at, outcome.action, result.decision, result.verdict,
        record.rule, result.tags, record.would, record.late, record.unscanned, record.scanner,
    )  # fmt: skip
    kind = _kinds.get(values)
    if kind is None:
        if len(_kinds) >= _MAX_KINDS:
            _kinds.clear()
        kind = _kinds[values] = _any_kind(record)
    return kind


def _any_kind(record: Record) -> Kind:
    outcome = record.outcome
    result = None if outcome is None else outcome.result
    return Kind(
        listener=record.tx.session.listener,
        tenant=record.tenant or "",
        stage=record.at,
        action=CANCELLED if outcome is None else str(outcome.action),
        decision="" if result is None else str(result.decision),
        verdict="" if result is None else result.verdict[:MAX_TEXT],
        rule=record.rule,
        tags="" if result is None else ",".join([tag.replace(",", " ") for tag in result.tags])[:MAX_TEXT],
        would=str(record.would or ""),
        late=str(record.late or ""),
        unscanned=record.unscanned,
        error="" if record.error is None else reason_of(record.error),
        list="" if record.listed is None else record.listed.name,
        scanner=record.scanner,
    )


def _more(record: Record, redaction: Redaction) -> str | None:
    """What only a few mails have, as JSON."""
    outcome = record.outcome
    recipients = record.tx.envelope.addresses
    more: dict[str, Any] = {
        "why": redaction.text(record.why)[:MAX_TEXT],
        "entry": redaction.text(record.listed.entry) if record.listed else "",
        "login": redaction.address(record.tx.session.client.login or ""),
        "limit": record.limit,
        "unchecked": list(record.unchecked),
        "unsure": _named(recipients, record.unsure, redaction),
        "accepted": _named(recipients, record.accepted, redaction),
        "next_ids": _recipients_by_queue_id(recipients, record.next_replies, redaction),
        "stopped": record.is_stopped,
    }
    if outcome is not None and outcome.result is not None and redaction is FULL:  # they may reveal more than addresses
        more["reasons"] = list(outcome.result.reasons)
        more["entries"] = dict(outcome.result.listed)
    if outcome is not None and len(set(outcome.replies)) > 1:
        more["replies"] = _by_recipient(recipients, outcome.replies, redaction)
    if record.is_mixed and isinstance(record.error, NextHopError):
        accepted = [position for position, reply in enumerate(record.error.replies) if reply.is_success]
        more["accepted"] = _named(recipients, accepted, redaction)
    more = {name: value for name, value in more.items() if value}
    return json.dumps(more) if more else None


def _parts(record: Record, outcome: Outcome, error: NextHopError) -> Iterator[Record]:
    """What became of the recipients, the first of them first: one record for each fate."""
    groups: dict[tuple[Action, bool], list[int]] = {}
    for position, reply in enumerate(outcome.replies):
        groups.setdefault((_action_of(reply), position in record.unsure), []).append(position)
    if len(groups) == 1:
        yield record
        return
    envelope = record.tx.envelope
    for (action, is_unsure), positions in groups.items():
        recipients = tuple([envelope.recipients[position] for position in positions])
        replies = tuple([outcome.replies[position] for position in positions])
        is_accepted = action is Action.RELAY
        yield replace(
            record,
            tx=replace(record.tx, envelope=replace(envelope, recipients=recipients)),
            outcome=replace(outcome, action=action, reply=replies[0], replies=replies),
            error=None if is_accepted else NextHopError(replies[0], "" if replies[0].is_foreign else str(error)),
            rule=record.relay_rule if is_accepted else record.rule,
            is_mixed=False,
            unsure=frozenset(range(len(positions)) if is_unsure else ()),
            unscanned=record.unscanned if is_accepted else "",
            next_id=",".join(dict.fromkeys(filter(None, map(queue_id_in, replies)))) if is_accepted else "",
            next_replies=replies if is_accepted else (),  # LMTP: each may have its own queue id
        )


def _action_of(reply: Reply) -> Action:
    return Action.RELAY if reply.is_success else Action.TEMPFAIL if reply.is_temporary else Action.REJECT


def _named(addresses: Sequence[str], positions: Iterable[int], redaction: Redaction) -> list[str]:
    return list(dict.fromkeys([redaction.address(addresses[position]) for position in sorted(positions)]))


def _recipients_by_queue_id(
    addresses: Sequence[str], replies: Sequence[Reply], redaction: Redaction
) -> dict[str, list[str]]:
    found: dict[str, list[int]] = {}
    for position, reply in enumerate(replies):
        if reply.is_success and (queue_id := queue_id_in(reply)):
            found.setdefault(redaction.text(queue_id), []).append(position)
    named = {queue_id: _named(addresses, positions, redaction) for queue_id, positions in found.items()}
    return named if len(named) > 1 else {}


def _by_recipient(addresses: Sequence[str], replies: Sequence[Reply], redaction: Redaction) -> dict[str, str]:
    """Recipients that are hidden behind one name, or named twice, have all their replies."""
    found: dict[str, dict[str, None]] = {}
    for address, reply in zip(addresses, replies, strict=True):
        found.setdefault(redaction.address(address), {})[redaction.text(str(reply))[:MAX_TEXT]] = None
    return {address: "; ".join(texts) for address, texts in found.items()}


def _redacted(kind: Kind, row: Row, redaction: Redaction) -> tuple[Kind, Row]:
    recipients = row.recipients.split("\n") if row.recipients else ()
    hide = redaction.text
    return kind._replace(tags=hide(kind.tags), verdict=hide(kind.verdict)), row._replace(
        helo=hide(row.helo),
        sender=redaction.address(row.sender),
        recipients="\n".join(map(redaction.address, recipients)),
        message_id=redaction.message_id(row.message_id),
        ggrid=hide(row.ggrid),
        queue_id=hide(row.queue_id),
        next_id=hide(row.next_id),
        subject="",  # it may say more than the addresses
        reply=hide(row.reply),
    )
