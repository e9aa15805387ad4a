"""What quarantined mails have in common: the reasons why they are held, their senders and the senders' domains.

People review groups first and single mails last. A group has at least two mails, and is named by the id of its newest
one, so that a link to it has no address in it. Knows records only; which mails are looked at is the page's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bridge.mail.address import domain_of
from bridge.quarantine.record import MailRecord
from bridge.quarantine.worst_tags_first import worst_first

MAX_SHOWN = 25


@dataclass(slots=True)
class Group:
    name: str
    newest: MailRecord
    mails: int = 0
    senders: set[str] = field(default_factory=set)
    recipients: set[str] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Groups:
    """The largest first."""

    reasons: list[Group]  # by the worst tag; mail without tags is in no group
    domains: list[Group]  # of several senders
    senders: list[Group]


def group(mails: Sequence[MailRecord], scores: Mapping[str, float]) -> Groups:
    """`mails` are the newest first."""
    domains = _largest(mails, lambda mail: _domain(mail.envelope.sender))
    return Groups(
        reasons=_largest(mails, lambda mail: next(iter(worst_first(mail.tags, scores)), None)),
        domains=[each for each in domains if len(each.senders) > 1],
        senders=_largest(mails, lambda mail: mail.envelope.sender),
    )


def _domain(sender: str) -> str | None:
    domain = domain_of(sender)
    return f"@{domain}" if domain else None


def _largest(mails: Iterable[MailRecord], name_of: Callable[[MailRecord], str | None]) -> list[Group]:
    found: dict[str, Group] = {}
    for mail in mails:
        name = name_of(mail)
        if name is None:
            continue
        each = found.setdefault(name, Group(name, mail))
        each.mails += 1
        each.senders.add(mail.envelope.sender)
        each.recipients.update(mail.envelope.addresses)
        each.subjects.add(mail.subject)
    return sorted((each for each in found.values() if each.mails > 1), key=lambda each: -each.mails)[:MAX_SHOWN]
