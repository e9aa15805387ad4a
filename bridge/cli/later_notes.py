"""Records in the history what was done with a mail later: released, deleted, reported, listed in a digest.

The operator wants the release. A history that cannot be written to causes only a warning, and no further attempts for a
minute: otherwise, an unavailable database would delay each of a thousand mails.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.daemon import history_place
from bridge.errors import BridgeError
from bridge.history.entry import LaterEvent
from bridge.history.store import HistoryStore
from bridge.observe.redaction import Redaction

RELEASED, RELEASE_FAILED, RELEASE_UNSURE = "released", "release failed", "release unsure"
RELEASED_IN_PART = "released in part"
DELETED, REPORTED, DIGEST_SENT = "deleted", "reported as", "digest sent"
_PAUSE_S = 60.0  # after an error
_TOGETHER_S = 1.0  # how long notes wait for others, so that they are written in one transaction


class LaterNotes:
    def __init__(self, conf: Config, state: Path) -> None:
        self._conf = conf
        self._state = state
        self._store: HistoryStore | None = None
        self._off_until = 0.0 if conf.history.enabled else math.inf
        self._is_together = False
        self._lock = threading.Lock()  # the console acts in several threads
        self._waiting: list[LaterEvent] = []
        self._written_at = 0.0

    def note(self, event: str, mail_id: str, by: str, to: tuple[str, ...] = (), text: str = "") -> None:
        """Never raises."""

        def made(redaction: Redaction) -> Iterable[LaterEvent]:
            redaction = redaction.of_mail("", to)
            said = f"to {', '.join(map(redaction.address, to))}" if to else ""
            said += f": {redaction.text(text)}" if text else ""
            # Users release their own mail: then `by` has an address.
            return [LaterEvent(time.time(), mail_id, event, redaction.text(by), said.removeprefix(": "))]

        self._note(f"{mail_id}: {event}", made)

    def note_digest(self, person: str, mails: Iterable[str]) -> None:
        """The mails that were listed in a digest. Never raises."""

        def made(redaction: Redaction) -> Iterable[LaterEvent]:
            now, to = time.time(), redaction.address(person)
            return [LaterEvent(now, mail, DIGEST_SENT, "", f"to {to}") for mail in mails]

        self._note("a digest was sent", made)

    def _note(self, done: str, make: Callable[[Redaction], Iterable[LaterEvent]]) -> None:
        if time.monotonic() < self._off_until:
            return
        try:
            events = list(make(history_place.redaction(self._conf, self._state)))
        except (BridgeError, OSError) as exc:
            self._give_up(done, exc)
            return
        with self._lock:
            self._waiting += events
        if not self._is_together or time.monotonic() - self._written_at > _TOGETHER_S:
            self._write()

    @contextmanager
    def together(self) -> Iterator[None]:
        """For many mails: one transaction a second, because one for each mail would take longer than its release."""
        self._is_together, self._written_at = True, time.monotonic()
        try:
            yield
        finally:
            self._is_together = False
            self._write()

    def _write(self) -> None:
        with self._lock:
            events, self._waiting, self._written_at = self._waiting, [], time.monotonic()
            if not events:
                return
            try:
                if self._store is None:
                    self._open()
                if self._store is not None:
                    self._store.note(events)
                    self._store.close()
            except (BridgeError, OSError) as exc:
                last = events[-1]
                others = f" (and {len(events) - 1:,} others)" if len(events) > 1 else ""
                self._give_up(f"{last.id}{others}: {last.event}", exc)

    def _give_up(self, done: str, exc: Exception) -> None:
        self._off_until = time.monotonic() + _PAUSE_S
        say(f"{done}, but the history cannot be written to: {exc}", err=True)

    def _open(self) -> None:
        is_shared = history_place.has_server(self._conf)
        if not is_shared and not history_place.history_directory(self._state).is_dir():
            return  # no daemon has recorded anything yet, so there is no mail to note this for
        self._store = history_place.history(self._conf, self._state)
