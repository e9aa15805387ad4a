"""The operator's policy: an action for each decision and for each way to have none.

Part of the configuration (`bridge.config.model`), apart because three sections share it.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from bridge.config.fields import Section
from bridge.mail.action import Action


class Outcome(Section):
    """An action, or an action with its own SMTP code and text."""

    action: Action = Field(description="What is done: relay, reject, discard, quarantine, hold or tempfail.")
    code: int | None = Field(None, ge=400, le=599, description="SMTP reply code of reject and tempfail.")
    text: str | None = Field(None, max_length=400, description="Text of the reply; our id is added.")
    keep_copy: bool = Field(False, description="Also keep the mail in the quarantine.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"action": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _agrees(self) -> Outcome:
        if self.code is not None:
            wanted = {Action.REJECT: 5, Action.TEMPFAIL: 4}.get(self.action)
            if wanted is None:
                raise ValueError("a code can be given for reject (5xx) and tempfail (4xx) only")
            if self.code // 100 != wanted or self.code == 421 or self.code == 521:
                raise ValueError(f"{self.action} takes a {wanted}xx code, and not 421 or 521, which hang up")
        if self.text is not None and not re.fullmatch(r"[\x20-\x7e]*", self.text):
            raise ValueError("the text must be printable ASCII on one line")
        return self


class Policy(Section):
    deliver: Outcome = Field(Outcome(action=Action.RELAY), description="The service says deliver.")
    quarantine: Outcome = Field(Outcome(action=Action.QUARANTINE), description="The service says quarantine.")
    bounce: Outcome = Field(Outcome(action=Action.REJECT), description="The service says bounce.")
    drop: Outcome = Field(Outcome(action=Action.DISCARD), description="The service says drop.")
    undecided: Outcome = Field(Outcome(action=Action.TEMPFAIL), description="The service cannot tell.")
    unavailable: Outcome = Field(
        Outcome(action=Action.TEMPFAIL),
        description="No decision could be had. The next four say it for one reason each, wherever they are set.",
    )
    unreachable: Outcome | None = Field(
        None, description="The scanner cannot be reached, fails (5xx) or hangs up; as `unavailable` when absent."
    )
    deadline: Outcome | None = Field(None, description="The scan took too long; as `unavailable` when absent.")
    refused: Outcome | None = Field(
        None, description="The scanner refuses us (a wrong token, most of all); as `unavailable` when absent."
    )
    nonsense: Outcome | None = Field(None, description="The answer cannot be read; as `unavailable` when absent.")
    saturated: Outcome = Field(
        Outcome(action=Action.TEMPFAIL),
        description="Too much mail in processing, here or at the scanner. Anything but tempfail lets mail in that "
        "would have been refused at MAIL.",
    )
    too_large: Outcome = Field(Outcome(action=Action.REJECT), description="The mail is over the size limit.")

    @field_validator("too_large")
    @classmethod
    def _refusing(cls, outcome: Outcome) -> Outcome:
        if outcome.action not in (Action.REJECT, Action.TEMPFAIL):
            raise ValueError("a mail over the limit is not kept, so it can only be rejected or tempfailed")
        return outcome

    @field_validator("unreachable", "deadline", "refused", "nonsense", "saturated")
    @classmethod
    def _not_lost(cls, outcome: Outcome | None) -> Outcome | None:
        if outcome is not None and outcome.action is Action.DISCARD:
            raise ValueError("mail that was not scanned is not thrown away: tempfail, relay, quarantine or reject")
        return outcome

    def overridden_by(self, other: Policy) -> Policy:
        """This policy with every key that `other` sets explicitly taken from there."""
        return self.model_copy(update={name: getattr(other, name) for name in other.model_fields_set})

    def outcome(self, case: str) -> Outcome:
        """Of one key; a reason that nobody spoke of is `unavailable`."""
        found = getattr(self, case)
        return found if isinstance(found, Outcome) else self.unavailable
