"""The filter's outcome, as the frames that answer a mail server's end of body.

A mail server that did not grant an action is never asked for it: it would close the connection.
Pure functions; when and where the frames are sent is the connection's business. If this is wrong,
mail is let through that the filter refused, or leaves without our header fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from bridge.filter.changes import FieldEdit
from bridge.filter.outcome import Outcome
from bridge.filter.policy import CANNOT_HOLD, with_id
from bridge.intake.milter import codec, protocol
from bridge.mail.action import Action

CONTINUE = codec.encode_response(protocol.END_OF_BODY, protocol.CONTINUE)
DISCARD = codec.encode_response(protocol.END_OF_BODY, protocol.DISCARD)
PROGRESS = codec.encode_response(protocol.END_OF_BODY, protocol.PROGRESS)
SKIP = codec.encode_response(protocol.BODY, protocol.SKIP)


def frames_for(outcome: Outcome, mail_id: str, forged: Mapping[bytes, int], agreement: codec.Agreement) -> list[bytes]:
    """What the mail server has to do with the mail; `forged` counts the fields that only we may write."""
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


def _edits(outcome: Outcome, forged: Mapping[bytes, int], agreement: codec.Agreement) -> list[bytes]:
    """Delete the forged fields, of each name the last one first (the others keep their number), then add ours.

    In between, the changes to the mail's own fields that the scanner asked for.
    """
    edits = []
    if (forged or outcome.edits) and agreement.actions & protocol.CAN_CHANGE_HEADERS:
        for name, count in forged.items():
            edits += [codec.encode_delete_header(name, index) for index in range(count, 0, -1)]
        edits += [_edit(edit, agreement) for edit in outcome.edits]
    if agreement.actions & protocol.CAN_ADD_HEADERS:
        edits += [codec.encode_add_header(name, value, agreement) for name, value in outcome.stamp]
    return edits
