"""A vote: one person's report of one mail, as it is stored.

The mail and the person are stored as digests: neither can be read, but anyone with a list of addresses can find out
which of them is the person. The sender is the author's address at a free mail provider, else the author's domain,
together with what proves that they sent the mail: DMARC, or the network of the client that delivered it. Without proof,
anyone could have written that address, so the vote counts for no sender.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from bridge.mail.address import comparable_address, domain_of
from bridge.service.detection import domains

SPAM, HAM = "spam", "ham"
KINDS = (SPAM, HAM)
MAX_SENDER = 400  # characters
MAX_SIGNALS = 100
MAX_SIGNAL = 64  # characters
AUTHENTICATED = "auth:dmarc-pass"
AMBIGUOUS = "header:several-from"
_FAILED = frozenset(
    {
        *("auth:dmarc-none", "auth:dmarc-quarantine", "auth:dmarc-reject", "auth:dmarc-temperror"),
        "auth:dmarc-permerror",
        *("auth:spf-fail", "auth:spf-softfail"),
    }
)
PROOFS = _FAILED | {AUTHENTICATED}  # what decides whether the sender is known
_INSIDE = [  # RFC 1918, 6598 and 4193
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]
_TEXTS = ("mail", "reporter", "kind", "sender", "origin")


class BadVote(ValueError):
    """A line of an export is not a vote."""


@dataclass(frozen=True, slots=True)
class Vote:
    mail: str  # digest of its content
    reporter: str  # digest of the person's name
    kind: str
    sender: str  # "": not proved
    origin: str  # the client's network; "": unknown
    signals: tuple[str, ...]
    at: float  # Unix time

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> Vote:
        """Raises BadVote."""
        try:
            value = json.loads(line)
            mail, reporter, kind, sender, origin = (value[name] for name in _TEXTS)
            signals, at = list(value["signals"]), float(value["at"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise BadVote("not a vote written by `learning export`") from None
        texts = (mail, reporter, kind, sender, origin, *signals)
        if not all(isinstance(text, str) and len(text) <= MAX_SENDER and text.isprintable() for text in texts):
            raise BadVote("a value is not printable text, or is too long")
        if not (_is_digest(mail) and _is_digest(reporter) and kind in KINDS and len(origin) <= 64 and 0 <= at < 1e11):
            raise BadVote("invalid digest, kind or time")
        return cls(mail, reporter, kind, sender, origin, bounded(signals), at)


def bounded(signals: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in signals if len(name) <= MAX_SIGNAL)[:MAX_SIGNALS])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of_person(name: str) -> str:
    """An address is the same person in every spelling."""
    return digest(comparable_address(name).encode("utf-8", "replace"))


def _is_digest(text: str) -> bool:
    return len(text) == 64 and all(char in "0123456789abcdef" for char in text)


def origin_of(client: str | None) -> str:
    """The network of a client's address: customers of one provider cannot be told apart.

    Unknown for an address of our own network: a gateway there brings everybody's mail, so it proves nothing.
    """
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return ""
    if address.is_loopback or address.is_link_local or any(address in network for network in _INSIDE):
        return ""
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def senders_of(authors: Sequence[str], client: str | None, tags: Collection[str]) -> list[str]:
    """The keys under which a mail's sender is known, the best proof first; none if nothing proves who sent it.

    `authors`: all addresses that any reader finds in any From field. If they differ, nobody knows whom a reader sees,
    and the proof may be for another one.
    """
    if len(set(authors)) != 1 or AMBIGUOUS in tags:
        return []
    domain = domain_of(authors[0])
    who = authors[0] if domains.in_list(domain, domains.FREEMAIL) else domain
    if not who or not who.isprintable():  # no database and no terminal should have to cope with it
        return []
    proofs = ["dmarc"] if AUTHENTICATED in tags else []
    if _FAILED.isdisjoint(tags):  # everybody's mail comes from the networks of large providers
        proofs += [origin] if (origin := origin_of(client)) else []
    return [f"{who[-300:]} {proof}" for proof in proofs]
