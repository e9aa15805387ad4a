"""The console beside the embedded default of `scanbridge run`: a separate process that ends with the daemon.

It creates its own sign-in link, so that no part of the console runs in the daemon's process, and no token is in `ps`.
If it cannot start, it says why, and mail is not affected.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STOP_S = 10.0


class Beside:
    """Started once the daemon accepts mail."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "bridge.cli.console.beside"]
        with suppress(OSError):
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603

    def stop(self) -> None:
        """It exits when its standard input is closed."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """The process itself."""
    from bridge.cli import terminal
    from bridge.cli.console.command import run_console

    terminal.set_up()
    run_console(None, beside=True)


@contextmanager
def console_beside() -> Iterator[Beside]:
    beside = Beside()
    try:
        yield beside
    finally:
        beside.stop()


if __name__ == "__main__":
    main()
