"""Digests: who is told about held mail, when, in which language, and what users may do about it.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

import re
from email.headerregistry import Address
from email.utils import parseaddr
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from bridge.config.console import Reached, check_public_url
from bridge.config.fields import (
    FILE_LOOKUP,
    AddressField,
    DomainField,
    Network,
    SecretFile,
    Section,
    TenantUid,
    refuse_twice,
)
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.time_zone import time_zone
from bridge.runtime.units import Duration

Schedule = Literal["immediate", "hourly", "daily", "weekly", "never"]
Language = Literal["en", "de", "fr", "es"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
ADDRESS = r"^[^\s@<>]+@[^\s@<>]+$"


def _sender(text: str) -> str:
    name, address = parseaddr(text)
    if not re.fullmatch(ADDRESS, address) or any(ord(character) < 32 for character in text):
        raise ValueError("expected an address, for example `Quarantine <quarantine@example.org>`")
    Address(display_name=name, addr_spec=address)
    return text


def _zone(name: str) -> str:
    time_zone(name)
    return name


Sender = Annotated[str, AfterValidator(_sender)]
MailAddress = Annotated[str, Field(pattern=ADDRESS, max_length=254)]


class UserPolicy(Section):
    """What users may do with their own held mail, by the reason why it is held."""

    spam: Literal["release", "request", "nothing"] = Field(
        "release",
        description="Spam and bulk mail. `release`: users release it themselves. `request`: they request the "
        "release, which a releaser grants or refuses in the console. `nothing`: they only see that it is held.",
    )
    phishing: Literal["release", "request", "nothing"] = Field("request", description="Phishing and fraud.")
    malware: Literal["request", "nothing"] = Field(
        "request", description="Malware. Users can never release it themselves."
    )
    blocked: Literal["release", "request", "nothing"] = Field(
        "request", description="Mail that matches a list of the tenant or the deployment."
    )
    other: Literal["release", "request", "nothing"] = Field(
        "request",
        description="Everything else, such as attachments that are not accepted and mail that could not be checked.",
    )
    preview: bool = Field(True, description="Users may read the sanitised text of held mail.")
    delete: bool = Field(
        True, description="Users may delete their copy. The mail is deleted once no other recipient has a copy left."
    )
    block_senders: bool = Field(
        True,
        description="Users may block senders for themselves; for allowing senders, see `personal_lists.allow_by`.",
    )


class TenantDigests(Section):
    uid: TenantUid = Field(description="One of `tenants`.")
    schedule: Schedule | None = Field(None, description="Default: as in `digests`.")
    from_: Sender | None = Field(None, alias="from", description="Default: as in `digests`.")
    language: Language | None = Field(None, description="Default: the first of `digests.languages`.")
    templates: str | None = Field(None, description="Directory of the tenant's templates. Default: as in `digests`.")
    notify: list[MailAddress] | None = Field(None, description="Default: as in `digests`.")
    users: UserPolicy = Field(
        UserPolicy(),
        description="What the tenant's users may do. Keys that are not given have the values of `digests.users`.",
    )


class UserPage(Reached, Section):
    address: AddressField = Field(
        Endpoint("127.0.0.1", 9084),
        description="Where `scanbridge digest serve` listens. It serves only the pages for users.",
    )
    public_url: str | None = Field(
        None,
        validate_default=True,
        description="The URL that users type and that links start with, if there is a reverse proxy in front of the "
        "pages: `https://mail.example.org/quarantine/`. Required if the address is not a loopback address.",
    )
    trusted_proxies: list[Network] = Field(
        ["127.0.0.0/8", "::1/128"],
        description="Networks of reverse proxies whose X-Forwarded-For is trusted if `public_url` is set.",
    )
    session_idle: Duration = Field(1800.0, ge=60, description="A session ends after this period of inactivity.")
    session_max: Duration = Field(8 * 3600.0, ge=60, description="A session ends after this time even if it is in use.")
    sign_in_by_code: bool = Field(True, description="Users may sign in with a code that is sent to their address.")
    sign_in_by_oidc: bool = Field(
        True,
        description="Users may sign in with `console.oidc`, if it is set; the verified `email` claim identifies them.",
    )

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        return check_public_url(url, info.data.get("address"))


class Digests(Section):
    schedule: Schedule = Field(
        "never",
        description="When recipients are told about mail that is held for them: `immediate` (at most once a minute), "
        "`hourly`, `daily`, `weekly` or `never`. Each recipient can choose a different setting.",
    )
    at: str = Field(
        "07:00",
        pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$",
        description="Time of day at which daily and weekly digests are sent.",
    )
    weekday: Weekday = Field("monday", description="Day on which weekly digests are sent.")
    time_zone: Annotated[str, AfterValidator(_zone)] = Field(
        "UTC", description="Time zone of `at` and of the times in digests, for example Europe/Zurich."
    )
    from_: Sender | None = Field(
        None,
        alias="from",
        description="The From address of digests: `Quarantine <quarantine@example.org>`. Required for digests.",
    )
    envelope_sender: str = Field(
        "",
        pattern=r"^([^\s@<>]+@[^\s@<>]+)?$",
        description="The envelope sender of digests. Default: the null sender, so that nothing is sent back.",
    )
    languages: list[Language] = Field(
        ["en", "de", "fr", "es"], min_length=1, description="Languages that users can choose; the first is the default."
    )
    domains: list[DomainField] = Field(
        [],
        description="Domains whose recipients get digests. No one else gets any. Default: the "
        "`recipient_domains` of all `tenants`.",
    )
    exclude: list[str] = Field(
        [],
        description="Addresses and `@domains` to which no digests are sent, such as mailing lists, shared mailboxes "
        "and robots.",
    )
    aliases_file: str | None = Field(
        None,
        description="File that defines which addresses belong to the same person, one alias per line: "
        "`alias@example.org jane@example.org`, `@jane.example jane@example.org` for a whole domain, or `@old.example "
        f"@new.example` if the local parts are the same. {FILE_LOOKUP}",
    )
    recipient_delimiter: str = Field(
        "",
        pattern=r"^[-+_.=]?$",
        description="The mail server's delimiter for address extensions: with `+`, mail to jane+shop@example.org "
        "belongs to jane@example.org. Default: none.",
    )
    notify: list[MailAddress] = Field(
        [], description="Addresses that are notified when a user's request is waiting for a releaser."
    )
    link_validity: Duration = Field(14 * 86400.0, ge=3600, description="How long links in a digest remain valid.")
    key_file: SecretFile | None = Field(
        None,
        description="File that contains the keys that sign links, one per line, the newest first. "
        "`scanbridge digest keys rotate` writes this file. It must be the same on all machines that share a "
        f"quarantine. {FILE_LOOKUP} Default: a generated file in the state directory.",
    )
    templates: str | None = Field(
        None,
        description="Directory of templates that replace the built-in ones: `digest.txt`, `digest.html`, "
        "`digest-subject.txt`.",
    )
    max_listed: int = Field(
        50, ge=1, le=500, description="Maximum number of mails listed in a digest; the page for users shows the others."
    )
    page: UserPage = Field(UserPage(), description="The pages for users.")
    users: UserPolicy = Field(UserPolicy(), description="What users may do.")
    tenants: list[TenantDigests] = Field([], description="Settings that differ for individual tenants.")

    @field_validator("tenants")
    @classmethod
    def _once(cls, tenants: list[TenantDigests]) -> list[TenantDigests]:
        refuse_twice(
            "digests.tenants",
            "uid",
            (tenant.uid for tenant in tenants),
            "two entries have the same uid, {first} and this one: write all settings of a tenant into one of them",
        )
        return tenants

    @property
    def is_on(self) -> bool:
        """Whether anybody may get a digest or see the pages. `never` for everyone is off, unless a sender is named."""
        return (
            self.from_ is not None
            or self.schedule != "never"
            or any(tenant.schedule not in (None, "never") for tenant in self.tenants)
        )
