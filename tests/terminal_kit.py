"""Our commands on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.warm_commands import can_be_warm, warm_commands

_SOON_S = 90.0


def on_terminal(
    words: Sequence[str], environment: Mapping[str, str], columns: int = 80, answer: str = ""
) -> tuple[int, str]:
    """The exit code of `scanbridge WORDS`, and all that it writes. `answer`: to its question."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in environment.items() if name != "COLUMNS"}
    if can_be_warm(env):
        started = warm_commands(os.getpid()).start(list(words), env, Path.cwd(), slave, slave, standard_input=slave)
    else:
        command = [sys.executable, "-m", "bridge", *words]
        started = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    output = b""
    while select.select([master], [], [], _SOON_S)[0]:
        try:
            output += os.read(master, 65536)
        except OSError:  # EIO: the command has ended
            break
        if answer and b"[y/N]" in output:
            os.write(master, answer.encode() + b"\n")
            answer = ""
    os.close(master)
    return started.wait(_SOON_S), output.decode().replace("\r\n", "\n")
