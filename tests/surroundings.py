"""What a test run must not inherit from the shell, terminal, service or network in which it was started.

Programs that tests start inherit the environment and the ignored signals. `tests/conftest.py` calls this first.
"""

from __future__ import annotations

import os
import resource
import signal

# They change what our own programs do: where they look for files, whom they notify, how wide and colourful they write.
OURS = [
    "SCANBRIDGE_CONFIG",
    "STATE_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "XDG_STATE_HOME",
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "JOURNAL_STREAM",
    "INVOCATION_ID",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "PYTHONWARNINGS",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
]


def forget_the_surroundings() -> None:
    for name in OURS:
        os.environ.pop(name, None)
    for name in ("NO_PROXY", "no_proxy"):  # a proxy is for package indexes; our servers are on this machine
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a shell's 1024 makes `scanbridge check` print a warning
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does this to programs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
