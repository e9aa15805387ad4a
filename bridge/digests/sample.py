"""Digests to look at: a sample with invented mail, and what a person would get now. Nothing is sent or recorded."""

from __future__ import annotations

import time
from dataclasses import replace
from email import message_from_bytes
from email.policy import default as modern
from pathlib import Path

from bridge.digests.findings import in_words
from bridge.digests.items import Items
from bridge.digests.languages import language as language_of
from bridge.digests.listing import gather
from bridge.digests.message import MAX_FINDING, DigestMaker, Entry, shown
from bridge.digests.people import People
from bridge.digests.signed_links import Act, Link, LinkKeys
from bridge.digests.why_held import Reason, words_for
from bridge.mail.address import comparable_address
from bridge.quarantine.quarantine import Quarantine

_FOUND = ("claims to be Bank, sent from bank-login.example", "the link shown as bank.example leads to login.example")
_MAILS = (
    ("newsletter@shop.example", "Only today: 70 % off everything", Reason.SPAM, ()),
    ("service@bank-login.example", "Your account will be closed", Reason.PHISHING, _FOUND),
    ("scanner@office.example", "Scan_2024-11.pdf.exe", Reason.MALWARE, ()),
)
PERSON = "jane@example.org"


class _SampleKeys(LinkKeys):
    """Links in a sample are not signed with a real key: anyone who saw it could otherwise sign in."""

    def __init__(self) -> None:
        super().__init__(Path())

    def sign(self, link: Link) -> str:
        return f"{link.act}-sample"


def sample(maker: DigestMaker, tenant: str = "", language: str | None = None) -> bytes:
    """With invented mail, and links that lead nowhere."""
    maker = replace(maker, keys=_SampleKeys())
    settings, now = maker.settings.of_tenant(tenant), time.time()
    words = language_of(language or settings.language)
    entries = [
        Entry(
            sender=sender,
            subject=subject,
            time=words.time(now - 3600 * number, maker.settings.clock.zone),
            why=words.say(words_for(reason)),
            reason=reason,
            recipient="",
            may=settings.may(reason),
            act_url=maker.url(Act.RELEASE, PERSON, now),
            view_url=maker.url(Act.VIEW, PERSON, now) if settings.users.preview else "",
            ham_url=maker.url(Act.HAM, PERSON, now) if reason is Reason.SPAM else "",
            spam_url=maker.url(Act.SPAM, PERSON, now) if reason is not Reason.SPAM else "",
            findings=tuple(shown(text, MAX_FINDING) for text in in_words(found, words)),
        )
        for number, (sender, subject, reason, found) in enumerate(_MAILS, 1)
    ]
    return maker.write(PERSON, settings, words, entries, 0, now)


def upcoming(
    maker: DigestMaker, items: Items, quarantine: Quarantine, people: People, address: str, language: str | None
) -> bytes | None:
    """What this person would get now; None if there is nothing new. Raises BridgeError."""
    owner = people.person_of(comparable_address(address))
    if owner is None:
        return None
    now, person = time.time(), items.person(owner)
    listing = gather(items.new_of(owner, now), quarantine, maker.keys, maker.settings.config.max_listed)
    made = maker.digest(replace(person, language=language or person.language), listing, now)
    return None if made is None else made.content


def part_of(content: bytes, kind: str) -> str:
    """The text (`plain`) or the HTML (`html`) of a digest."""
    part = message_from_bytes(content, policy=modern).get_body((kind,))
    return "" if part is None else str(part.get_content())
