"""The door: what lists say of a mail before its content travels.

Pure look-ups in local copies, no I/O, some microseconds each. Lists of the deployment are asked at
MAIL; a tenant is known at RCPT, and so are its lists. A blocked match wins over an allowed one, unless
the operator says otherwise. What breaks if this is wrong: wanted mail refused for good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from bridge.mail.envelope import Envelope
from bridge.mail.listed import ListAction, Listed
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.matching.match import NETWORK, address, find_address, find_network
from bridge.matching.table import Table

NO_COPY = Reply(451, "4.3.0", "The lists of this server are not available yet, try again later")


class Copy(Protocol):
    """The local copy of one list."""

    @property
    def table(self) -> Table: ...


Copies = Callable[[str, str | None], Copy | None]  # by name and tenant; None: there is none yet


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """What one listener enforces."""

    block: tuple[str, ...] = ()
    block_recipients: tuple[str, ...] = ()
    skip_scan: tuple[str, ...] = ()
    allow_wins: bool = False
    needs_copies: bool = False  # without one: tempfail
    text: str = "Refused by the lists of this server"


class Door:
    """The lists of one listener."""

    def __init__(self, settings: DoorSettings, copies: Copies) -> None:
        self._settings = settings
        self._copies = copies
        self.refusal = Reply(550, "5.7.1", settings.text)

    def blocked(self, session: Session, sender: str, tenant: str | None) -> Listed | None:
        """The sender or the client is on a blocking list of this one scope: the deployment's, or a tenant's."""
        settings = self._settings
        found = self._find(settings.block, (tenant,), sender, session.client.address)
        if found is None or not settings.allow_wins:
            return found
        return None if self.allowed(session, sender, tenant) else found

    def blocked_recipient(self, recipient: str, tenant: str | None) -> Listed | None:
        """The recipient is on such a list, of the deployment or of its tenant."""
        return self._find(self._settings.block_recipients, _scopes(tenant), recipient, None)

    def allowed(self, session: Session, sender: str, tenant: str | None) -> Listed | None:
        """This mail needs no scan.

        A mail server's own address is not its client's: one that does not tell whom it speaks for
        would have all mail go unscanned.
        """
        client = session.client.address if session.is_told else None
        found = self._find(self._settings.skip_scan, _scopes(tenant), sender, client)
        return None if found is None else replace(found, action=ListAction.SKIPPED)

    def blocks(self, session: Session, envelope: Envelope, tenants: Callable[[str], str | None]) -> Listed | None:
        """For shadow mode: what a whole envelope would have been refused for, as far as that goes."""
        found = self.blocked(session, envelope.sender, None)
        for recipient in () if found else envelope.addresses:
            tenant = tenants(recipient)
            if tenant is not None:
                found = self.blocked(session, envelope.sender, tenant)
            found = found or self.blocked_recipient(recipient, tenant)
            if found:
                break
        return None if found is None else replace(found, action=ListAction.SHADOW_REFUSED)

    def is_blind(self, tenant: str | None, *, at_recipient: bool) -> bool:
        """Whether a list that may block has no copy yet, where that must not be passed over."""
        settings = self._settings
        if not settings.needs_copies:
            return False
        wanted = [(name, tenant) for name in settings.block]
        if at_recipient:
            wanted = wanted if tenant else []
            wanted += [(name, scope) for name in settings.block_recipients for scope in _scopes(tenant)]
        return any(self._copies(*one) is None for one in wanted)

    def _find(
        self, names: tuple[str, ...], scopes: tuple[str | None, ...], text: str, client: str | None
    ) -> Listed | None:
        if not names:
            return None
        who = address(text)
        for name in names:
            for tenant in scopes:
                copy = self._copies(name, tenant)
                if copy is not None and (entry := _entry(copy.table, who, client)):
                    return Listed(name, entry, ListAction.REFUSED)
        return None


def _entry(table: Table, who: str, client: str | None) -> str | None:
    category = table.about.category
    if category != NETWORK:
        return find_address(category, table, who)
    return find_network(table.about.lengths, table.has_network, client) if client else None


def _scopes(tenant: str | None) -> tuple[str | None, ...]:
    return (None,) if tenant is None else (None, tenant)
