"""The result of one check, and what to change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`problem`: it does not work, or not safely. `warning`: it works, but needs attention. `note`: good to know."""

    what: str
    problem: str = ""
    detail: str = ""
    warning: str = ""
    note: str = ""

    @classmethod
    def of_setting(cls, name: str, value: str, problem: str) -> Finding:
        """About one setting of a mail server: a problem also says what the value is now."""
        return cls(name, problem, f"now: {value or 'empty'}" if problem else value)

    @property
    def state(self) -> str:
        return "problem" if self.problem else "warning" if self.warning else "note" if self.note else "ok"

    @property
    def text(self) -> str:
        return self.problem or self.warning or self.note

    def __str__(self) -> str:
        state = f"{self.state.upper()}: {self.text}" if self.text else "ok"
        return f"{self.what}: {state}" + (f" ({self.detail})" if self.detail else "")

    def to_dict(self) -> dict[str, str]:
        return {"what": self.what, "state": self.state, "text": self.text, "detail": self.detail}
