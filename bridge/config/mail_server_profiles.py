"""Profiles: what we know about the mail server in front, as data.

A profile sets the deadline (from the end of the content to our reply, safely below the mail server's own
timeout) and the policy entries that differ from the general defaults. After a queue, a 5xx would become
a bounce to a sender that may be forged, so there `bounce` means quarantine, and content that we refuse
ourselves (a loop, a bare line feed, ...) is quarantined too. Milter servers have their
own hold queue.

A profile also says who connects to us. Usually it is the operator's own mail server. If that server does not name
the host that sent the mail, the scanner gets no address: the mail server's own address would pass every check that
is meant for the sender's. Only with `direct` do senders connect themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Profile:
    protocol: Literal["smtp", "milter", "mta-hooks"]
    limit_s: float  # the mail server's own timeout
    deadline_s: float  # ours
    policy: Mapping[str, str] = field(default_factory=dict)
    body_is_whole: bool = False  # milter: the mail server repeats the header fields in the body
    client_is_sender: bool = False  # the client is the sender: the operator has no mail server in front of us

    @property
    def is_after_queue(self) -> bool:
        """Whether the mail server has already accepted the mail, so that a refusal becomes a bounce."""
        return self.policy.get("bounce") == "quarantine"


_AFTER_QUEUE = {"bounce": "quarantine"}
_HOLD = {"quarantine": "hold"}

PROFILES: dict[str, Profile] = {
    "postfix-proxy": Profile("smtp", 100, 90),
    "postfix-content-filter": Profile("smtp", 600, 540, _AFTER_QUEUE),
    "postfix-milter": Profile("milter", 300, 240, _HOLD),
    "sendmail-milter": Profile("milter", 300, 240, _HOLD),
    "stalwart-milter": Profile("milter", 60, 50, body_is_whole=True),
    "exim-cutthrough": Profile("smtp", 60, 50),
    "exim-queue": Profile("smtp", 600, 540, _AFTER_QUEUE),
    "opensmtpd": Profile("smtp", 300, 240, _AFTER_QUEUE),
    "haraka": Profile("smtp", 30, 25),
    "mta-hooks": Profile("mta-hooks", 60, 50),
    "haraka-hooks": Profile("mta-hooks", 30, 25),
    "stalwart-hooks": Profile("mta-hooks", 30, 25),
    "direct": Profile("smtp", 600, 240, client_is_sender=True),  # RFC 5321 4.5.3.2.6; programs often wait 5 minutes
}
DEFAULT_PROFILE = {
    "smtp": "postfix-proxy",
    "lmtp": "postfix-proxy",
    "milter": "postfix-milter",
    "mta-hooks": "mta-hooks",
}


def kind_of(protocol: str) -> str:
    """LMTP has the profiles of SMTP."""
    return "smtp" if protocol == "lmtp" else protocol
