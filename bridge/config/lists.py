"""The operator's lists: where the service has them, and which of them a listener enforces.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from bridge.config.fields import ALLOW_PLAIN_HTTP, CA_FILE, FILE_LOOKUP, SecretFile, Section, base_url
from bridge.runtime.units import Duration

ListName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*\S)?$")]
ListKind = Literal["sender", "domain", "network"]


class DoorLists(Section):
    block: list[ListName] = Field(
        [],
        description="Lists of senders, domains or client networks whose mail is refused with 550 5.7.1 at RCPT.",
    )
    block_recipients: list[ListName] = Field(
        [], description="Lists of recipient addresses or domains that are refused with 550 5.7.1 at RCPT."
    )
    skip_scan: list[ListName] = Field(
        [],
        description="Lists of senders, domains or client networks whose mail is relayed without a scan; a header field "
        "says so. Prefer lists of networks: an envelope sender is easily forged.",
    )
    allow_wins: bool = Field(
        False, description="An entry in a `skip_scan` list takes precedence over one in a `block` list."
    )
    text: str = Field(
        "Refused by the lists of this server",
        min_length=1,
        max_length=400,
        description="Text of the 550 reply; the mail's id is appended.",
    )

    @field_validator("block", "block_recipients", "skip_scan")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len(set(names)) != len(names):
            raise ValueError("a list appears twice")
        return names

    @field_validator("skip_scan")
    @classmethod
    def _one_meaning(cls, names: list[str], info: ValidationInfo) -> list[str]:
        if set(names) & set(info.data.get("block", [])):
            raise ValueError("a list cannot both refuse mail and exempt it from the scan")
        return names

    @field_validator("text")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not re.fullmatch(r"[\x20-\x7e]*", text):
            raise ValueError("the text must be printable ASCII on one line")
        return text

    @property
    def names(self) -> list[str]:
        """All lists, each once."""
        return list(dict.fromkeys([*self.block, *self.block_recipients, *self.skip_scan]))


class Lists(Section):
    allow_plain_http: bool = Field(False, description=ALLOW_PLAIN_HTTP)
    url: str = Field(description="Base URL of the List API.")
    other_urls: list[str] = Field(
        [],
        description="Base URLs of other services with the same database, used in this order while the first one is "
        "unavailable.",
    )
    api_key_file: SecretFile = Field(description=f"File that contains the API key. {FILE_LOOKUP}")
    ca_file: str | None = Field(None, description=CA_FILE)
    refresh: Duration = Field(
        300.0, ge=1, description="How often the local copies of the lists that listeners use are refreshed."
    )
    without_copy: Literal["accept", "tempfail"] = Field(
        "accept",
        description="What happens until the first copy of a blocking list has been fetched. `accept`: the list is not "
        "enforced. `tempfail`: mail is answered with 451 4.3.0.",
    )
    kinds: dict[str, ListKind] = Field(
        {},
        description="Kind of entries in each list (`sender`, `domain` or `network`), by list name. Required if "
        "the category of the list at the service is none of these.",
    )
    block_list: ListName = Field(
        "blocked-senders", description="List to which `scanbridge quarantine block-sender` adds senders."
    )
    allow_list: ListName = Field(
        "allowed-senders", description="List to which `scanbridge quarantine allow-sender` adds senders."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str, info: ValidationInfo) -> str:
        return base_url(url, bool(info.data.get("allow_plain_http")))

    @field_validator("other_urls")
    @classmethod
    def _other_urls(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        found = [base_url(url, bool(info.data.get("allow_plain_http"))) for url in urls]
        if len({info.data.get("url"), *found}) <= len(found):
            raise ValueError("a URL appears twice")
        return found
