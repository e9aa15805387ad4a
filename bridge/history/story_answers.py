"""Which recipients a next hop accepted a mail for, as far as the history knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.history.entry import ACCEPTED_LATE, REFUSED_LATE, MailEntry
from bridge.history.mails import Mail
from bridge.history.query import CANCELLED
from bridge.history.story_context import Surroundings
from bridge.mail.action import Action


@dataclass(frozen=True, slots=True)
class LateAnswers:
    """What is known about the recipients of the last attempt for whom the next hop did not answer in time."""

    unsure: list[str]  # still without an answer
    late: list[str]  # accepted, after the client had gone away
    refused: list[str]  # refused or deferred after that

    @classmethod
    def of(cls, mail: Mail) -> LateAnswers:
        unsure: list[str] = mail.last.more.get("unsure") or []
        own = [event for event in mail.later if event.id == mail.last.row.id]
        late, refused = (
            [to for event in own if event.event == name for to in event.recipients]
            for name in (ACCEPTED_LATE, REFUSED_LATE)
        )
        return cls([to for to in unsure if to not in (*late, *refused)], late, refused)


@dataclass(slots=True)
class Acceptance:
    """A next hop that has accepted the mail."""

    hop: str
    queue_id: str
    recipients: list[str] = field(default_factory=list)


def acceptances(entry: MailEntry, around: Surroundings, recipients: Sequence[str]) -> list[Acceptance]:
    next_ids: dict[str, list[str]] = entry.more.get("next_ids") or {entry.row.next_id: list(entry.recipients)}
    found: dict[tuple[str, str], Acceptance] = {}
    for to in recipients or ("",):
        hop = around.next_hops.get(to, around.next_hop)
        queue_id = next((queue_id for queue_id, own in next_ids.items() if to in own), "" if to else entry.row.next_id)
        found.setdefault((hop, queue_id), Acceptance(hop, queue_id)).recipients.append(to)
    return list(found.values())


def recipients_with_mail(entry: MailEntry) -> list[str]:
    """Those for whom the next hop accepted a mail that it refused for others."""
    if entry.kind.action not in (Action.REJECT, Action.TEMPFAIL, CANCELLED):
        return []
    replies: dict[str, str] = entry.more.get("replies") or {}
    return entry.more.get("accepted") or [to for to, reply in replies.items() if reply.startswith("2")]


def is_on_its_way(entry: MailEntry) -> bool:
    """Whether it was cancelled when the decision had been made, which is then not recorded."""
    return entry.kind.action == CANCELLED and entry.row.relay_s > 0 and not entry.kind.decision
