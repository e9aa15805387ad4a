"""Personal lists: what the entries of single recipients may do, and who may add them.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.config.fields import Section

AllowedBy = Literal["users", "administrators", "nobody"]


class PersonalLists(Section):
    block: Literal["quarantine", "discard"] = Field(
        "quarantine",
        description="What happens to mail from a sender that the recipient has blocked. Other recipients of the mail "
        "are not affected.",
    )
    allow_by: AllowedBy = Field(
        "administrators",
        description="Who may add entries that allow a sender. `users`: the recipients themselves. `administrators`: "
        "only administrators, on their own initiative or at a user's request. `nobody`: no one, and existing entries "
        "have no effect.",
    )
    allow_verdicts: list[str] = Field(
        ["spam", "bulk"],
        description="Mail with one of these verdicts is delivered if its recipient has allowed the sender. Mail "
        "in which [something dangerous](../operate/personal-lists.md#limits-of-allow-entries) was found is "
        "never delivered, regardless of its verdict.",
    )
    max_entries: int = Field(200, ge=1, le=10_000, description="Maximum number of entries for one recipient.")

    @field_validator("allow_verdicts")
    @classmethod
    def _verdicts(cls, verdicts: list[str]) -> list[str]:
        for verdict in verdicts:
            if not verdict.strip() or any(word in verdict.lower() for word in ("malware", "virus", "phish", "block")):
                raise ValueError(f"a personal entry must not deliver mail with the verdict {verdict!r}")
        return verdicts

    def overridden_by(self, other: PersonalLists) -> PersonalLists:
        """This section with every key that `other` sets explicitly taken from there."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})
