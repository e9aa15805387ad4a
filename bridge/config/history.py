"""Whether and for how long the history is kept.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from pydantic import Field

from bridge.config.fields import Section
from bridge.runtime.units import Duration, Size


class History(Section):
    enabled: bool = Field(
        True,
        description="Keep a history of what happened to each mail: its addresses (in the form set by `log.addresses`), "
        "its subject (only with `log.addresses: full`), its decision and its replies, but not its content.",
    )
    retention: Duration = Field(30 * 86400.0, ge=3600, description="How long the history is kept.")
    max_size: Size | None = Field(
        10 * 1024**3,
        ge=10_000_000,
        description="Maximum size of the history on disk; beyond it, the oldest entries are deleted, even if they "
        "are newer than `retention`. A million mails take about 0.8 GB.",
    )
