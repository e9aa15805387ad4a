"""An analyzer that does what a mail's X-Fault field says (`tests.faults.senders`): wait, then tag the decision.

Each decision is written to the file `seen`, one line for each analysis, so that a mail that was dropped without one is
noticed.
"""

import asyncio
import os
import re

from bridge.service.analysis.engine import Findings

WISH = re.compile(rb"^X-Fault: (\w+) ([\d.]+) (\S+)\r$", re.MULTILINE)


class Deciding:
    def __init__(self, options):
        self._seen = os.open(options["seen"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def analyze(self, mail):
        wish = WISH.search(b"".join(mail.chunks()))
        if wish is None:
            return Findings()
        decision, seconds, mail_id = (word.decode() for word in wish.groups())
        await asyncio.sleep(float(seconds))
        os.write(self._seen, f"{mail_id} {decision}\n".encode())
        return Findings(frozenset({f"wish:{decision}"}))

    async def close(self):
        os.close(self._seen)
