"""Digests to look at: a sample with invented mail, and what a person would get now. Nothing is sent or noted."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes
from email.policy import default as modern

from bridge.digests.items import Claim, Items, Person
from bridge.digests.languages import language as language_of
from bridge.digests.links import Act
from bridge.digests.message import DigestMaker, Entry
from bridge.digests.people import People
from bridge.digests.reasons import Reason, words_for
from bridge.mail.address import comparable_address
from bridge.quarantine.quarantine import Quarantine

_MAILS = (
    ("newsletter@shop.example", "Only today: 70 % off everything", Reason.SPAM),
    ("service@bank-login.example", "Your account will be closed", Reason.PHISHING),
    ("scanner@office.example", "Scan_2024-11.pdf.exe", Reason.MALWARE),
)
PERSON = "jane@example.org"


def sample(maker: DigestMaker, tenant: str = "", language: str | None = None) -> bytes:
    """With invented mail, and links that lead nowhere."""
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
            act_url=f"{maker.base}/l/{Act.RELEASE}-sample",
            view_url=f"{maker.base}/l/{Act.VIEW}-sample" if settings.users.preview else "",
            ham_url=f"{maker.base}/l/{Act.HAM}-sample" if reason is Reason.SPAM else "",
        )
        for number, (sender, subject, reason) in enumerate(_MAILS, 1)
    ]
    return maker.write(PERSON, settings, words, entries, 0, now)


def upcoming(
    maker: DigestMaker, items: Items, quarantine: Quarantine, people: People, address: str, language: str | None
) -> bytes | None:
    """What this person would get now; None if there is nothing new. Raises BridgeError."""
    owner = people.person_of(comparable_address(address))
    found = items.new_of(owner, maker.settings.config.max_listed) if owner is not None else []
    if owner is None or not found:
        return None
    person: Person = items.person(owner)
    person = replace(person, language=language or person.language)
    claim = Claim(person, datetime.now(UTC).timestamp(), found, len(found))
    made = maker.digest(claim, quarantine.records([item.mail for item in found]))
    return None if made is None else made.content


def part_of(content: bytes, kind: str) -> str:
    """The text (`plain`) or the HTML (`html`) of a digest."""
    part = message_from_bytes(content, policy=modern).get_body((kind,))
    return "" if part is None else str(part.get_content())
