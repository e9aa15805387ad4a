"""The mail that a digest lists: those of a person's new items that are still held for them.

A mail that was released, deleted or has expired is left out, and so is a copy that is kept for operators. So is a
digest: if one is held after all, for example because a server on the way changed it, no other digest lists it. None of
these takes the place of held mail in the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.digests.items import Item
from bridge.digests.links import LinkKeys
from bridge.mail.address import comparable_address
from bridge.quarantine.quarantine import MailNotFound, Quarantine
from bridge.quarantine.record import RELEASED, MailRecord


@dataclass(slots=True)
class Listing:
    held: list[tuple[Item, MailRecord]] = field(default_factory=list)
    more: int = 0  # also held, but not listed for lack of space


def gather(pages: Iterable[list[Item]], quarantine: Quarantine, keys: LinkKeys, limit: int) -> Listing:
    """Page by page: a person may have any number of items. Raises BridgeError."""
    found = Listing()
    for page in pages:
        records = {record.id: record for record in quarantine.records([item.mail for item in page])}
        for item in page:
            mail = records.get(item.mail) or _read(quarantine, item.mail)
            if mail is None or not is_held_for(item.recipient, mail) or keys.has_made(mail.unsubscribe):
                continue
            if len(found.held) < limit:
                found.held.append((item, mail))
            else:
                found.more += 1
    return found


def is_held_for(recipient: str, mail: MailRecord) -> bool:
    """Whether the mail is held, has this recipient, and they do not have it yet."""
    if mail.state == RELEASED or mail.is_copy:
        return False
    return any(comparable_address(each.address) == recipient for each in mail.lacking(mail.envelope.recipients))


def _read(quarantine: Quarantine, mail: str) -> MailRecord | None:
    """The index may be incomplete for a while, and mail left out of a digest is never announced."""
    try:
        return quarantine.read(mail)
    except MailNotFound:
        return None
