"""NextHopError: the mail was not handed on, and this is what the client receives.

It belongs to the tree in `bridge/errors.py`, which cannot define it: it carries a `Reply`. Relay and
quarantine raise and catch it without knowing each other.
"""

from __future__ import annotations

import asyncio

from bridge.errors import BridgeError, FailureLabel
from bridge.mail.reply import Reply


class NextHopError(BridgeError):
    """The mail was not handed on; `reply.is_foreign` says whether the reply is in the next hop's words or in ours."""

    label = FailureLabel.NEXT_HOP

    replies: tuple[Reply, ...] = ()  # one per recipient, if they differ: some may have the mail
    unsure: frozenset[int] = frozenset()  # recipients, by position: the whole mail was sent, but no answer came

    def __init__(self, reply: Reply, text: str = "", *, is_about_recipient: bool = False) -> None:
        super().__init__(text or str(reply))
        self.reply = reply
        self.is_about_recipient = is_about_recipient  # refused for its address, not for its sender or content

    @property
    def may_be_delivered(self) -> bool:
        """Whether some recipients may have the mail although the next hop did not say so."""
        return bool(self.unsure)


class Interrupted(asyncio.CancelledError):
    """The relay was cancelled when it could no longer take the mail back from every recipient."""

    def __init__(self, unsure: frozenset[int], accepted: frozenset[int] = frozenset()) -> None:
        super().__init__()
        self.unsure = unsure  # recipients, by position: as in `NextHopError`
        self.accepted = accepted  # those for whom a next hop has accepted it
