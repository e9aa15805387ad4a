"""What users do to their own mail: the same release and deletion as an operator's, in the user's name."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from bridge.cli.quarantine.releasing import release_one
from bridge.cli.quarantine.session import Session
from bridge.daemon import wiring
from bridge.errors import BridgeError, ConfigError
from bridge.quarantine.record import MailRecord
from bridge.quarantine.release import AlreadyReleased, ReleaseRequest
from bridge.user_pages.actions import ActionResult

_WAIT_S = 30.0  # while the same mail is released to somebody else


@dataclass(frozen=True, slots=True)
class CommandUserActions:
    session: Session

    def release(self, mail: MailRecord, to: tuple[str, ...], by: str) -> ActionResult:
        session = replace(self.session, operator=f"user {by}")
        tokens = wiring.release_tokens(session.config, session.state)
        order = ReleaseRequest(session.by, to=to, tokens=tokens, wait_s=_WAIT_S)

        async def work() -> ActionResult:
            relay = wiring.relay(session.config)
            if relay is None:
                raise ConfigError("no next hop is configured: set relay.next_hop")
            try:
                done = await release_one(session, mail, relay, order)
            finally:
                await relay.close()
            was_before = isinstance(done.problem, AlreadyReleased)
            return ActionResult(done.problem is None, done.text, not done.is_unsure, was_before)

        return asyncio.run(work())

    def delete(self, mail: MailRecord, by: str) -> ActionResult:
        session = replace(self.session, operator=f"user {by}")
        try:
            session.quarantine.remove(mail.id)
        except BridgeError as exc:
            return ActionResult(False, f"not deleted: {exc}")
        session.note_removal(mail, is_purge=False)
        return ActionResult(True, "deleted")
