"""Writes log lines to standard error without ever delaying mail.

The event loop puts lines into a bounded queue and a thread writes them: a log that blocks, or a full disk,
costs lines (they are counted), never mail. Knows nothing of mail: `mail_log` gives it finished lines,
`logging` gives it all others. If this is wrong, a stopped journald stops the mail.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

from bridge.observe import log_format
from bridge.observe.log_format import JsonFormatter, KeyValueFormatter, VisibleFormatter
from bridge.observe.log_throttle import LogThrottle
from bridge.observe.redaction import FULL, Redaction

MAX_LINES = 20_000  # that wait to be written
_MAX_WRITE = 64 * 1024
_BATCH_S = 0.05
_SUMMARY_S = 1.0  # how late the count of suppressed lines may be
_CLOSE_S = 2.0
_LF = ord("\n")
_STDERR = 2  # the descriptor itself: Python sets sys.stderr to None if it was closed at startup
_INFO = 6
_SEVERITIES = {logging.DEBUG: 7, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}  # of syslog


def set_up(
    format_: str, level: str, shared: bool = False, redaction: Redaction = FULL, timestamp: bool = False
) -> LineWriter:
    """Send all log lines to standard error in one format. Libraries' own lines below warning are left out.

    When several processes share it, only short writes keep their lines whole, unless it is a file. Long
    writes are cheaper: each write makes the thread and the event loop wait for each other.
    """
    max_write = select.PIPE_BUF if shared and not _is_file(_STDERR) else _MAX_WRITE
    writer = LineWriter(_STDERR, max_write=max_write, timestamp=timestamp and format_ != "json")
    _install(writer, format_, level, redaction)
    return writer


def set_up_without_thread(format_: str, level: str, redaction: Redaction = FULL, timestamp: bool = False) -> None:
    """The same format without a thread, for a process that forks and logs little."""
    _install(DirectWriter(timestamp and format_ != "json"), format_, level, redaction)


def set_up_plain_log(redaction: Redaction = FULL, *, is_throttled: bool = False) -> None:
    """Plain lines, for the processes that handle no mail: the service and the console.

    `is_throttled`: strangers can cause lines, and no line is about one mail.
    """
    handler = DirectWriter()  # a log that blocks must not stop them, either: mail waits for the service
    if is_throttled:
        handler.addFilter(LogThrottle())
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(name)s %(message)s", redaction))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    log_format.quiet_libraries()


def _install(handler: logging.Handler, format_: str, level: str, redaction: Redaction) -> None:
    handler.setFormatter((JsonFormatter if format_ == "json" else KeyValueFormatter)(redaction))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    log_format.quiet_libraries()


class LineWriter(logging.Handler):
    """Queues lines for a thread that writes them; when it cannot keep up, lines are dropped and counted."""

    def __init__(
        self,
        fd: int,
        on_lost: Callable[[], None] = lambda: None,
        max_write: int = _MAX_WRITE,
        max_lines: int = MAX_LINES,
        timestamp: bool = False,
    ) -> None:
        super().__init__()
        self._fd = fd
        self._timestamp = timestamp
        self._max_write = max_write
        self._max_lines = max_lines
        self.on_lost = on_lost
        self.throttle = LogThrottle()
        self.addFilter(self.throttle)
        self._to_journal = is_journal(fd)
        self._is_cut = False  # the last line has no end
        self._lines: deque[str] = deque()
        self._has_lines = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Lines that are not written yet."""
        return len(self._lines)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a wrong log call must not break the code that makes it
            self.on_lost()
        else:
            self.put(line, _SEVERITIES.get(record.levelno, _INFO))

    def put(self, line: str, severity: int = _INFO) -> None:
        if len(self._lines) >= self._max_lines:
            self.on_lost()
            return
        if self._timestamp:
            line = f"time={log_format.now()} {line}"
        self._lines.append(f"<{severity}>{line}" if self._to_journal else line)
        if not self._has_lines.is_set():
            self._has_lines.set()

    def close(self) -> None:
        """Write the remaining lines; a reader that does not read gets two seconds, once."""
        if not self._is_closing:
            self._is_closing = True
            self._has_lines.set()
            self._thread.join(timeout=_CLOSE_S)
            super().close()

    def _run(self) -> None:
        while self._lines or not self._is_closing:
            self._has_lines.wait(_SUMMARY_S)
            try:
                self._write_all()
            except Exception:  # without this thread, there would be no more lines at all
                self.on_lost()
                time.sleep(_SUMMARY_S)

    def _write_all(self) -> None:
        for record in self.throttle.summaries():
            self.emit(record)
        if self._lines and not self._is_closing:
            time.sleep(_BATCH_S)  # waking up for every line would interrupt the event loop each time (the GIL)
        self._has_lines.clear()
        while self._lines:
            self._write(self._next_batch())

    def _next_batch(self) -> list[str]:
        """As many lines as fit into one write; at least one."""
        batch = [self._lines.popleft()]
        size = len(batch[0]) + 1
        while self._lines and size + len(self._lines[0]) < self._max_write:
            batch.append(self._lines.popleft())
            size += len(batch[-1]) + 1
        return batch

    def _write(self, lines: list[str]) -> None:
        view = memoryview(_encode("\n" * self._is_cut + "\n".join(lines)))
        try:
            while view:
                count = os.write(self._fd, view)
                self._is_cut = view[count - 1] != _LF
                view = view[count:]
        except OSError:  # a full disk, a closed pipe: mail continues
            for _ in lines:
                self.on_lost()


class DirectWriter(logging.Handler):
    """Writes each line immediately, or drops it, or the rest of it, if the write would block."""

    def __init__(self, timestamp: bool = False) -> None:
        super().__init__()
        self._timestamp = timestamp
        self._is_cut = False  # the last line has no end

    def emit(self, record: logging.LogRecord) -> None:
        try:
            severity = f"<{_SEVERITIES.get(record.levelno, _INFO)}>" if is_journal(_STDERR) else ""
            time_ = f"time={log_format.now()} " if self._timestamp else ""
            line = memoryview(_encode(f"{severity}{time_}{self.format(record)}"))
            if self._is_cut:
                line = memoryview(b"\n" + line)
            length = len(line)
            while line and select.select([], [_STDERR], [], 0)[1]:
                # A pipe that is ready takes this much at once.
                line = line[os.write(_STDERR, line[: select.PIPE_BUF]) :]
            if len(line) < length:
                self._is_cut = bool(line)
        except (OSError, ValueError):
            pass


def _encode(text: str) -> bytes:
    return f"{text}\n".encode("utf-8", "backslashreplace")


def is_journal(fd: int) -> bool:
    """Whether journald reads this. Then each line starts with its severity, which journald removes."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _is_file(fd: int) -> bool:
    """Whether writes of any length stay whole: the kernel lets one process at a time write to a file."""
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False
