"""The mail that a digest lists: those of a person's new items that are still held for them.

A mail that was released, deleted or has expired is left out, and so is a copy that is kept for operators. So is a
digest: if one is held after all, for example because a server on the way changed it, no other digest lists it. None of
these takes the place of held mail in the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.digests.items import Item
from bridge.digests.signed_links import LinkKeys
from bridge.mail.address import comparable_address
from bridge.quarantine.quarantine import MailNotFound, Quarantine
from bridge.quarantine.record import RELEASED, MailRecord

MAX_GONE = 100


@dataclass(slots=True)
class Listing:
    held: list[tuple[Item, MailRecord]] = field(default_factory=list)
    more: int = 0  # also held, but not listed for lack of space


def gather(pages: Iterable[list[Item]], quarantine: Quarantine, keys: LinkKeys, limit: int) -> Listing:
    """Page by page: a person may have any number of items. Raises BridgeError."""
    found, unindexed = Listing(), Unindexed(quarantine)
    for page in pages:
        records = {record.id: record for record in quarantine.records([item.mail for item in page])}
        held_for: dict[str, frozenset[str]] = {}  # a mail may have a thousand items of one person
        for item in page:
            mail = records.get(item.mail) or unindexed.read(item.mail)
            if mail is None:
                continue
            if mail.id not in held_for:
                held_for[mail.id] = frozenset() if keys.has_made(mail.unsubscribe) else recipients_of(mail)
            if item.recipient not in held_for[mail.id]:
                continue
            if len(found.held) < limit:
                found.held.append((item, mail))
            else:
                found.more += 1
    return found


def is_held_for(recipient: str, mail: MailRecord) -> bool:
    return recipient in recipients_of(mail)


def recipients_of(mail: MailRecord) -> frozenset[str]:
    """Those who do not have it yet, in the form that is compared; none if the mail is not held."""
    if mail.state == RELEASED or mail.is_copy:
        return frozenset()
    return frozenset(comparable_address(each.address) for each in mail.lacking(mail.envelope.recipients))


@dataclass(slots=True)
class Unindexed:
    """Mail that is not in the index: the index may be incomplete for a while, and mail left out of a digest is never
    announced. But after many that are not in the store either, the rest is assumed to be deleted, too: each is a
    request to object storage, and a person may have had thousands."""

    quarantine: Quarantine
    gone: int = 0  # one after another

    def read(self, mail: str) -> MailRecord | None:
        if self.gone >= MAX_GONE:
            return None
        try:
            found = self.quarantine.read(mail)
        except MailNotFound:
            self.gone += 1
            return None
        self.gone = 0
        return found
