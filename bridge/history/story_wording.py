"""How the sentences of a mail's story name recipients, times and lists of things."""

from __future__ import annotations

from collections.abc import Sequence

from bridge.history.entry import MailEntry

SERVER_IN_FRONT = "the mail server in front of the bridge"
AT_STAGE = {"connect": "when it connected", "mail": "at MAIL", "rcpt": "at RCPT", "data": "at DATA"}
_MAX_NAMED = 5  # recipients that are named


def number_of_times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def in_brackets(address: str) -> str:
    return f"<{address}>"


def named_recipients(recipients: Sequence[str]) -> str:
    named = ", ".join(map(in_brackets, recipients[:_MAX_NAMED]))
    more = len(recipients) - _MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named


def recipients_of(entry: MailEntry) -> str:
    return named_recipients(entry.recipients) or "unknown recipients"


def joined(texts: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b, and c`."""
    known = [text for text in texts if text]
    if len(known) < 3:
        return " and ".join(known)
    return f"{', '.join(known[:-1])}, and {known[-1]}"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text.startswith("the ") else text


def readable_duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
