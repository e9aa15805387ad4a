"""The operator's policy: an action for each decision of the service, and for each reason why there may be none.

Part of the configuration (`bridge.config.model`); in its own file because three sections share it.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from bridge.config.fields import Section
from bridge.mail.action import Action
from bridge.runtime.suggestion import did_you_mean

_LIKE_UNAVAILABLE = "Default: the same as `unavailable`."


class PolicyEntry(Section):
    """An action, or an action with its own SMTP code and text."""

    action: Action = Field(description="What to do: relay, reject, discard, quarantine, hold or tempfail.")
    code: int | None = Field(None, ge=400, le=599, description="SMTP reply code for reject and tempfail.")
    text: str | None = Field(None, max_length=400, description="Text of the reply; the mail's id is appended.")
    keep_copy: bool = Field(False, description="Also keep a copy of the mail in the quarantine.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"action": value} if isinstance(value, str) else value

    @field_validator("action", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        names = [str(action) for action in Action]
        if isinstance(value, str) and value not in names:
            raise ValueError(f"expected one of these: {', '.join(names)}{did_you_mean(value, names)}")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> PolicyEntry:
        if self.code is not None:
            wanted = {Action.REJECT: 5, Action.TEMPFAIL: 4}.get(self.action)
            if wanted is None:
                raise ValueError("a code can be set for reject (5xx) and tempfail (4xx) only")
            if self.code // 100 != wanted or self.code == 421 or self.code == 521:
                raise ValueError(
                    f"{self.action} takes a {wanted}xx code other than 421 and 521, which close the connection"
                )
        if self.text is not None and not re.fullmatch(r"[\x20-\x7e]*", self.text):
            raise ValueError("the text must be printable ASCII on one line")
        return self


class Policy(Section):
    deliver: PolicyEntry = Field(PolicyEntry(action=Action.RELAY), description="The service decides `deliver`.")
    quarantine: PolicyEntry = Field(
        PolicyEntry(action=Action.QUARANTINE), description="The service decides `quarantine`."
    )
    bounce: PolicyEntry = Field(PolicyEntry(action=Action.REJECT), description="The service decides `bounce`.")
    drop: PolicyEntry = Field(PolicyEntry(action=Action.DISCARD), description="The service decides `drop`.")
    undecided: PolicyEntry = Field(PolicyEntry(action=Action.TEMPFAIL), description="The service reaches no decision.")
    unavailable: PolicyEntry = Field(
        PolicyEntry(action=Action.TEMPFAIL),
        description="The service gives no answers at all. Each of the next four keys overrides this for one "
        "reason. If only a single mail gets no answer, `failed` applies to it.",
    )
    unreachable: PolicyEntry | None = Field(
        None, description=f"The scanner cannot be reached, or fails (5xx) on every mail. {_LIKE_UNAVAILABLE}"
    )
    deadline: PolicyEntry | None = Field(None, description=f"The scan took too long. {_LIKE_UNAVAILABLE}")
    refused: PolicyEntry | None = Field(
        None,
        description=f"The scanner refuses the bridge's requests, usually because of a wrong token. {_LIKE_UNAVAILABLE}",
    )
    nonsense: PolicyEntry | None = Field(
        None, description=f"The scanner's answer cannot be understood. {_LIKE_UNAVAILABLE}"
    )
    failed: PolicyEntry = Field(
        PolicyEntry(action=Action.TEMPFAIL),
        description="The scanner fails on this mail but not on others (5xx, a lost connection, an unreadable answer). "
        "Unless `deadline` is set, this key also applies if the scan of a mail takes too long and the scanner is not "
        "known to be down. `unavailable` does not apply to such mail: otherwise, a sender could write a mail that is "
        "delivered because it cannot be scanned.",
    )
    saturated: PolicyEntry = Field(
        PolicyEntry(action=Action.TEMPFAIL),
        description="Too much mail is being processed, here or at the scanner. If the action is not `tempfail`, such "
        "mail is accepted at MAIL instead of being refused there.",
    )
    too_large: PolicyEntry = Field(
        PolicyEntry(action=Action.REJECT), description="The mail is larger than `limits.max_message_size`."
    )

    @field_validator("too_large")
    @classmethod
    def _refusing(cls, entry: PolicyEntry) -> PolicyEntry:
        if entry.action not in (Action.REJECT, Action.TEMPFAIL):
            raise ValueError("the content of a mail over the size limit is not kept: use reject or tempfail")
        return entry

    @field_validator(
        *("undecided", "unavailable", "unreachable", "deadline", "refused", "nonsense", "failed", "saturated")
    )
    @classmethod
    def _not_lost(cls, entry: PolicyEntry | None) -> PolicyEntry | None:
        if entry is not None and entry.action is Action.DISCARD:
            raise ValueError("unscanned mail must not be discarded: use tempfail, relay, quarantine or reject")
        return entry

    def overridden_by(self, other: Policy) -> Policy:
        """This policy with every key that `other` sets explicitly taken from there."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})

    def key_for(self, case: str) -> str:
        """The key that decides in this case; `unavailable` if the key of the reason is not set."""
        if case == "slow":
            return "deadline" if self.deadline is not None else "failed"
        return case if getattr(self, case) is not None else "unavailable"

    def entry_for(self, case: str) -> PolicyEntry:
        found = getattr(self, self.key_for(case))
        assert isinstance(found, PolicyEntry)
        return found
