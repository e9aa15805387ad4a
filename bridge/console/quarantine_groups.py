"""What quarantined mails have in common: their senders and the reasons why they are held, the largest group first.

People review groups first and single mails last. A group is named by the id of its newest mail, so that a link to it
has no address in it. Knows records only; which mails are looked at is the page's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bridge.quarantine.record import MailRecord
from bridge.quarantine.severity import worst_first

MAX_SHOWN = 25


@dataclass(slots=True)
class Group:
    name: str
    newest: MailRecord
    mails: int = 0
    recipients: int = 0
    subjects: int = 0


def by_sender(mails: Iterable[MailRecord]) -> list[Group]:
    """`mails` are the newest first."""
    return _largest(mails, lambda mail: [mail.envelope.sender])


def by_reason(mails: Iterable[MailRecord], scores: Mapping[str, float]) -> list[Group]:
    """By the worst tag; mail without tags is in no group."""
    return _largest(mails, lambda mail: worst_first(mail.tags, scores)[:1])


def _largest(mails: Iterable[MailRecord], names: Callable[[MailRecord], list[str]]) -> list[Group]:
    found: dict[str, Group] = {}
    recipients: dict[str, set[str]] = {}
    subjects: dict[str, set[str]] = {}
    for mail in mails:
        for name in names(mail):
            found.setdefault(name, Group(name, mail)).mails += 1
            recipients.setdefault(name, set()).update(mail.envelope.addresses)
            subjects.setdefault(name, set()).add(mail.subject)
    for name, group in found.items():
        group.recipients, group.subjects = len(recipients[name]), len(subjects[name])
    return sorted(found.values(), key=lambda group: -group.mails)[:MAX_SHOWN]
