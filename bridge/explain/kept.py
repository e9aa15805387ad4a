"""What the quarantine knows about a mail, for its story.

Object storage is queried only for mail that was quarantined, because each query costs a request.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from bridge.config.model import Config
from bridge.errors import BridgeError
from bridge.history.entry import LaterEvent, MailEntry
from bridge.history.story_context import GONE, NOT_HERE, UNKNOWN, Kept
from bridge.mail.action import Action
from bridge.observe.redaction import Redaction
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import MailNotFound


def kept(
    conf: Config,
    redaction: Redaction,
    entry: MailEntry,
    later: tuple[LaterEvent, ...],
    read: Callable[[str], MailRecord],
    is_shared: bool,
) -> Kept | None:
    """None if the mail was never meant to be there, and is not.

    `later`: what happened to the mail. `read` raises MailNotFound. `is_shared`: other machines have parts of the
    history, and their own quarantines.
    """
    was_quarantined = entry.kind.action == Action.QUARANTINE
    if not entry.row.id or (conf.quarantine.s3 is not None and not was_quarantined):
        return None
    try:
        record = read(entry.row.id)
    except MailNotFound:
        may_be_elsewhere = is_shared and conf.quarantine.s3 is None
        is_deleted = any(event.event == "deleted" for event in later)
        missing = NOT_HERE if may_be_elsewhere and not is_deleted else GONE
        return Kept(missing) if was_quarantined else None
    except (BridgeError, OSError) as exc:
        return Kept(UNKNOWN, problem=str(exc)) if was_quarantined else None
    until = record.time + timedelta(seconds=conf.quarantine.retention)
    delivered = tuple(redaction.address(address) for address in sorted(record.delivered))
    return Kept(record.state, delivered, until.timestamp())
