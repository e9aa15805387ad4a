"""From the record of a mail to its row: called by the recorder's thread, for every mail.

Nearly all mails are ordinary: they have a decision, and nothing special happened. For them, all values that make up
the kind are read at once, and the kind is looked up by them. This takes 5 us instead of 13 (Python 3.11).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bridge.api.scanning import AnalysisResult
from bridge.filter.outcome import Outcome, Record
from bridge.history.entry import Kind, Row
from bridge.history.query import CANCELLED
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mime.words import subject_text
from bridge.observe.metrics import reason_of
from bridge.observe.redaction import FULL, Redaction

_MAX_TEXT = 1000  # characters
_MAX_KEY = 400  # of what is indexed: PostgreSQL takes 2,700 bytes
_MAX_KINDS = 10_000

# Avoids the call to `Row.__new__`, which is written in Python: 0.27 us instead of 0.52.
_new_row = tuple.__new__

_kinds: dict[tuple[Any, ...], Kind] = {}


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
        or bool(record.doubts)
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
        "" if outcome is None else str(outcome.reply)[:_MAX_TEXT],
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
        verdict="" if result is None else result.verdict[:_MAX_TEXT],
        rule=record.rule,
        tags="" if result is None else ",".join([tag.replace(",", " ") for tag in result.tags])[:_MAX_TEXT],
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
    more: dict[str, Any] = {
        "why": redaction.text(record.why)[:_MAX_TEXT],
        "entry": redaction.text(record.listed.entry) if record.listed else "",
        "login": redaction.address(record.tx.session.client.login or ""),
        "limit": record.limit,
    }
    if outcome is not None and outcome.result is not None and redaction is FULL:  # they may reveal more than addresses
        more["reasons"] = list(outcome.result.reasons)
        more["entries"] = dict(outcome.result.listed)
    if outcome is not None and len(set(outcome.replies)) > 1:
        more["replies"] = _by_recipient(record.tx.envelope.addresses, outcome.replies, redaction)
    if record.is_mixed and isinstance(record.error, NextHopError):
        pairs = zip(record.tx.envelope.addresses, record.error.replies, strict=False)
        accepted = [redaction.address(address) for address, reply in pairs if reply.is_success]
        more["accepted"] = list(dict.fromkeys(accepted))
    more = {name: value for name, value in more.items() if value}
    return json.dumps(more) if more else None


def _by_recipient(addresses: Sequence[str], replies: Sequence[Reply], redaction: Redaction) -> dict[str, str]:
    """Recipients that are hidden behind one name, or named twice, have all their replies."""
    found: dict[str, dict[str, None]] = {}
    for address, reply in zip(addresses, replies, strict=True):
        found.setdefault(redaction.address(address), {})[redaction.text(str(reply))] = None
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
