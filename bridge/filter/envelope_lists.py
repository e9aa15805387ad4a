"""Envelope lists: what the operator's lists say about a mail before its content is sent.

Look-ups in local copies, no I/O, a few microseconds each. All of them are made at RCPT, including those about the
sender: the tenant is known only then, and so is the recipient, by whom operators look for a refused mail in the
log. A blocking match wins over an allowing one, unless the operator says otherwise. If this is wrong, wanted mail
is refused permanently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from bridge.mail.envelope import Envelope
from bridge.mail.list_match import ListAction, ListMatch
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.matching.match import NETWORK, address, find_address, find_network, recipient_spellings
from bridge.matching.table import Table

NO_COPY = Reply(451, "4.3.0", "The lists of this server are not available yet, try again later")


class Copy(Protocol):
    """The local copy of one list."""

    @property
    def table(self) -> Table: ...


Copies = Callable[[str, str | None], Copy | None]  # by name and tenant; None: not fetched yet
TenantOf = Callable[[str], str | None]  # by address


def _sender_spelling(sender: str) -> tuple[str, ...]:
    return (address(sender),)


@dataclass(frozen=True, slots=True)
class EnvelopeListsSettings:
    """What one listener enforces."""

    block: tuple[str, ...] = ()
    block_recipients: tuple[str, ...] = ()
    skip_scan: tuple[str, ...] = ()
    allow_wins: bool = False
    needs_copies: bool = False  # tempfail while a copy is missing
    text: str = "Refused by the lists of this server"


class EnvelopeLists:
    """The lists of one listener."""

    def __init__(self, settings: EnvelopeListsSettings, copies: Copies) -> None:
        self._settings = settings
        self._copies = copies
        self.block_recipients = bool(settings.block_recipients)
        self.refusal = Reply(550, "5.7.1", settings.text)

    def match_at_rcpt(self, session: Session, sender: str, recipient: str, tenant: str | None) -> ListMatch | None:
        """What this recipient is refused for at RCPT: its sender, its client, or the recipient itself."""
        found = None if session.in_header else self._blocked_by_any(session, sender, tenant)  # else see match_mail
        return found or self.blocked_recipient(recipient, tenant)

    def match_mail(self, session: Session, sender: str, tenant: str | None) -> ListMatch | None:
        """For a complete mail: whether it needs no scan.

        If the client is named in the mail's header, it was unknown until now; so blocking lists are checked as well.
        """
        found = self._blocked_by_any(session, sender, tenant) if session.in_header else None
        return found or self.allowed(session, sender, tenant)

    def match_in_shadow(
        self, session: Session, envelope: Envelope, tenant: str | None, tenant_of: TenantOf
    ) -> ListMatch | None:
        """For a complete mail in shadow mode: what would have happened to it."""
        found = self._would_block(session, envelope, tenant_of)
        if found is not None:
            return replace(found, action=ListAction.SHADOW_REFUSED)
        found = self.allowed(session, envelope.sender, tenant)
        return None if found is None else replace(found, action=ListAction.SHADOW_SKIPPED)

    def _would_block(self, session: Session, envelope: Envelope, tenant_of: TenantOf) -> ListMatch | None:
        """The first match among all checks that RCPT would have made."""
        found = self.blocked(session, envelope.sender, None)
        for recipient in () if found else envelope.addresses:
            tenant = tenant_of(recipient)
            if tenant is not None:
                found = self.blocked(session, envelope.sender, tenant)
            found = found or self.blocked_recipient(recipient, tenant)
            if found:
                break
        return found

    def _blocked_by_any(self, session: Session, sender: str, tenant: str | None) -> ListMatch | None:
        """By a list of the deployment, else by one of the tenant."""
        found = self.blocked(session, sender, None)
        return self.blocked(session, sender, tenant) if found is None and tenant is not None else found

    def blocked(self, session: Session, sender: str, tenant: str | None) -> ListMatch | None:
        """The sender or client is on a blocking list of this scope: the deployment's, or the tenant's."""
        settings = self._settings
        found = self._find(settings.block, (tenant,), sender, session.client.address)
        if found is None or not settings.allow_wins:
            return found
        return None if self.allowed(session, sender, tenant) else found

    def blocked_recipient(self, recipient: str, tenant: str | None) -> ListMatch | None:
        """The recipient is on a blocking list of the deployment or of its tenant."""
        return self._find(self._settings.block_recipients, _scopes(tenant), recipient, None, recipient_spellings)

    def allowed(self, session: Session, sender: str, tenant: str | None) -> ListMatch | None:
        """The sender or client is on a list of mail that needs no scan.

        The address of a mail server that names no client, on such a list, would let all its mail pass unscanned.
        """
        found = self._find(self._settings.skip_scan, _scopes(tenant), sender, _named_client(session))
        return None if found is None else replace(found, action=ListAction.SKIPPED)

    def lacks_copy(self, tenant: str | None) -> bool:
        """Whether a blocking list has no local copy yet and the operator wants a tempfail in that case."""
        settings = self._settings
        if not settings.needs_copies:
            return False
        needed = [(name, scope) for name in settings.block + settings.block_recipients for scope in _scopes(tenant)]
        return any(self._copies(name, scope) is None for name, scope in needed)

    def unchecked(self, tenant: str | None) -> tuple[str, ...]:
        """The enforced lists that have no local copy yet, so that nothing in them can match."""
        settings = self._settings
        names = dict.fromkeys(settings.block + settings.block_recipients + settings.skip_scan)
        scopes = _scopes(tenant)
        return tuple([name for name in names if any(self._copies(name, scope) is None for scope in scopes)])

    def _find(
        self,
        names: tuple[str, ...],
        scopes: tuple[str | None, ...],
        text: str,
        client: str | None,
        spell: Callable[[str], tuple[str, ...]] = _sender_spelling,
    ) -> ListMatch | None:
        if not names:
            return None
        spellings = spell(text)
        for name, tenant in product(names, scopes):
            copy = self._copies(name, tenant)
            found = () if copy is None else (_matching_entry(copy.table, spelling, client) for spelling in spellings)
            if entry := next(filter(None, found), None):
                return ListMatch(name, entry, ListAction.REFUSED)
        return None


def _named_client(session: Session) -> str | None:
    """The address that the scanner gets, too: never that of our own mail server."""
    return session.named_client.address


def _matching_entry(table: Table, normalised: str, client: str | None) -> str | None:
    category = table.about.category
    if category != NETWORK:
        return find_address(category, table, normalised)
    return find_network(table.about.lengths, table.has_network, client) if client else None


def _scopes(tenant: str | None) -> tuple[str | None, ...]:
    """The deployment (None), and the tenant if there is one."""
    return (None,) if tenant is None else (None, tenant)
