"""Records each mail in the history, off the path of the mail.

The event loop only puts the record of a finished mail into a bounded queue; a thread makes rows of them and writes
them in batches. A database that is slow, full, locked or gone costs rows, which are counted, and never mail. Refusals
before the content can come by the thousands each second: beyond a few rows per second they are summed, by client.

Mail that was deferred will come again. Its attempts are joined by a fingerprint, which is computed only for mail that
is deferred, and for mail with the sender and the Message-ID of such a mail.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bridge.filter import rule_names
from bridge.filter.late.fingerprint import attempt_key
from bridge.filter.outcome import Record
from bridge.history.entry import ACCEPTED_LATE, REFUSED_LATE, Kind, LaterEvent, Row
from bridge.history.query import CANCELLED, HistoryQuery
from bridge.history.rows import MAX_TEXT, rows_of
from bridge.history.store import HistoryError, HistoryStore
from bridge.intake.refused_client import RefusedClient
from bridge.mail.action import Action
from bridge.mail.envelope import RECIPIENTS_PER_WEIGHT, memory_weight
from bridge.mail.reply import Reply
from bridge.mail.transaction import new_id
from bridge.observe.redaction import FULL, Redaction
from bridge.quarantine.purge_guard import ClockInDoubt, PurgeGuard

log = logging.getLogger(__name__)

MAX_WAITING = 20_000  # rows of one process in memory, about 25 MB; twenty recipients weigh as much as a row
MAX_REFUSALS_PER_S = 50  # rows of one process for refusals before the content; further ones are summed by client
MAX_SUMS = 50  # rows of one batch for clients; further ones are summed together
MAX_DEFERRED = 10_000  # mails that may come again
DEFERRED_S = 5 * 86_400.0  # how long mail servers keep trying
BATCH_S = 0.3
RETRY_S = 1.0
UPKEEP_S = 600.0
_BATCH_ROWS = 2_000
_TRIED_APART = 20  # rows of a batch that was refused
_TRIED_TIMES = 4  # for a row refused while others are written: the database may be failing or recovering
# Mails written, refusals that share a row, mails lost because too many waited, mails that could not be written (in the
# end, or before the process ended), and deleted parts of the history: old ones, and those that exceeded the size.
RESULTS = ("written", "summed", "overflow", "failed", "deleted", "deleted_early")
_CLOSE_S = 5.0
# Python 3.11: looking up an enum member takes 0.3 us (`bridge/scanner/circuit.py`).
_TEMPFAIL = Action.TEMPFAIL


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    retention_s: float
    max_size: int | None = None  # bytes
    redaction: Redaction = FULL
    is_keeper: Callable[[], bool] = lambda: True  # whether this process deletes old entries; one of a machine does
    max_waiting: int = MAX_WAITING
    batch_s: float = BATCH_S
    retry_s: float = RETRY_S  # while the database fails
    clock: Callable[[], float] = time.time  # by which entries are old


_NO_KIND = Kind(*[""] * len(Kind._fields))
_NO_ROW = Row(0.0, "", "", "", "", "", "", 0, "", "", "", "", 0.0, 0.0, 0.0, "", "", "", 1, None)


# Listener, stage, client, sender, rule. The sender is None where refusals of several senders share a row.
_SumKey = tuple[str, str, str | None, str | None, str]
_OTHERS = ""  # instead of a client: further ones, which share a row


@dataclass(slots=True)
class _Refusals:
    """Refusals that share a row."""

    kind: Kind
    row: Row  # of the first
    count: int = 0


class Recorder:
    """One per process, from `start` to `close`."""

    def __init__(
        self, store: HistoryStore, settings: RecorderSettings, count: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        """`count` is called with one of `RESULTS` and a number; each result comes from one thread only."""
        self._store = store
        self._settings = settings
        self._count = count
        self.size = 0  # bytes on disk, when they were last added up
        self._waiting: deque[tuple[float, Record, str]] = deque()
        self._rows: list[tuple[Kind, Row]] = []  # of the thread
        self._later: deque[LaterEvent] = deque()
        self._refused: Counter[str] = Counter()  # how often each row was refused while others were written, by id
        self._sums: dict[_SumKey, _Refusals] = {}
        self._sums_lock = threading.Lock()
        self._second, self._refusals = 0, 0
        self._deferred: dict[tuple[str, str], float] = {}
        self._found_deferred: dict[tuple[str, str], float] = {}  # by the thread
        self._added, self._removed = 0, 0  # weights: each is changed by one thread only
        self._wake = threading.Event()
        self._is_closing = False
        self._problem = ""
        self._upkeep_at = 0.0
        self._guard = PurgeGuard(settings.clock, what="old entries of the history will be deleted", now="")
        self._doubt = ""  # as it was last logged: it names the hours that remain
        self._looked_until = 0.0
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what is left; a database that does not answer gets five seconds."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_CLOSE_S)
        lost = len(self._waiting) + len(self._rows) + len(self._later)
        if lost:
            self._count("failed", lost)
            why = self._problem or "not enough time"
            log.warning("history: %d mails could not be recorded before shutdown: %s", lost, why)

    @property
    def problem(self) -> str:
        """Why the last batch could not be written; empty if it was written."""
        return self._problem

    @property
    def is_expecting_mail(self) -> bool:
        """Whether mail that was deferred may come again."""
        return bool(self._deferred or self._found_deferred)

    @property
    def has_sums(self) -> bool:
        """Whether refusals wait for their rows."""
        return bool(self._sums)

    # Called by the event loop

    def note(self, record: Record) -> None:
        """A mail is finished. Its content can still be read."""
        now = time.time()
        if record.at and not self._has_room_for_refusal(now):
            self._sum_record(record, now)
            return
        if self._added - self._removed >= self._settings.max_waiting:
            self._count("overflow", 1)
            return
        recipients = len(record.tx.envelope.recipients)
        self._added += 1 if recipients <= RECIPIENTS_PER_WEIGHT else memory_weight(recipients)
        self._waiting.append((now, record, self._attempt(record, now)))

    def note_refusal(self, listener: str, refusal: RefusedClient) -> None:
        """A client was refused before there was a mail: at the connection, or at MAIL because of saturation.

        In a storm, this is called more often than anything else: a client that already shares a row is only counted.
        """
        stage, client, rule = refusal.stage, refusal.client, refusal.rule
        with self._sums_lock:
            sums = self._sums
            known = sums.get((listener, stage, client, None, rule)) or sums.get((listener, stage, _OTHERS, None, rule))
            if known is None:
                now = time.time()
                sender = refusal.sender if self._has_room_for_refusal(now) else None
                known = self._refusals_of((listener, stage, client, sender, rule), now, refusal)
            known.count += 1

    def note_late_answer(self, mail_id: str, recipients: Sequence[str], reply: Reply) -> None:
        """The next hop has answered for a mail whose client had gone away."""
        if len(self._later) >= self._settings.max_waiting:
            self._count("overflow", 1)
            return
        redaction = self._settings.redaction.of_mail("", recipients)
        text = f"to {', '.join(map(redaction.address, recipients))}: {redaction.text(str(reply))[:MAX_TEXT]}"
        event = ACCEPTED_LATE if reply.is_success else REFUSED_LATE
        self._later.append(LaterEvent(time.time(), mail_id, event, "", text))

    def _refusals_of(self, key: _SumKey, now: float, refusal: RefusedClient) -> _Refusals:
        """The refusals that this one shares a row with; in a new row if there are none."""
        listener, stage, _, _, rule = key
        if key not in self._sums and len(self._sums) >= MAX_SUMS:
            key = (listener, stage, _OTHERS, None, rule)
        if key not in self._sums:
            self._sums[key] = _Refusals(*self._row_of_refusal(now, listener, refusal))
        return self._sums[key]

    def _row_of_refusal(self, now: float, listener: str, refusal: RefusedClient) -> tuple[Kind, Row]:
        reply, redaction = refusal.reply, self._settings.redaction
        action = Action.TEMPFAIL if reply is not None and reply.is_temporary else Action.REJECT
        done = CANCELLED if refusal.rule == rule_names.CLIENT_GONE else action.value
        return (
            _NO_KIND._replace(listener=listener, stage=refusal.stage, action=done, rule=refusal.rule),
            _NO_ROW._replace(
                at=now,
                id=new_id(),
                client=refusal.client or "",
                sender=redaction.address(refusal.sender),
                more='{"stopped": true}' if refusal.is_stopped else None,
                reply="" if reply is None else redaction.text(str(reply)),
            ),
        )

    def _has_room_for_refusal(self, now: float) -> bool:
        second = int(now)
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        return self._refusals <= MAX_REFUSALS_PER_S

    def _sum_record(self, record: Record, now: float) -> None:
        session, outcome = record.tx.session, record.outcome
        listener, client, reply = session.listener, session.client.address, None if outcome is None else outcome.reply
        refusal = RefusedClient(record.at, client, record.tx.envelope.sender, "", record.rule, reply)
        with self._sums_lock:
            self._refusals_of((listener, record.at, client, None, record.rule), now, refusal).count += 1

    def _attempt(self, record: Record, now: float) -> str:
        """The key that joins the attempts with one mail; "" if this is the only one so far."""
        if self._found_deferred:
            found, self._found_deferred = self._found_deferred, {}
            for mark, at in found.items():
                if mark not in self._deferred:
                    self._remember(mark, at)
        outcome = record.outcome
        will_come_again = outcome is None or outcome.action is _TEMPFAIL
        if record.at or not (will_come_again or self._deferred):
            return ""
        mark = (record.tx.envelope.sender, record.message_id)
        if will_come_again:
            self._remember(mark, now)
        elif mark not in self._deferred:
            return ""
        return attempt_key(record.tx.envelope.sender, record.tx.message)

    def _remember(self, mark: tuple[str, str], now: float) -> None:
        self._deferred.pop(mark, None)
        self._deferred[mark] = now
        if len(self._deferred) > MAX_DEFERRED:
            del self._deferred[next(iter(self._deferred))]

    # The thread

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(self._settings.batch_s if not self._problem else self._settings.retry_s)
            self._step()
        self._step()
        with suppress(HistoryError):
            self._store.close()

    def _step(self) -> None:
        try:
            self._take()
            self._write()
            self._write_later()
            self._look_for_deferred()
            self._keep_house()
        except Exception:  # the next batch may do better
            log.exception("history: unexpected error")

    def _take(self) -> None:
        waiting, redaction = self._waiting, self._settings.redaction
        while waiting:
            at, record, attempt = waiting[0]
            try:
                rows = rows_of(record, at, attempt, redaction)
                if len(rows) > 1:  # `_written` adds their weights, which together may be more
                    self._removed += memory_weight(len(record.tx.envelope.recipients)) - sum(map(_weight, rows))
                self._rows += rows
            except Exception:  # one mail must not stop the history of all others
                log.exception("history: no entry could be created for mail %s", record.tx.id)
                self._count("failed", 1)
                self._removed += memory_weight(len(record.tx.envelope.recipients))
            waiting.popleft()
        if self._sums:
            with self._sums_lock:
                sums, self._sums = self._sums, {}
            for key, refusals in sums.items():
                self._take_sum(key, refusals)

    def _take_sum(self, key: _SumKey, refusals: _Refusals) -> None:
        if len(self._rows) >= self._settings.max_waiting:
            self._count("failed", refusals.count)
            return
        self._count("summed", refusals.count - 1)
        self._removed -= 1  # `_written` adds it again
        row = refusals.row
        if refusals.count > 1:
            _, _, client, sender, _ = key
            row = row._replace(
                mails=refusals.count,
                client="" if client == _OTHERS else row.client,
                sender="" if sender is None else row.sender,
            )
        self._rows.append((refusals.kind, row))

    def _write(self) -> None:
        while self._rows:
            batch = self._rows[:_BATCH_ROWS]
            try:
                self._append(batch)
            except HistoryError as exc:
                if str(exc) != self._problem:
                    log.warning("history: mails cannot be recorded: %s", exc)
                self._problem = str(exc)
                self._write_apart(batch[:_TRIED_APART])
                return
            self._written(len(batch), len(batch))
        if self._problem:
            log.info("history: recording has resumed")
            self._problem = ""

    def _write_later(self) -> None:
        events = list(self._later)
        if not events or self._problem:
            return
        try:
            self._store.note(events)
        except HistoryError as exc:
            log.warning("history: late answers of next hops cannot be recorded: %s", exc)
            return
        for _ in events:
            self._later.popleft()

    def _append(self, rows: list[tuple[Kind, Row]]) -> None:
        """Raises HistoryError, whatever goes wrong: a row that cannot be written must not stop all those after it."""
        try:
            self._store.append(rows)
        except HistoryError:
            raise
        except Exception as exc:
            log.exception("history: unexpected error")
            raise HistoryError(f"unexpected error: {type(exc).__name__}") from exc

    def _write_apart(self, rows: list[tuple[Kind, Row]]) -> None:
        """Leave out and count a mail that the database keeps refusing; if it refuses all mail, the database has failed.

        The database may fail or come back between two of these rows, so what it refuses is tried again later.
        """
        refused: list[tuple[Kind, Row]] = []
        for number, row in enumerate(rows):
            try:
                self._append([row])
            except HistoryError as exc:
                refused.append(row)
                if len(refused) == number + 1 and number >= 2 and row[1].id not in self._refused:
                    return  # nothing was written yet
                log.debug("history: %s", exc)
        if len(refused) == len(rows) and not all(row.id in self._refused for _, row in refused):
            return
        self._refused.update(row.id for _, row in refused)
        hopeless = [row.id for _, row in refused if self._refused[row.id] >= _TRIED_TIMES]
        for mail_id in hopeless:
            log.warning("history: mail %s cannot be recorded", mail_id)
            del self._refused[mail_id]
        self._count("failed", len(hopeless))
        again = [row for row in refused if row[1].id not in hopeless]
        self._rows[: len(rows)] = [row for row in rows if row not in again] + again
        self._written(len(rows) - len(again), len(rows) - len(refused))

    def _written(self, taken: int, written: int) -> None:
        self._removed += sum(map(_weight, self._rows[:taken]))
        del self._rows[:taken]
        self._count("written", written)

    def _look_for_deferred(self) -> None:
        """Mail that another process, or this one before a restart, has deferred may come to us."""
        now = time.time()
        if self._settings.redaction is not FULL or now - self._looked_until < 60:  # pseudonyms cannot be compared
            return
        since = max(self._looked_until, now - DEFERRED_S)
        self._looked_until = now
        query = HistoryQuery(action=Action.TEMPFAIL.value, since=since - 5, limit=MAX_DEFERRED)
        try:
            found = self._store.find(query)
        except HistoryError:
            return
        self._found_deferred = {
            (entry.row.sender, entry.row.message_id): entry.row.at for entry in found if entry.row.attempt
        }

    def _keep_house(self) -> None:
        now = time.monotonic()
        if self._upkeep_at and now - self._upkeep_at < UPKEEP_S:
            return
        self._upkeep_at = now
        try:
            self._store.settle()
            if not self._settings.is_keeper():
                return
            old, early = self._store.maintain(self._oldest(), self._settings.max_size)
            self.size = self._store.size()
        except HistoryError as exc:
            log.warning("history: old entries cannot be deleted: %s", exc)
            return
        self._count("deleted", old)
        self._count("deleted_early", early)
        if early:
            log.warning(
                "history: history.max_size has been reached; "
                "the oldest entries were deleted before history.retention had passed"
            )
        elif old:
            log.info("history: deleted entries older than history.retention")

    def _oldest(self) -> float:
        """Older entries are deleted: none while the clock is in doubt."""
        oldest = self._settings.clock() - self._settings.retention_s
        try:
            self._guard.check((), oldest)
        except ClockInDoubt as exc:
            if str(exc) != self._doubt:
                self._doubt = str(exc)
                log.error("history: %s", exc)
            return 0.0
        return oldest


def _weight(row: tuple[Kind, Row]) -> int:
    return 1 + row[1].recipients.count("\n") // RECIPIENTS_PER_WEIGHT
