"""A scan for SMTP smuggling: tries every false end-of-data sequence and records how a server treats it.

A sequence is a line end, a dot and a line end, each in a form that some server has accepted as the real one:
CR or LF alone, doubled, in the wrong order, with a NUL in it. A second mail follows it, inside the content
of the first. Where two servers read such a sequence differently, the second mail becomes a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from bridge.testing import SmtpClient

LINE_ENDS = (
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\r",
    b"\n\n",
    b"\r\r",
    b"\r\r\n",
    b"\r\n\0",
    b"\0\r\n",
    b"\r\0\n",
    b"\r\n\n",
    b"\r\n\r",
)
DOTS = (b".", b"\0.", b".\0", b" .")
END = b"\r\n.\r\n"


def _sequences() -> tuple[bytes, ...]:
    every = (before + dot + after for before, dot, after in product(LINE_ENDS, DOTS, LINE_ENDS))
    clean = b"\r\n .\r\n"  # a line of a space and a dot: valid content
    return tuple(sorted({sequence for sequence in every if END not in sequence and sequence != clean}))


SEQUENCES = _sequences()


@dataclass(frozen=True)
class Seen:
    """The result of one sequence: the replies after 354, and whether the session stayed in step."""

    sequence: bytes
    replies: tuple[bytes, ...]

    @property
    def refused(self) -> bool:
        """One mail, permanently refused, and no command of the inner mail was run."""
        return len(self.replies) == 2 and self.replies[0].startswith(b"550 5.5.2 ") and self.replies[1][:3] == b"221"


def scan(connect: Callable[[], SmtpClient], domain: bytes, sequences: tuple[bytes, ...] = SEQUENCES) -> list[Seen]:
    """Tries each sequence; the second mail is addressed to `smuggled@domain`."""
    return [_try(connect, domain, sequence) for sequence in sequences]


def _try(connect: Callable[[], SmtpClient], domain: bytes, sequence: bytes) -> Seen:
    inner = b"MAIL FROM:<evil@client.example>\r\nRCPT TO:<smuggled@%b>\r\nDATA\r\nSubject: second\r\n\r\nx" % domain
    with connect() as client:
        client.open()
        assert client.begin(recipient=b"<carrier@%b>" % domain).startswith(b"354 ")
        client.send(b"Subject: first\r\n\r\nSTART" + sequence + inner + END + b"QUIT\r\n")
        replies = []
        while reply := client.reply():
            replies.append(reply)
    return Seen(sequence, tuple(replies))
