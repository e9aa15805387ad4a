"""What the quarantine knows about a mail, for its story.

A local quarantine is asked directly, without its index: that would import SQLAlchemy. Object storage is asked only
about mail that was put into quarantine, because each question costs a request.
"""

from __future__ import annotations

from datetime import timedelta

from bridge.cli.history.session import HistorySession
from bridge.daemon.history_place import has_server
from bridge.errors import BridgeError, ConfigError
from bridge.history.entry import MailEntry
from bridge.history.story import GONE, NOT_HERE, UNKNOWN, Kept
from bridge.mail.action import Action
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.record import MailRecord, read
from bridge.quarantine.store import MailNotFound


def kept(session: HistorySession, entry: MailEntry) -> Kept | None:
    """None if the mail was never meant to be there, and is not."""
    was_quarantined = entry.kind.action == Action.QUARANTINE
    if not entry.row.id or (session.config.quarantine.s3 is not None and not was_quarantined):
        return None
    try:
        record = _record(session, entry.row.id)
    except MailNotFound:
        is_shared = has_server(session.config) and session.config.quarantine.s3 is None
        return Kept(NOT_HERE if is_shared else GONE) if was_quarantined else None
    except (BridgeError, OSError) as exc:
        return Kept(UNKNOWN, problem=str(exc)) if was_quarantined else None
    until = record.time + timedelta(seconds=session.config.quarantine.retention)
    delivered = tuple(session.redaction.address(address) for address in sorted(record.delivered))
    return Kept(record.state, delivered, until.timestamp())


def _record(session: HistorySession, mail_id: str) -> MailRecord:
    if session.config.quarantine.s3 is None:
        return read(LocalStore(session.state / session.config.quarantine.directory).read(mail_id))
    from bridge.daemon import wiring
    from bridge.quarantine.quarantine import Quarantine

    try:
        return Quarantine(wiring.quarantine_place(session.config, session.state)).read(mail_id)
    except ConfigError as exc:
        raise BridgeError(str(exc)) from exc
