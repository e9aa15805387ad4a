"""The decision table: which tags and scores lead to which decision.

`DEFAULT_RULES` is what the service decides if nothing else is configured; `docs/operate/service.md` shows it. If this
file is wrong, mail is delivered that should not be, or the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pydantic import Field, FiniteFloat, model_validator

from bridge.api.scanning import Decision
from bridge.service.section import Section


class DecisionRule(Section):
    """One row of the decision table: all given conditions must hold."""

    tags: list[str] = Field([], description="At least one tag matches one of these patterns (`*` is a wildcard).")
    score: FiniteFloat | None = Field(None, description="The sum of all scores is at least this.")
    verdict: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="The verdict to report.")
    decision: Decision

    @model_validator(mode="after")
    def _has_condition(self) -> DecisionRule:
        if not self.tags and self.score is None:
            raise ValueError("a rule needs tags, a score, or both")
        return self


DEFAULT_RULES = [
    DecisionRule(tags=["malware:*"], verdict="malware", decision=Decision.QUARANTINE),
    DecisionRule(tags=["list:blocked-*"], verdict="blocked", decision=Decision.BOUNCE),
    DecisionRule(tags=["spam:gtube", "rspamd:reject"], verdict="spam", decision=Decision.BOUNCE),
    DecisionRule(tags=["list:personal-blocked-*"], verdict="blocked", decision=Decision.QUARANTINE),
    DecisionRule(tags=["incomplete"], verdict="incomplete", decision=Decision.UNDECIDED),
    DecisionRule(tags=["list:allowed-*"], verdict="allowed", decision=Decision.DELIVER),
    DecisionRule(tags=["rspamd:soft-reject"], verdict="deferred", decision=Decision.UNDECIDED),
    DecisionRule(tags=["phishing:likely"], verdict="phishing", decision=Decision.QUARANTINE),
    DecisionRule(tags=["list:personal-allowed-*"], verdict="allowed", decision=Decision.DELIVER),
    DecisionRule(score=15.0, verdict="spam", decision=Decision.BOUNCE),
    DecisionRule(score=8.0, verdict="suspicious", decision=Decision.QUARANTINE),
]


class Decisions(Section):
    rules: list[DecisionRule] = Field(DEFAULT_RULES, description="The first rule that matches applies.")
    scores: dict[str, FiniteFloat] = Field({}, description="Scores of tags, where they differ from the default.")
    otherwise: Decision = Field(Decision.DELIVER, description="Decision when no rule matches (verdict `clean`).")

    def allowing(self, lists: Iterable[str]) -> frozenset[str]:
        """Those lists that can get a mail delivered: a rule that delivers names the tag `list:NAME`."""
        patterns = [tag for rule in self.rules if rule.decision is Decision.DELIVER for tag in rule.tags]
        return frozenset(name for name in lists if any(fnmatchcase(f"list:{name}", tag) for tag in patterns))
