"""Custom analyzers for the tests: correct ones, and ones that fail in every possible way."""

import asyncio
import ctypes
import os
import subprocess
import sys

from bridge.service.analysis.engine import Findings, LimitReached


class Sync:
    def __init__(self, options):
        self.word = options["word"].encode()

    def analyze(self, mail):
        return Findings(frozenset({"own:word"}), 9.0) if self.word in b"".join(mail.chunks()) else Findings()


class Broken:
    def __init__(self, options):
        pass

    async def analyze(self, mail):
        return "nothing"


class Obedient:
    """Calls the method that the mail names."""

    def __init__(self, options):
        pass

    def analyze(self, mail):
        content = b"".join(mail.chunks())
        assert len(content) == mail.size
        return getattr(self, content.split()[-1].decode())(mail)

    def nothing(self, mail):
        return Findings()

    def process(self, mail):
        return Findings(frozenset({f"process:{os.getpid()}"}))

    def envelope(self, mail):
        border = mail.request.border
        return Findings(
            frozenset(
                {f"to:{to}" for to in border.envelope_recipients}
                | {
                    f"from:{border.envelope_from}",
                    f"client:{border.remote_address}",
                    f"tenant:{mail.request.tenant_uid}",
                }
            )
        )

    def eat(self, mail):
        eaten = []
        while True:
            eaten.append(bytearray(1 << 20))

    def hang(self, mail):
        # A child process that would outlive its parent.
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "a-child-of-hang"])
        while True:
            pass

    def leave(self, mail):
        os._exit(0)

    def crash(self, mail):
        ctypes.string_at(0)

    def fail(self, mail):
        raise ValueError(mail)

    def recurse(self, mail):
        return self.recurse(mail)

    def refuse(self, mail):
        raise LimitReached("not such mail")

    def lie(self, mail):
        return {"tags": []}

    def inject(self, mail):
        return Findings(frozenset({"a\nb"}))

    def infinite(self, mail):
        return Findings(score=float("nan"))


class Eats:
    def __init__(self, options):
        self.eaten = bytearray(1 << 40)

    def analyze(self, mail):
        return Findings()


class Leaves:
    def __init__(self, options):
        os._exit(0)


class Waits:
    """Asynchronous, like an analyzer that waits for the network."""

    def __init__(self, options):
        pass

    async def analyze(self, mail):
        if b"hang" in b"".join(mail.chunks()):
            await asyncio.Event().wait()
        return Findings(frozenset({f"process:{os.getpid()}"}))

    async def close(self):
        Waits.closed = True
