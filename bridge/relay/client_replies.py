"""What our client is told when the next hop refuses a mail or cannot be used.

The next hop's answer becomes ours, but some replies may not reach a client unchanged. These become a 451:

- a 421 or 521, which would make the client disconnect because of a problem with this mail alone;
- a refusal of our connection because it is not encrypted or not authenticated, such as a 530: the mail is not to
  blame, and with opportunistic TLS a single failed handshake is enough to cause it;
- a success that answers no command, which must never look like success.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.mail.reply import Reply

UNREACHABLE = Reply(451, "4.4.1", "The next mail server cannot be reached, try again later")
LOST = Reply(451, "4.4.2", "The next mail server did not answer, try again later")
LATE = Reply(451, "4.4.7", "The mail could not be passed on in time, try again later")
UNTRUSTED = Reply(451, "4.7.5", "No trusted connection to the next mail server, try again later")
OUT_OF_PLACE = Reply(451, "4.5.0", "The next mail server gave an unexpected answer, try again later")
NOT_CLEAN = Reply(550, "5.6.0", "A CR, LF or NUL outside a line end cannot be passed on")
CLOSING = Reply(451, "4.3.2", "Shutting down, try again later")

_DISCONNECTS = frozenset({421, 521})
# RFC 3207 4, RFC 4954 6: encryption or authentication required, as a code or as an enhanced status.
_ABOUT_US, _STATUS_ABOUT_US = frozenset({530, 538}), frozenset({"5.7.10", "5.7.11"})


def passed_on(refusal: Reply) -> Reply:
    """The reply that our client receives if the next hop answers `refusal`."""
    if refusal.code < 400:
        return OUT_OF_PLACE
    is_about_us = refusal.code in _ABOUT_US or refusal.status in _STATUS_ABOUT_US
    if is_about_us or refusal.code in _DISCONNECTS:
        return replace(refusal, code=451, status="4" + refusal.status[1:] if refusal.status else "")
    return refusal
