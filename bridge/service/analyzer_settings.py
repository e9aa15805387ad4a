"""The settings of the analyzers: what the service itself looks at in a mail, and which engines it asks.

`engine_settings` has the keys of each engine. A section that is absent or null switches its analyzer off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from bridge.runtime.units import Duration, Size
from bridge.service.engine_settings import (
    AddressField,
    AnalyzerSection,
    ClamAv,
    Hooks,
    Icap,
    Plugin,
    Rspamd,
    SpamAssassin,
    Yara,
)
from bridge.service.section import Section

KiB, MiB = 1024, 1024**2


class Mime(AnalyzerSection):
    timeout: Duration = 20.0
    max_parts: int = Field(2000, ge=1, description="Maximum number of MIME parts in one mail.")
    max_depth: int = Field(30, ge=1, description="Maximum levels of MIME nesting.")
    max_header_size: Size = Field(
        256 * KiB, description="Maximum size of the header section of the mail or of one part."
    )
    max_archive_depth: int = Field(4, ge=0, description="Maximum levels of archives within archives.")
    max_archive_members: int = Field(10_000, ge=1, description="Maximum number of members of all archives together.")
    max_extracted_size: Size = Field(
        256 * MiB, description="Maximum size of everything unpacked from all archives together."
    )
    libarchive: Literal["auto"] | bool = Field(
        "auto", description="Opens RAR, 7z, cab, ISO and other archives; auto: if the `archives` extra is installed."
    )
    qr_codes: Literal["auto"] | bool = Field(
        "auto", description="Reads QR codes in images; auto: if the `pictures` extra is installed."
    )
    office: bool = Field(True, description="Reads Office documents and RTF: macros, links, embedded files.")
    pdf: bool = Field(True, description="Reads PDF documents: links, actions, embedded files.")
    scripts: bool = Field(True, description="Searches attached pages for forms and for files that scripts build.")


class Urls(AnalyzerSection):
    timeout: Duration = 20.0
    max_urls: int = Field(
        5000, ge=1, description="Maximum number of different hosts in links; a mail with more is `incomplete`."
    )


class HeadersAnalyzer(AnalyzerSection):
    timeout: Duration = 20.0


class Phishing(AnalyzerSection):
    required: bool = Field(False, description="If true, mail is undecided when the search for phishing fails.")
    timeout: Duration = 20.0
    profile: Literal["cautious", "balanced", "strict"] = Field(
        "balanced", description="How sure the model must be before a mail is quarantined."
    )
    model_file: str | None = Field(None, description="Your own model, from `tools/train.py`.")
    use_model: bool = Field(True, description="If false, signals add only their tags, without a score.")
    ignore: list[str] = Field([], description="Tags of signals that are switched off.")
    learn: bool = Field(True, description="If false, people's reports are refused, and earlier ones do not count.")
    _directory: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _place(self, info: ValidationInfo) -> Phishing:
        self._directory = Path((info.context or {}).get("directory") or "")
        return self

    @property
    def model_path(self) -> str:
        """Empty: the shipped model."""
        return str(self._directory / self.model_file) if self.model_file else ""


class Authentication(AnalyzerSection):
    required: bool = False
    timeout: Duration = 10.0
    dns: bool = Field(False, description="Allows DNS queries, which SPF, DKIM and DMARC require.")
    nameservers: list[AddressField] = Field([], description="Name servers to query instead of the system's.")


class Analyzers(Section):
    mime: Mime | None = Mime()
    urls: Urls | None = Urls()
    headers: HeadersAnalyzer | None = HeadersAnalyzer()
    phishing: Phishing | None = Phishing()
    authentication: Authentication | None = None
    clamav: ClamAv | None = None
    rspamd: Rspamd | None = None
    icap: Icap | None = None
    spamassassin: SpamAssassin | None = None
    yara: Yara | None = None
    hooks: Hooks = Field({})
    plugins: dict[str, Plugin] = Field({})
    processes: int = Field(2, ge=1, le=64, description="Number of processes that inspect large mail and archives.")
    process_memory: Size = Field(1024 * MiB, description="Maximum address space of each of these processes.")

    @field_validator("plugins")
    @classmethod
    def _other_names(cls, plugins: dict[str, Plugin], info: ValidationInfo) -> dict[str, Plugin]:
        if both := set(plugins) & set(info.data.get("hooks", ())):
            raise ValueError(f"a hook has the same name: {min(both)}")
        return plugins
