"""DMARC: the record that applies to an author's domain, and what it says about a mail.

Pure: a function that looks up TXT records is passed in. The record is that of the domain or of a parent (the tree walk
that replaced the public suffix list). If this is wrong, forged mail is delivered, or honest mail is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bridge.mail.address import comparable_domain
from bridge.service.analysis.dns_lookups import DnsUnavailable

MAX_LABELS = 8  # of a domain, in the tree walk
TEMPERROR, PERMERROR = "temperror", "permerror"
_PREFIX = "_dmarc."


@dataclass(frozen=True, slots=True)
class Record:
    """The DMARC record that applies to an author's domain."""

    tags: Mapping[str, str]
    found_at: str
    organisation: str  # the topmost domain with a record, unless a record says where it ends
    is_certain: bool = True  # False: there may be another one, at a domain about which there is no answer


@dataclass(frozen=True, slots=True)
class Proofs:
    """The domains that SPF and DKIM have authenticated, and those about which a lookup got no answer.

    They are listed under the tag of a record that says how strictly they must align with the author's domain.
    """

    passed: dict[str, list[str]] = field(default_factory=lambda: {"aspf": [], "adkim": []})
    unsure: dict[str, list[str]] = field(default_factory=lambda: {"aspf": [], "adkim": []})


def judge(author: str, proofs: Proofs, record: Record | None) -> str:
    """Like `dmarc`, but `temperror` for a mail that fails, and might have passed if every lookup had been answered."""
    result = dmarc(author, proofs.passed, record)
    is_unsure = dmarc(author, proofs.unsure, record) == "pass" or (record is not None and not record.is_certain)
    return TEMPERROR if is_unsure and result in ("quarantine", "reject") else result


def worst(results: Iterable[str]) -> str:
    """The strictest of several results: a mail with several authors must satisfy the domains of all of them.

    It passes only if each of them passes: one without a record proves nothing.
    """
    return max(results, key=("pass", "", "none", TEMPERROR, PERMERROR, "quarantine", "reject").index, default="")


def dmarc(author: str, passed: Mapping[str, Iterable[str]], record: Record | None) -> str:
    """`pass`, or the policy (`none`, `quarantine`, `reject`) for a mail that fails, or empty without a record.

    `passed` contains the domains authenticated by SPF (`aspf`) and DKIM (`adkim`), under the tag that
    says how strictly they must align with the author's domain.
    """
    if record is None:
        return ""
    tags = record.tags
    for tag, domains in passed.items():
        relaxed = tags.get(tag) != "s"
        for domain in domains:
            aligned = comparable_domain(domain)
            if aligned == author or (relaxed and is_within(aligned, record.organisation)):
                return "pass"
    policy = tags.get("p", "none") if record.found_at == author else tags.get("sp", tags.get("p", "none"))
    return policy if policy in ("none", "quarantine", "reject") else "none"


def is_within(domain: str, organisation: str) -> bool:
    return domain == organisation or domain.endswith("." + organisation)


def find_record(author: str, txt: Callable[[str], list[str]]) -> Record | None:
    """The nearest record at or above the domain. Raises DnsUnavailable if there is none, but may be one.

    A record may say that the organisation ends there (`psd=n`), or one label below, at a suffix whose names belong to
    different organisations (`psd=y`).
    """
    record, found_at, organisation, is_certain = None, "", author, True
    for name in places(author):
        place = name.removeprefix(_PREFIX)
        try:
            tags = _record(txt(name))
        except DnsUnavailable:  # of a subdomain without a name server, perhaps, which must not hide its parent's record
            is_certain = False
            continue
        if tags is None:
            continue
        is_suffix = tags.get("psd") == "y"
        if is_suffix and place == author:
            tags |= {"aspf": "s", "adkim": "s"}  # the names below it belong to others
        organisation = _one_label_more(author, place) if is_suffix else place
        if record is None:
            record, found_at = tags, place
        if is_suffix or tags.get("psd") == "n":
            break
    if record is None and not is_certain:
        raise DnsUnavailable("dmarc")
    return None if record is None else Record(record, found_at, organisation, is_certain)


def _one_label_more(author: str, parent: str) -> str:
    """The domain one label below a parent of the author's domain, towards it; the author's domain has none."""
    labels = author.split(".")
    return ".".join(labels[-parent.count(".") - 2 :])


def places(author: str) -> list[str]:
    """Where a record of the domain may be, the nearest first."""
    if not author:
        return []
    labels = author.split(".")
    parents = range(max(1, len(labels) - MAX_LABELS + 1), len(labels) - 1)
    return [_PREFIX + name for name in (author, *(".".join(labels[i:]) for i in parents))]


def _record(texts: list[str]) -> dict[str, str] | None:
    found = [text for text in texts if text.replace(" ", "").lower().startswith("v=dmarc1")]
    if len(found) != 1:
        return None
    pairs = (part.partition("=") for part in found[0].split(";"))
    return {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
