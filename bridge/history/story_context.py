"""What a mail's story needs in addition to its history: today's configuration, and what the quarantine knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.history.story_wording import SERVER_IN_FRONT

# States of `Kept`, in addition to those of the quarantine. `not_here`: another machine may have it.
GONE, NOT_HERE, UNKNOWN = "gone", "not_here", "unknown"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What today's configuration says about the path of a mail."""

    protocol: str = ""  # of the listener; "" if there is no such listener any more
    is_after_queue: bool = False  # the mail server had accepted the mail before we saw it
    is_direct: bool = True  # the client that we talk to sends its own mail; otherwise it is our mail server
    lists: tuple[str, ...] = ()  # those that the listener enforces
    next_hop: str = ""  # as the configuration spells it
    next_hops: Mapping[str, str] = field(default_factory=dict)  # by recipient, if they have different ones
    tenant_domain: str = ""  # the first one of the mail's tenant
    scores: Mapping[str, float] = field(default_factory=dict)  # of tags, by the included service's defaults

    @property
    def is_delivered_in_front(self) -> bool:
        """Whether the mail server in front of us delivers the mail itself."""
        return self.protocol in ("milter", "mta-hooks")

    @property
    def client(self) -> str:
        """Who receives our answers. Before its queue, the mail server in front of us passes them on to its client."""
        return SERVER_IN_FRONT if self.is_after_queue else "the client"

    @property
    def peer(self) -> str:
        """Who is connected to us."""
        return "the client" if self.is_direct else SERVER_IN_FRONT

    @property
    def maildir(self) -> str:
        """The path of the next hop, if it is a Maildir."""
        return self.next_hop.removeprefix("maildir:") if self.next_hop.startswith("maildir:") else ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the quarantine knows about a mail."""

    state: str
    delivered: tuple[str, ...] = ()  # the recipients to whom it was released
    until: float | None = None  # when retention deletes it
    problem: str = ""  # why the state is unknown
