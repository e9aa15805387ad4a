"""Feedback: where mail goes that people report as spam, or as not spam.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from bridge.config.fields import ALLOW_PLAIN_HTTP, CA_FILE, FILE_LOOKUP, SecretFile, Section, base_url
from bridge.runtime.units import Duration, Size

_MIB = 1024 * 1024


class Learning(Section):
    allow_plain_http: bool = Field(False, description=ALLOW_PLAIN_HTTP)
    url: str = Field(description="rspamd's controller, for example http://127.0.0.1:11334.")
    password_file: SecretFile | None = Field(
        None, description=f"File that contains the controller's `enable_password`, or its `password`. {FILE_LOOKUP}"
    )
    ca_file: str | None = Field(None, description=CA_FILE)
    timeout: Duration = Field(10.0, gt=0, le=300, description="Maximum time for one mail.")
    retry_interval: Duration = Field(
        30.0, ge=1, le=3600, description="Time between attempts to learn from reported mail that is waiting."
    )
    max_size: Size = Field(10 * _MIB, ge=1, le=50 * _MIB, description="Nothing is learned from larger mail.")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str, info: ValidationInfo) -> str:
        return base_url(url, bool(info.data.get("allow_plain_http")))


class Feedback(Section):
    report_to: str | None = Field(
        None,
        pattern=r"^[^\s@<>]+@[^\s@<>]+$",
        max_length=254,
        description="Mail address to which each reported mail is sent, as an attachment, through `relay.next_hop`. "
        "Default: `console.report_to`.",
    )
    rspamd: Learning | None = Field(None, description="Have this rspamd learn from reported mail.")
    scanner: bool | None = Field(
        None,
        description="Have the included scanning service, at `scanner.urls`, learn from reported mail; its token needs "
        "the `feedback` permission. Default: only if the service is embedded.",
    )
    retention: Duration = Field(
        90 * 86400.0,
        ge=86400,
        description="How long reports are remembered, so that nothing is learned twice from the same report.",
    )
