"""Programs that run on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_SOON_S = 60.0


def on_terminal(
    command: Sequence[str], environment: Mapping[str, str], columns: int = 80, answer: str = ""
) -> tuple[int, str]:
    """The exit code and all that the command writes. `answer`: to its question."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    given = {name: value for name, value in environment.items() if name != "COLUMNS"}
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=given) as running:
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
    return running.returncode, output.decode().replace("\r\n", "\n")
