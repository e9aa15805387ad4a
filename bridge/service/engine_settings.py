"""The settings of engines: programs and services that the scanning service asks about a mail.

`settings` has the rest of the configuration. What is checked here is checked before the service starts; whether an
engine answers is known only later, and `required` says what happens to mail if it does not.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
)

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.units import Duration, Size

KiB, MiB = 1024, 1024**2


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


AddressField = Annotated[
    Endpoint,
    BeforeValidator(lambda v: Endpoint.parse(v) if isinstance(v, str) else v),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]


class AnalyzerSection(Section):
    """Keys that every analyzer has."""

    required: bool = Field(True, description="If true, a mail without this analyzer's answer is undecided.")
    timeout: Duration = Field(30.0, description="Maximum time to wait for its answer.")


class ClamAv(AnalyzerSection):
    address: AddressField = Field(description="clamd's socket: host:port or unix:/path.")
    max_size: Size = Field(
        50 * MiB, description="clamd's StreamMaxLength; larger mail is not sent and gets the tag `limit:clamav`."
    )


class Rspamd(AnalyzerSection):
    url: str = Field(description="rspamd's normal worker, for example http://127.0.0.1:11333.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not sent and gets the tag `limit:rspamd`.")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        check_url(url, "rspamd's url must be http://host:port", https=False)
        return url.rstrip("/")


class Plugin(AnalyzerSection):
    """A custom analyzer, found as an entry point of this name."""

    options: dict[str, Any] = Field({}, description="Passed to the analyzer's factory.")
    memory: Size = Field(1024 * MiB, description="Address space of each of its processes.")
    processes: int = Field(2, ge=1, le=64, description="Mails analyzed concurrently, unless it is asynchronous.")
    max_size: Size = Field(50 * MiB, description="Larger mail is not passed to it and gets the tag `limit:NAME`.")


def check_url(url: str, rule: str, *, https: bool) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(rule) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise ValueError(rule)
    if parts.username or parts.password:
        raise ValueError("a URL here must not contain a user name or password")
    if https and parts.scheme == "http" and not Endpoint(host=parts.hostname).is_local:
        raise ValueError(rule)
