"""Personal lists: what a recipient's own entries change about a mail that the policy has decided on.

A block withholds a mail that would be handed on; an allow hands on a mail that was withheld because of its verdict,
where the operator permits that. Neither touches the other recipients, and neither weakens anything else: a list of the
tenant or the deployment refuses mail before this is asked, and no entry delivers mail in which something dangerous was
found, or which was not inspected completely. Look-ups in memory, no I/O.

If recipients are to be treated differently, the mail is split: some get it, for the others it is quarantined or
dropped. A client that gets one reply for all cannot be told about a refusal of some, so their mail is quarantined
instead; and where that is impossible (a mail server that cannot remove recipients, a part that is to be deferred), the
policy's rule applies to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bridge.api.scanning import AnalysisResult, Decision
from bridge.filter import rule_names
from bridge.filter.policy import Rule
from bridge.mail.action import Action
from bridge.mail.address import comparable_address, has_certain_domain, spellings_of_recipient
from bridge.mail.envelope import Envelope
from bridge.mail.list_match import ListAction, ListMatch
from bridge.matching.dangerous_tags import has_danger
from bridge.matching.match import address, domain_and_parents
from bridge.mime.authors import addresses_in_from

LIST = "personal"  # the name under which matches are logged and counted
BLOCK, ALLOW = "block", "allow"

# What proves a sender, in the words of our service and of rspamd. DMARC says nothing about the envelope.
_PROOFS_OF_ENVELOPE = frozenset({"auth:spf-pass", "R_SPF_ALLOW"})
_PROOFS_OF_AUTHOR = frozenset({"auth:dmarc-pass", "DMARC_POLICY_ALLOW"})
_MOST_SENDERS, _MOST_LABELS = 6, 10  # those of the envelope and of the From field; of a domain, from its end
_WITHHELD = (Decision.QUARANTINE, Decision.BOUNCE, Decision.DROP)


class Table(Protocol):
    """The entries of all recipients; addresses are in the spelling of entries."""

    is_empty: bool

    def has(self, recipient: str) -> bool:
        """Whether there may be entries of this recipient, or of one with this local part."""

    def find(self, kind: str, recipient: str, senders: Sequence[str]) -> str | None:
        """The first of these senders that the recipient has an entry about."""


@dataclass(frozen=True, slots=True)
class PersonalRules:
    """What entries may do, for one tenant."""

    block: Action = Action.QUARANTINE  # or DISCARD
    allow_verdicts: frozenset[str] = frozenset()  # in lower case; empty: allow entries do nothing


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to the mail of some of the recipients."""

    rule: Rule
    indexes: tuple[int, ...]
    listed: ListMatch | None = None  # the entry of the first of them


class Source(Protocol):
    """Replaces the table whenever entries change."""

    @property
    def table(self) -> Table: ...


@dataclass(frozen=True, slots=True)
class PersonalLists:
    """The entries, and what they may do."""

    source: Source
    rules: PersonalRules = field(default_factory=PersonalRules)
    tenant_rules: Mapping[str, PersonalRules] = field(default_factory=dict)

    def concern(self, envelope: Envelope) -> bool:
        """Whether a recipient of this mail may have entries: for nearly all mail, the only check."""
        table = self.source.table
        if table.is_empty:
            return False
        for recipient in envelope.recipients:  # `any` takes twice the time
            written = recipient.address
            if table.has(comparable_address(written)):
                return True
            if not written.isascii() and any(map(table.has, spellings_of_recipient(written))):
                return True
        return False

    def may_miss(self, recipient: str) -> bool:
        """Whether a mail server may take this recipient for someone else, whose entries would then be missed.

        A name without a domain, or in one that is completed or means whatever that host takes, may be that of anyone
        with this local part.
        """
        table = self.source.table
        if table.is_empty or has_certain_domain(recipient, are_all=False):
            return False
        local = recipient.rpartition("@")[0] or recipient
        if not has_certain_domain(f"{local}@name.example"):  # a source route, or another address
            return True
        has_own = "@" in recipient and table.has(comparable_address(recipient))
        return not has_own and any(map(table.has, spellings_of_recipient(local)))

    def fates(
        self,
        envelope: Envelope,
        head: bytes,
        tenant: str | None,
        rule: Rule,
        result: AnalysisResult | None,
        *,
        is_head_cut: bool = False,
    ) -> list[Fate]:
        """One for all recipients, or two; of two, the first one is that of the recipients who get the mail.

        `is_head_cut`: more fields follow `head`, maybe another From.
        """
        rules = self.tenant_rules.get(tenant or "", self.rules)
        is_handed_on = rule.action is Action.RELAY
        if not is_handed_on and not _may_allow(rules, result):
            return [Fate(rule, tuple(range(len(envelope.recipients))))]
        authors, shown_instead, is_all = addresses_in_from(head)
        blocking = candidates(envelope.sender, *shown_instead, *authors)
        tags = result.tags if result is not None else ()
        known = authors if is_all and not shown_instead and not is_head_cut else ()
        allowing = candidates(*_trusted(envelope.sender, known, tags, needs_proof=not is_handed_on))
        kind = BLOCK if is_handed_on else ALLOW
        return _split(
            kind, rule, rules, [self._match(kind, address, blocking, allowing) for address in envelope.addresses]
        )

    def _match(self, kind: str, recipient: str, blocking: Sequence[str], allowing: Sequence[str]) -> str | None:
        """The entry of this kind that counts for the recipient: a block, unless the allow is narrower.

        A mail server may deliver mail for another spelling to the same person, so a block of that spelling counts as
        well; an allow does not.
        """
        own, *others = spellings_of_recipient(recipient)
        found = self._match_spelling(kind, own, blocking, allowing)
        if found is not None or kind == ALLOW:
            return found
        return next(filter(None, (self._match_spelling(BLOCK, other, blocking, allowing) for other in others)), None)

    def _match_spelling(self, kind: str, normal: str, blocking: Sequence[str], allowing: Sequence[str]) -> str | None:
        table = self.source.table
        if not table.has(normal):
            return None
        block, allow = table.find(BLOCK, normal, blocking), table.find(ALLOW, normal, allowing)
        if block is None or allow is None:
            return block if kind == BLOCK else allow
        blocks = [sender for sender in blocking if table.find(BLOCK, normal, (sender,)) is not None]
        allows = [sender for sender in allowing if table.find(ALLOW, normal, (sender,)) is not None]
        is_allowed = all(any(_is_narrower(allow, block) for allow in allows) for block in blocks)
        if kind == BLOCK:
            return None if is_allowed else block
        return allow if is_allowed else None


def candidates(*senders: str) -> list[str]:
    """What entries about these senders may say, the most specific first: whole addresses, then domains.

    Bounded: a mail may have a thousand recipients, and its author chooses how many labels a domain has.
    """
    found: dict[str, None] = {}
    for sender in senders[:_MOST_SENDERS]:
        if normal := address(sender):
            found[normal] = None
            names = list(domain_and_parents(normal.rpartition("@")[2]))
            found.update(dict.fromkeys(f"@{name}" for name in names[-_MOST_LABELS:]))
    return sorted(found, key=_specificity, reverse=True)


def _specificity(entry: str) -> tuple[bool, int]:
    return not entry.startswith("@"), entry.count(".")


def _is_narrower(allow: str, block: str) -> bool:
    """An address is narrower than a domain, and a subdomain than the domain above it."""
    return block.startswith("@") and (not allow.startswith("@") or allow.endswith(f".{block[1:]}"))


def _trusted(sender: str, authors: Sequence[str], tags: Sequence[str], *, needs_proof: bool) -> list[str]:
    """The senders that an allow may be about. Anyone can write any address into the envelope and into the From field.

    `authors`: all of them, or none if there may be others.

    Withheld mail is delivered only to a proven sender. An exception from a recipient's own block needs no proof of the
    envelope: the policy would deliver the mail anyway.
    """
    is_sender = not needs_proof or not _PROOFS_OF_ENVELOPE.isdisjoint(tags)
    is_author = len(authors) == 1 and not _PROOFS_OF_AUTHOR.isdisjoint(tags)
    return [*([sender] if is_sender else ()), *(authors if is_author else ())]


def _may_allow(rules: PersonalRules, result: AnalysisResult | None) -> bool:
    """Whether an allow entry may have this mail delivered."""
    return (
        result is not None
        and result.decision in _WITHHELD
        and result.verdict.lower() in rules.allow_verdicts
        and not has_danger(result.tags)
    )


def _split(kind: str, rule: Rule, rules: PersonalRules, entries: list[str | None]) -> list[Fate]:
    listed = [index for index, entry in enumerate(entries) if entry is not None]
    others = tuple(index for index, entry in enumerate(entries) if entry is None)
    usual = Fate(rule, others)
    if not listed:
        return [usual]
    entry = entries[listed[0]] or ""
    if kind == BLOCK:
        action, name, done = rules.block, rule_names.PERSONAL_BLOCK, ListAction.BLOCKED
    else:
        action, name, done = Action.RELAY, rule_names.PERSONAL_ALLOW, ListAction.ALLOWED
    own = Fate(Rule(action, name=name), tuple(listed), ListMatch(LIST, entry, done))
    if not others:
        return [own]
    return [usual, own] if kind == BLOCK else [own, usual]
