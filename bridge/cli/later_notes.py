"""Notes in the history what an operator did to a mail: released, deleted.

What the operator wants is the release. A history that cannot be written to costs a warning, and no further attempts: a
database that is unavailable would make each of a thousand mails wait.
"""

from __future__ import annotations

import time
from pathlib import Path

from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.daemon import history_place
from bridge.errors import BridgeError
from bridge.history.entry import LaterEvent
from bridge.history.store import HistoryStore

RELEASED, RELEASE_FAILED, RELEASE_UNSURE = "released", "release failed", "release unsure"
DELETED, REPORTED = "deleted", "reported as"


class LaterNotes:
    def __init__(self, conf: Config, state: Path) -> None:
        self._conf = conf
        self._state = state
        self._store: HistoryStore | None = None
        self._is_off = not conf.history.enabled

    def note(self, event: str, mail_id: str, by: str, to: tuple[str, ...] = (), text: str = "") -> None:
        """Never raises."""
        if self._is_off:
            return
        try:
            if self._store is None:
                self._open()
            if self._store is not None:
                redaction = history_place.redaction(self._conf, self._state)
                said = f"to {', '.join(map(redaction.address, to))}" if to else ""
                said += f": {redaction.text(text)}" if text else ""
                self._store.note([LaterEvent(time.time(), mail_id, event, by, said.removeprefix(": "))])
                self._store.close()
        except (BridgeError, OSError) as exc:
            self._is_off = True
            say(f"{mail_id}: {event}, but the history cannot be written to: {exc}", err=True)

    def _open(self) -> None:
        is_shared = history_place.has_server(self._conf)
        if not is_shared and not history_place.history_directory(self._state).is_dir():
            return  # no daemon has recorded anything yet, so there is no mail to note this for
        self._store = history_place.history(self._conf, self._state)
