"""Signals from the header: who claims to have sent the mail, and whether that can be.

Reads From, Reply-To, Subject, the signatures and the envelope. Verifies nothing: whether a signature is valid is the
business of the `authentication` analyzer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from bridge.mail.address import domain_of
from bridge.mime.words import decode_words
from bridge.service.detection import brands, domains
from bridge.service.detection.material import Material

MAX_FIELD = 1000  # characters of a field that are looked at
_PLAIN_FROM = re.compile(  # possessive, because a name can consist of white space
    r"""(?:"(?:[^"\\<>]|\\.)*+"\s*+|[^"<>@,;:()]*+(?:\([^()<>]*+\)[^"<>@,;:()]*+)*)?<[^<>@\s,;:"]++@[^<>@\s,;:"]++>"""
    r"""|[^<>@\s,;:"()]++@[^<>@\s,;:"()]++\s*+(?:\([^<>]*+\))?"""
)
_BRACKET = re.compile(r"<([^<>]*)>\s*$")
_SIGNED_BY = re.compile(r"(?:^|;)\s*d\s*=\s*([^;\s]+)")
_ENCODED = re.compile(r"=\?[^?]+\?([bBqQ])\?([^?]*)\?=")
_ROLE = re.compile(
    r"\b(?:support|service|security|billing|account|admin|administrator|help ?desk|it department|bank|customer care|"
    r"kundenservice|kundendienst|sicherheit|atendimento|soporte|servicio|notifica\w*|no-?reply|team|department)\b"
)
_SYMBOL = re.compile("[\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
_PREFIX = re.compile(r"(?:\s*(?:re|aw|fw|fwd|wg|sv|antw|tr|rif|res|enc)\s*(?:\[\d+\])?:)+", re.IGNORECASE)
_CONVERSATION = frozenset({"in-reply-to", "references"})
_LIST = frozenset({"list-id", "list-post", "list-unsubscribe", "mailing-list"})


class Sender:
    """The header, read once; the other signals need parts of it."""

    def __init__(self, material: Material) -> None:
        self.raw = material.first("from")[:MAX_FIELD]
        bracket = _BRACKET.search(self.raw)
        self.address = (bracket[1] if bracket else self.raw.partition("(")[0]).strip().lower()
        decoded = decode_words(self.raw) if "=?" in self.raw else self.raw
        self.name = decoded.rpartition("<")[0].strip(" \t\"'")
        self.local, self.domain = self.address.rpartition("@")[0], domain_of(self.address)
        self.site = domains.registered(self.domain)
        self.reply_domain = domain_of(_address(material.first("reply-to")[:MAX_FIELD]))
        self.envelope_domain = domain_of(material.envelope_from)
        subject = material.first("subject")[:MAX_FIELD]
        self.raw_subject = subject
        self.subject = decode_words(subject) if "=?" in subject else subject
        self.subject_brand = brands.mentioned(self.subject)
        names = {name for name, _ in material.fields}
        self.is_list = not _LIST.isdisjoint(names)
        self.is_reply = not _CONVERSATION.isdisjoint(names)
        self.signers = {
            match[1].lower().rstrip(".")
            for value in material.values("dkim-signature")[:10]
            if (match := _SIGNED_BY.search(value[:MAX_FIELD]))
        }
        self.recipients = [
            address for value in material.values("to")[:2] if "@" in (address := _address(value[:MAX_FIELD]))
        ]
        self.has_recipient = any(value.strip() for value in material.values("to") + material.values("cc"))
        self.brand = brands.claimed(self.name) or brands.claimed(self.local)

    @property
    def is_aligned(self) -> bool:
        """Whether a signature or the envelope belongs to the domain in From."""
        others = {domains.registered(name) for name in (*self.signers, self.envelope_domain) if name}
        return self.site in others or any(brands.are_related(self.site, other) for other in others)

    def sites(self) -> set[str]:
        """The domains that have to do with the sender."""
        return {domains.registered(name) for name in (self.domain, *self.signers, self.envelope_domain) if name}


def _address(value: str) -> str:
    bracket = _BRACKET.search(value)
    return (bracket[1] if bracket else value).strip().lower()


def signals(sender: Sender) -> Iterator[tuple[str, str]]:
    yield from _identity(sender)
    yield from _domain(sender)
    yield from _answers(sender)
    yield from _subject(sender)


def _identity(sender: Sender) -> Iterator[tuple[str, str]]:
    brand = brands.claimed(sender.name)
    if brand and not brands.owns(brand, sender.domain):
        yield "impersonation:display-name", f"{brand}|{sender.domain}"
    local = brands.claimed(sender.local)
    if local and not brands.owns(local, sender.domain):
        yield "impersonation:local-part", f"{local}|{sender.domain}"
    imitated = brands.imitated(sender.domain)
    if imitated:
        yield "impersonation:domain", f"{imitated}|{sender.domain}"
    role = _ROLE.search(sender.name.lower()[:200])
    if role and domains.in_list(sender.site, domains.FREEMAIL):
        yield "sender:freemail-role", f"{role[0]}|{sender.domain}"
    shown = sender.name.lower().strip()
    if "." in shown and domains.exists(shown) and domains.registered(shown) != sender.site:
        yield "impersonation:name-is-domain", f"{shown}|{sender.domain}"
    if sender.recipients and any(_is_own(sender, address) for address in sender.recipients):
        yield "impersonation:recipient", sender.recipients[0]


def _is_own(sender: Sender, address: str) -> bool:
    """The mail claims to come from the recipient, or from "support" at the recipient's own domain."""
    if sender.address == address:
        return True
    domain = address.rpartition("@")[2]
    shown = sender.name.lower()
    name = domains.name_of(domain)
    return sender.site != domains.registered(domain) and (address in shown or (len(name) > 4 and name in shown))


def _domain(sender: Sender) -> Iterator[tuple[str, str]]:
    if sender.raw and not _PLAIN_FROM.fullmatch(_ENCODED.sub("x", sender.raw).strip()):
        yield "sender:malformed", sender.raw[:80]
    if sender.domain and not _can_exist(sender.domain):
        yield "sender:impossible-domain", sender.domain
    if domains.is_abused(sender.domain):
        yield "sender:abused-tld", sender.domain.rpartition(".")[2]
    if domains.in_list(sender.domain, domains.HOSTING):
        yield "sender:hosting-domain", sender.domain
    labels = sender.domain.split(".")[:-1]
    if domains.looks_random(domains.name_of(sender.domain)):
        yield "sender:random-domain", sender.domain
    elif any(map(domains.looks_random, labels)):
        yield "sender:random-subdomain", sender.domain
    if domains.looks_random(domains.name_of(sender.envelope_domain)):
        yield "sender:random-envelope", sender.envelope_domain
    if len(labels) >= 4:
        yield "sender:deep-domain", sender.domain
    local = sender.local.partition("+")[0]
    if domains.looks_random(local) and not domains.in_list(sender.site, domains.FREEMAIL):
        yield "sender:random-name", sender.local
    known = sender.signers or sender.envelope_domain
    if known and sender.site and not sender.is_aligned and not sender.is_list:
        yield "sender:unaligned", sender.domain


def _can_exist(domain: str) -> bool:
    return domain.startswith("[") or domains.exists(domain) or domains.is_internal(domain)


def _answers(sender: Sender) -> Iterator[tuple[str, str]]:
    reply = sender.reply_domain
    if reply and domains.registered(reply) != sender.site:
        if domains.in_list(reply, domains.FREEMAIL):
            yield "sender:freemail-reply", f"{reply}|{sender.domain}"
        elif any(map(domains.looks_random, reply.split(".")[:-1])):
            yield "sender:random-reply", reply
    if not sender.has_recipient:
        yield "sender:no-recipient", ""


def _subject(sender: Sender) -> Iterator[tuple[str, str]]:
    if not (sender.raw_subject.isascii() and sender.raw.isascii()):
        yield "header:raw-8bit", ""
    if any(_is_needless(value) for value in (sender.raw, sender.raw_subject) if "=?" in value):
        yield "header:needless-encoding", ""
    if _has_lookalikes(sender.subject) or _has_lookalikes(sender.name):
        yield "header:lookalike-letters", ""
    if _SYMBOL.search(sender.subject) or _SYMBOL.search(sender.name):
        yield "subject:symbols", ""
    if _PREFIX.match(sender.subject) and not sender.is_reply:
        yield "subject:false-reply", ""
    lower = sender.subject.lower()
    for address in sender.recipients:
        if address in lower or (len(address) > 8 and domain_of(address) in lower):
            yield "subject:recipient", address
            break
    brand = sender.subject_brand
    if brand and not brands.owns(brand, sender.domain):
        yield "impersonation:subject", f"{brand}|{sender.domain}"


def _is_needless(value: str) -> bool:
    """An encoded word of plain ASCII: the encoding hides it from simple filters."""
    found = _ENCODED.findall(value)
    return bool(found) and all(kind in "bB" for kind, _ in found) and decode_words(value).isascii()


@lru_cache(1024)
def _has_lookalikes(text: str) -> bool:
    """Whether a word mixes Latin letters with others that look the same, or has letters that imitate Latin ones."""
    if text.isascii():
        return False
    for word in re.findall(r"[^\W\d_]{2,}", text[:300]):
        scripts = {unicodedata.name(char, "").partition(" ")[0] for char in word[:50]}
        if "LATIN" in scripts and scripts & {"CYRILLIC", "GREEK", "CHEROKEE", "MATHEMATICAL", "ARMENIAN"}:
            return True
        if scripts & {"MATHEMATICAL", "FULLWIDTH", "CHEROKEE"}:
            return True
    return False
