"""Commands of ours that a page runs: `check` and `reload`, as an operator would type them, one at a time.

The commands themselves are run, because a second implementation would differ some day. Nothing from a request becomes
an argument.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.console.checks import Refused

_MAX_OUTPUT = 256 * 1024
_NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int
    output: str
    errors: str


@dataclass(slots=True)
class Commands:
    _running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def run(self, command: Sequence[str], limit_s: float) -> CommandResult:
        """Raises Refused if it is already running, cannot be started, or takes too long."""
        if self._running.locked():
            raise Refused(409, "Already running", "Someone else has just started this. Try again in a moment.", 5)
        async with self._running:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
                )
            except OSError as exc:
                raise Refused(503, "Cannot be started", f"The command cannot be started: {exc.strerror}.") from exc
            try:
                async with asyncio.timeout(limit_s):
                    output, errors = await process.communicate()
            except TimeoutError:
                raise Refused(504, "No result", f"There was no result within {limit_s:.0f} seconds.") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return CommandResult(process.returncode or 0, _text(output), _text(errors))


def _text(output: bytes) -> str:
    return output[:_MAX_OUTPUT].decode("utf-8", "replace")
