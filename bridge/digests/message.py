"""A digest as a mail: text and HTML, in the reader's language, from templates that a tenant may replace.

Subjects and senders of held mail are hostile, and so is what was found in it. They are shortened, made visible, and
broken so that no mail program makes a link of them. Nothing is loaded from elsewhere, and no link does anything before
a button is pressed.
"""

from __future__ import annotations

import hashlib
import re
from binascii import b2a_qp
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime, parseaddr
from pathlib import Path
from typing import Any

from jinja2 import (
    BaseLoader,
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PackageLoader,
    PrefixLoader,
    StrictUndefined,
)
from jinja2.sandbox import SandboxedEnvironment

from bridge.digests.findings import in_words
from bridge.digests.items import Item, Person
from bridge.digests.languages import Language, language
from bridge.digests.listing import Listing
from bridge.digests.settings import DigestSettings, TenantSettings
from bridge.digests.signed_links import Act, Link, LinkKeys
from bridge.digests.why_held import Reason, reason_of, words_for
from bridge.errors import ConfigError
from bridge.mail.address import domain_of
from bridge.mail.transaction import new_id
from bridge.quarantine.record import MailRecord
from bridge.runtime.visible_text import visible

MAX_SUBJECT = 150
MAX_SENDER = 100
MAX_FINDING = 200
JOINER = "\u2060"  # word joiner: has no width, and ends what programs take for an address
_LINKED = re.compile(r"(?<=\S)([.:/@])(?=\S)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One held mail, as its recipient reads about it."""

    sender: str
    subject: str
    time: str
    why: str  # a sentence
    reason: Reason
    recipient: str  # "": the reader's own address
    may: str  # release, request or nothing
    act_url: str
    view_url: str  # "": not allowed
    ham_url: str = ""  # only for spam
    spam_url: str = ""  # only for mail that is held for another reason
    findings: tuple[str, ...] = ()  # what the scanner found, in words


@dataclass(frozen=True, slots=True)
class Made:
    """A mail that is ready to be sent."""

    content: bytes
    count: int


@dataclass(slots=True)
class DigestMaker:
    settings: DigestSettings
    keys: LinkKeys
    _environments: dict[Path | None, Environment] = field(default_factory=dict)

    # Links

    @property
    def base(self) -> str:
        return self.settings.config.page.base

    def url(self, act: Act, person: str, now: float, item: Item | None = None) -> str:
        """`item`: the copy of the mail that the link is for. Its recipient is this person, or one of their aliases."""
        expires_at = int(now + self.settings.config.link_validity)
        where = "u" if act is Act.UNSUBSCRIBE else "l"
        link = Link(act, expires_at, "", person)
        if item is not None:
            owner = "" if item.recipient == person else person
            link = Link(act, expires_at, item.mail, item.recipient, owner)
        return f"{self.base}/{where}/{self.keys.sign(link)}"

    # The mail

    def digest(self, person: Person, listing: Listing, now: float) -> Made | None:
        """None if there is nothing left to list. Raises ConfigError."""
        if not listing.held:
            return None
        address, tenant = person.address, self.settings.of(person.address)
        is_offered = person.language in self.settings.config.languages
        words = language(person.language if is_offered else tenant.language)
        entries = [self.entry(item, mail, address, words, now) for item, mail in listing.held]
        count = len(entries) + listing.more
        return Made(self.write(address, tenant, words, entries, listing.more, now), count)

    def entry(self, item: Item, mail: MailRecord, person: str, words: Language, now: float) -> Entry:
        tenant, reason = self.settings.of(item.recipient), reason_of(mail)
        may = tenant.may(reason)
        act = {"release": Act.RELEASE, "request": Act.REQUEST}.get(may)
        return Entry(
            sender=shown(mail.envelope.sender, MAX_SENDER) or words.say("a mail server"),
            subject=shown(mail.subject, MAX_SUBJECT) or words.say("(no subject)"),
            time=words.time(item.kept_at, self.settings.clock.zone),
            why=words.say(words_for(reason)),
            reason=reason,
            recipient="" if item.recipient == person else visible(item.recipient)[:MAX_SENDER],
            may=may,
            act_url=self.url(act, person, now, item) if act else "",
            view_url=self.url(Act.VIEW, person, now, item) if tenant.users.preview else "",
            ham_url=self.url(Act.HAM, person, now, item) if reason is Reason.SPAM else "",
            spam_url=self.url(Act.SPAM, person, now, item) if reason is not Reason.SPAM else "",
            findings=tuple(shown(text, MAX_FINDING) for text in in_words(mail.reasons, words)),
        )

    def write(
        self, person: str, tenant: TenantSettings, words: Language, entries: list[Entry], more: int, now: float
    ) -> bytes:
        """Raises ConfigError if a template cannot be used."""
        unsubscribe = self.url(Act.UNSUBSCRIBE, person, now)
        values = {
            "entries": entries,
            "more": more,
            "count": len(entries) + more,
            "person": visible(person)[:MAX_SENDER],
            "enter_url": self.url(Act.ENTER, person, now),
            "unsubscribe_url": unsubscribe,
            "page_url": f"{self.base}/",
            "days": max(1, round(self.settings.config.link_validity / 86400)),
            "expires": words.time(now + self.settings.config.link_validity, self.settings.clock.zone),
            "tenant": tenant.tenant,
        }
        subject = " ".join(self._render(tenant, words, "digest-subject.txt", values).split())
        parts = [("plain", self._render(tenant, words, "digest.txt", values))]
        parts.append(("html", self._render(tenant, words, "digest.html", values)))
        head = self._head(person, tenant, words, subject, now).as_bytes().partition(b"\r\n\r\n")[0]
        # Written by hand: the email package may encode a long URL, and then no mail program can read it.
        unsubscribing = f"List-Unsubscribe: <{unsubscribe}>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
        return unsubscribing.encode("ascii") + head + b"\r\n" + _alternatives(parts)

    def note(self, to: str, tenant: TenantSettings, words: Language, template: str, now: float, **values: Any) -> bytes:
        """A short mail: its template's first line is the subject. Raises ConfigError."""
        subject, _, text = self._render(tenant, words, template, values).partition("\n")
        mail = self._head(to, tenant, words, subject, now)
        mail.set_content(text.lstrip("\n"), cte="quoted-printable")
        return mail.as_bytes()

    def _head(self, to: str, tenant: TenantSettings, words: Language, subject: str, now: float) -> EmailMessage:
        sender = parseaddr(tenant.sender)[1]
        mail = EmailMessage(policy=SMTP if (to + sender).isascii() else SMTPUTF8)
        mail["From"] = tenant.sender
        mail["To"] = to if _is_plain(to) else "undisclosed-recipients:;"
        mail["Subject"] = subject
        mail["Date"] = format_datetime(datetime.fromtimestamp(now, UTC))
        mail["Message-ID"] = f"<{_unique(to, now)}@{domain_of(sender)}>"
        mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic replies
        mail["X-Auto-Response-Suppress"] = "All"  # the same, for Exchange
        mail["Content-Language"] = words.code
        return mail

    def _render(self, tenant: TenantSettings, words: Language, name: str, values: dict[str, Any]) -> str:
        spoken = {"_": words.say, "ngettext": words.count, "language": words.code}
        try:
            return self._environment(tenant.templates).get_template(name).render({**values, **spoken})
        except Exception as exc:  # a tenant's template may raise anything
            where, why = tenant.templates or "the built-in templates", str(exc) or type(exc).__name__
            raise ConfigError(f"digests.templates: {name} in {where}: {why}") from exc

    def _environment(self, templates: Path | None) -> Environment:
        if templates not in self._environments:
            ours = PackageLoader("bridge.digests")
            loaders: list[BaseLoader] = [FileSystemLoader(templates)] if templates is not None else []
            # Our own templates are trusted; a tenant's run in a sandbox.
            kind = Environment if templates is None else SandboxedEnvironment
            self._environments[templates] = kind(
                loader=ChoiceLoader([*loaders, PrefixLoader({"standard": ours}), ours]),
                autoescape=lambda name: name is not None and not name.endswith(".txt"),
                undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
            )  # fmt: skip
        return self._environments[templates]


def _alternatives(parts: list[tuple[str, str]]) -> bytes:
    """The body with its header fields: ten times as fast as the email package, which matters for 100,000 people."""
    boundary = f"digest-{new_id()}"
    lines = [f'MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary="{boundary}"\r\n\r\n'.encode("ascii")]
    for kind, text in parts:
        lines.append(
            f"--{boundary}\r\nContent-Type: text/{kind}; charset=utf-8\r\n"
            "Content-Transfer-Encoding: quoted-printable\r\n\r\n".encode("ascii")
        )
        text = "\r\n".join(text.splitlines()) + "\r\n"
        lines.append(b2a_qp(text.encode("utf-8", "replace"), istext=True))
    lines.append(f"--{boundary}--\r\n".encode("ascii"))
    return b"".join(lines)


def shown(text: str, limit: int) -> str:
    """Safe to show: no control characters, not too long, and nothing that a program makes a link of."""
    text = visible(" ".join(text.split()))
    text = text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
    return _LINKED.sub(rf"\1{JOINER}", text)


def _is_plain(address: str) -> bool:
    """Whether the email package writes it unchanged: it decodes encoded words (RFC 2047) and refuses a line end."""
    return "=?" not in address and address.isprintable()


def _unique(person: str, now: float) -> str:
    return f"{new_id()}.{hashlib.sha256(f'{person} {now}'.encode()).hexdigest()[:12]}"
