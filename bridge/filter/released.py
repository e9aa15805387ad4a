"""Released mail that passes the bridge once more: accepted by its token, once.

A token's codes are marked as used before the mail is handed on, and given back if it was not delivered but the mail
server will send it again: not after a 5xx, which sends the mail, and its token, back to the sender. If we crash in
between, they stay used: the mail is scanned when it comes again. If the database fails, no token is accepted. If in
doubt, we scan the mail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic, time

from bridge.filter.outcome import Outcome
from bridge.mail.transaction import Transaction
from bridge.quarantine.release_token import ReleaseTokens, Token
from bridge.quarantine.used_tokens import UsedTokens, UsedTokensFailed
from bridge.runtime import durable_files
from bridge.runtime.threads import Threads

log = logging.getLogger(__name__)

_GIVE_BACK_S = 5.0  # how long a reply may wait for a token to be given back
_threads = Threads("release-tokens")


class ReleasedMail:
    """Recognises released mail by its token."""

    def __init__(self, tokens: ReleaseTokens, used: UsedTokens) -> None:
        self._tokens = tokens
        self._used = used

    async def accept(self, tx: Transaction, head: bytes) -> Token | None:
        """The valid, unused token of this mail, which is now marked as used; None if it has none.

        A forged token costs no more than a look at the header section. The mail is read only for a token that our key
        made, in a thread and within its deadline.
        """
        token = self._tokens.find(head, tx.envelope.sender, tx.envelope.addresses, time())
        if token is None:
            return None
        taken: list[Token] = []
        try:
            is_accepted = await durable_files.in_thread(
                lambda stop: self._take(token, tx, stop, taken), tx.deadline, _threads
            )
        except asyncio.CancelledError:  # the client disconnected, and will send the mail again
            if taken:
                await self.settle(token, tx, None)
            raise
        except (UsedTokensFailed, OSError, durable_files.Stopped) as exc:
            log.warning(
                "mail %s: its release token cannot be checked (%s); scanning the mail",
                tx.id,
                str(exc) or "deadline passed",
            )
            return None
        if not is_accepted:
            log.warning(
                "mail %s: its release token was used before, or belongs to another mail; scanning the mail", tx.id
            )
        return token if is_accepted else None

    async def settle(self, token: Token, tx: Transaction, outcome: Outcome | None) -> None:
        """Give back the codes of the recipients for whom the mail will come again; without an outcome, of all."""
        codes = [token.codes[address] for address in _expected_again(tx, outcome)]
        if not codes:
            return
        try:
            await durable_files.in_thread(
                lambda stop: self._used.give_back(codes), monotonic() + _GIVE_BACK_S, _threads
            )
        except (UsedTokensFailed, OSError, durable_files.Stopped) as exc:
            why = str(exc) or "no answer in time"
            log.warning("mail %s: not delivered, but its release token remains marked as used: %s", tx.id, why)

    def _take(self, token: Token, tx: Transaction, stop: durable_files.Stop, taken: list[Token]) -> bool:
        """In a thread, so `taken` informs even a caller that was cancelled in the meantime."""
        codes, now = token.codes.values(), time()
        if self._used.has(codes) or not token.is_for(tx.message, now, stop.check):
            return False
        stop.check()
        if not self._used.take(codes, now):
            return False
        try:
            stop.confirm()
        except durable_files.Stopped:
            self._used.give_back(codes)
            raise
        taken.append(token)
        return True


def _expected_again(tx: Transaction, outcome: Outcome | None) -> Sequence[str]:
    addresses = tx.envelope.addresses
    if outcome is None:
        return addresses
    if not outcome.replies:  # one reply for all: the client sends the mail to all of them again
        return addresses if outcome.reply.is_temporary else ()
    return [address for address, reply in zip(addresses, outcome.replies, strict=True) if reply.is_temporary]
