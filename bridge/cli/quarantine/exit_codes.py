"""The exit code of a `scanbridge quarantine` command; with several mails, the most serious one counts.

0 done, 1 failed (needs attention), 75 failed for now (run it again later), 4 another process has released it or is
working on it, 3 no such mail, 78 configuration; for lists also 77 the service refuses the key. 2 wrong arguments, or
not confirmed. 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from bridge.cli.terminal import EXIT_INTERRUPTED, say
from bridge.errors import BridgeError
from bridge.mail.next_hop import NextHopError
from bridge.quarantine.quarantine import MailLocked, MailNotFound
from bridge.quarantine.release import AlreadyReleased, NotRecorded, ReleaseUncertain
from bridge.quarantine.store import LockLost

EXIT_FAILED, EXIT_UNCONFIRMED, EXIT_UNKNOWN, EXIT_TAKEN, EXIT_LATER = 1, 2, 3, 4, 75
_MOST_SERIOUS_FIRST = (EXIT_INTERRUPTED, EXIT_FAILED, 78, 77, 65, EXIT_LATER, EXIT_TAKEN, EXIT_UNKNOWN, 0)


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    say(text, err=True)
    sys.exit(code)


def exit_code(exc: BridgeError) -> int:
    match exc:
        case MailNotFound():
            return EXIT_UNKNOWN
        case MailLocked() | AlreadyReleased():
            return EXIT_TAKEN
        case LockLost() | ReleaseUncertain() | NotRecorded():
            return EXIT_LATER
        case NextHopError() if exc.reply.is_temporary:
            return EXIT_LATER
        case _:
            return EXIT_FAILED


def most_serious(codes: list[int]) -> int:
    return min(codes, key=_MOST_SERIOUS_FIRST.index, default=0)
