"""What the quarantine knows about a mail, for its story.

A local quarantine is asked directly, without its index: that would import SQLAlchemy.
"""

from __future__ import annotations

from bridge.cli.history.session import HistorySession
from bridge.daemon.history_place import has_server
from bridge.errors import BridgeError, ConfigError
from bridge.explain import kept as explain_kept
from bridge.history.mails import Mail
from bridge.history.story_context import Kept
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.record import MailRecord, read


def kept(session: HistorySession, mail: Mail) -> Kept | None:
    """None if the mail was never meant to be there, and is not."""
    conf = session.config
    return explain_kept.kept(
        conf, session.redaction, mail.last, mail.later, lambda mail_id: _record(session, mail_id), has_server(conf)
    )


def is_kept(session: HistorySession, mail_id: str) -> bool:
    """Whether the quarantine has the mail; also False if it cannot be read."""
    try:
        _record(session, mail_id)
    except (BridgeError, OSError):
        return False
    return True


def _record(session: HistorySession, mail_id: str) -> MailRecord:
    if session.config.quarantine.s3 is None:
        return read(LocalStore(session.state / session.config.quarantine.directory).read(mail_id))
    from bridge.daemon import wiring
    from bridge.quarantine.quarantine import Quarantine

    try:
        return Quarantine(wiring.quarantine_place(session.config, session.state)).read(mail_id)
    except ConfigError as exc:
        raise BridgeError(str(exc)) from exc
