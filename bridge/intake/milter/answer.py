"""The filter's outcome, as the frames that answer a mail server's end of body.

A mail server that did not grant an action is never asked for it: it would close the connection.
Pure functions; when and where the frames are sent is the connection's business. If this is wrong,
mail is let through that the filter refused, or leaves without our header fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from bridge.filter.changes import FieldEdit
from bridge.filter.outcome import Outcome
from bridge.filter.policy import CANNOT_HOLD, with_id
from bridge.intake.milter import codec, protocol
from bridge.mail import authentication_results
from bridge.mail.action import Action

CONTINUE = codec.encode_response(protocol.END_OF_BODY, protocol.CONTINUE)
DISCARD = codec.encode_response(protocol.END_OF_BODY, protocol.DISCARD)
PROGRESS = codec.encode_response(protocol.END_OF_BODY, protocol.PROGRESS)
SKIP = codec.encode_response(protocol.BODY, protocol.SKIP)

Forged = Mapping[bytes, Sequence[int]]  # by lower-case name, numbers of fields from 1, in order


def frames_for(outcome: Outcome, mail_id: str, forged: Forged, agreement: codec.Agreement) -> list[bytes]:
    """What the mail server must do with the mail; `forged` has the fields that only we may write."""
    match outcome.action:
        case Action.RELAY:
            removed = [codec.encode_delete_recipient(address) for address in outcome.removed]
            return [*_edits(outcome, forged, agreement), *removed, CONTINUE]
        case Action.REJECT | Action.TEMPFAIL:
            return [codec.encode_reply(protocol.END_OF_BODY, outcome.reply)]
        case Action.DISCARD | Action.QUARANTINE:
            return [DISCARD]
        case Action.HOLD if agreement.can_quarantine:
            hold = codec.encode_quarantine(f"held for review ({mail_id})")
            return [*_edits(outcome, forged, agreement), hold, CONTINUE]
        case Action.HOLD:
            return [codec.encode_reply(protocol.END_OF_BODY, with_id(CANNOT_HOLD, mail_id))]
        case unknown:
            assert_never(unknown)


def _edit(edit: FieldEdit, agreement: codec.Agreement) -> bytes:
    if edit.value is None:
        return codec.encode_delete_header(edit.name, edit.number)
    return codec.encode_change_header(edit.name.title(), edit.number, edit.value, agreement)


def _edits(outcome: Outcome, forged: Forged, agreement: codec.Agreement) -> list[bytes]:
    """Delete the forged fields and change those that the scanner wants changed, then add ours."""
    edits: list[bytes] = []
    if (forged or outcome.edits) and agreement.actions & protocol.CAN_CHANGE_HEADERS:
        edits += [_edit(edit, agreement) for edit in _all_edits(outcome.edits, forged)]
    if agreement.actions & protocol.CAN_ADD_HEADERS:
        for name, value in outcome.stamp:
            # RFC 8601 section 4.1: results go above those of other servers. The order of our own fields is free.
            encode = codec.encode_insert_header if name == authentication_results.FIELD else codec.encode_add_header
            edits.append(encode(name, value, agreement))
    return edits


def _all_edits(wanted: Sequence[FieldEdit], forged: Forged) -> list[FieldEdit]:
    """For each name, the last field comes first, so that the others keep their numbers."""
    edits = [FieldEdit(name, number, None) for name, numbers in forged.items() for number in reversed(numbers)]
    if not any(edit.name in forged for edit in wanted):
        return [*edits, *wanted]
    edits += [replace(edit, number=_number_before(edit.number, forged.get(edit.name, ()))) for edit in wanted]
    return sorted(edits, key=lambda edit: (edit.name, -edit.number))


def _number_before(number: int, deleted: Sequence[int]) -> int:
    """The number of a field among all of them; the scanner has seen the mail without the forged ones."""
    for earlier in deleted:
        number += earlier <= number
    return number
