"""A listener that speaks MTA Hooks: who may ask, and what the mail server can do.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bridge.config.fields import FILE_LOOKUP, Section


class Hooks(Section):
    token_file: str = Field(
        description=f"File that contains the token that the mail server sends (`Bearer`). {FILE_LOOKUP}"
    )
    deletes: bool = Field(
        True,
        description="Whether the mail server deletes and changes header fields, and removes recipients, when it is "
        "told to. If false, fields that look like those of the bridge remain in the mail.",
    )
    lossy_content: Literal["tempfail", "scan"] = Field(
        "tempfail",
        description="What to do when Stalwart's copy of a mail is not exact, because the mail contains bytes that are "
        "not UTF-8: defer the mail, or scan the copy.",
    )
