"""The operator's lists: where the service keeps them, and which of them a listener enforces.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from bridge.config.fields import ALLOW_PLAIN_HTTP, Section, base_url
from bridge.runtime.units import Duration

ListName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*\S)?$")]
ListKind = Literal["sender", "domain", "network"]


class DoorLists(Section):
    block: list[ListName] = Field(
        [], description="Lists of senders, domains or client networks: 550 5.7.1 at MAIL, of a tenant's at RCPT."
    )
    block_recipients: list[ListName] = Field(
        [], description="Lists of addresses or domains that get no mail: 550 5.7.1 at RCPT."
    )
    skip_scan: list[ListName] = Field(
        [],
        description="Mail from who is on one of these is relayed without a scan, and its header says so. Best a list "
        "of networks: anybody can write any sender into an envelope.",
    )
    allow_wins: bool = Field(False, description="Who is on a list of `skip_scan` is not refused by one of `block`.")
    text: str = Field(
        "Refused by the lists of this server", min_length=1, max_length=400, description="Of the 550; our id is added."
    )

    @field_validator("block", "block_recipients", "skip_scan")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len(set(names)) != len(names):
            raise ValueError("the same list stands there twice")
        return names

    @field_validator("skip_scan")
    @classmethod
    def _one_meaning(cls, names: list[str], info: ValidationInfo) -> list[str]:
        if set(names) & set(info.data.get("block", [])):
            raise ValueError("a list cannot both refuse mail and free it from the scan")
        return names

    @field_validator("text")
    @classmethod
    def _printable(cls, text: str) -> str:
        if not re.fullmatch(r"[\x20-\x7e]*", text):
            raise ValueError("the text must be printable ASCII on one line")
        return text

    @property
    def names(self) -> list[str]:
        """All of them, once."""
        return list(dict.fromkeys([*self.block, *self.block_recipients, *self.skip_scan]))


class Lists(Section):
    allow_plain_http: bool = Field(False, description=ALLOW_PLAIN_HTTP)
    url: str = Field(description="Base address of the List API.")
    api_key_file: str = Field(
        description="File with the API key. Looked for in $CREDENTIALS_DIRECTORY, then beside this file."
    )
    ca_file: str | None = Field(None, description="Certificates to trust in place of the system's.")
    refresh: Duration = Field(
        300.0, ge=1, description="How often the local copies of lists that listeners name are made anew."
    )
    without_copy: Literal["accept", "tempfail"] = Field(
        "accept",
        description="Until there is a first copy of a list that blocks: `accept` mail unhindered, or 451 4.3.0.",
    )
    kinds: dict[str, ListKind] = Field(
        {},
        description="What the entries of a list are (`sender`, `domain`, `network`), where the service's own category "
        "does not say it in these words.",
    )
    block_list: ListName = Field("blocked-senders", description="Where `scanbridge quarantine block-sender` adds.")
    allow_list: ListName = Field("allowed-senders", description="Where `scanbridge quarantine allow-sender` adds.")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str, info: ValidationInfo) -> str:
        return base_url(url, bool(info.data.get("allow_plain_http")))
