"""The rule that decided on a mail, in words, with the place in the configuration where it can be changed."""

from __future__ import annotations

import re

from bridge.filter import rule_names
from bridge.history.query import CANCELLED
from bridge.mail.action import Action

# What each key of the policy applies to. `tests/history/test_history_story.py` compares them with the configuration.
CASES = {
    "deliver": "the service's decision was `deliver`",
    "quarantine": "the service's decision was `quarantine`",
    "bounce": "the service's decision was `bounce`",
    "drop": "the service's decision was `drop`",
    "undecided": "the service reached no decision",
    "unavailable": "no decision could be obtained",
    "unreachable": "the scanner could not be reached",
    "deadline": "the scan took longer than the deadline",
    "refused": "the scanner refused the request",
    "nonsense": "the scanner's answer could not be understood",
    "failed": "the scanner failed on this mail",
    "saturated": "too much mail was being processed",
    "too_large": "the mail is larger than the scanner accepts",
}
ACTIONS = {
    "relay": "delivered",
    "reject": "refused",
    "discard": "accepted and dropped",
    "quarantine": "quarantined",
    "hold": "put into the mail server's hold queue",
    "tempfail": "deferred",
    CANCELLED: "abandoned by the client",
}
DONE = {**ACTIONS, Action.RELAY.value: "passed on"}  # what we did: a rule does not know whether the mail was delivered
# Why there is no decision, by the names of failures (`error=` in the log), and what else failed.
ERRORS = {
    "unavailable": "it could not be reached, or failed",
    "failed": "it failed on this mail",
    "deadline": "it took longer than the deadline",
    "malformed": "its answer could not be understood",
    "refused": "it refused the request",
    "too_large": "the mail is too large for it",
}
FAILURES = {
    "saturated": "Too much mail was being processed",
    "ambiguous": "Mail programs may interpret its structure differently",
    "spool": "Its content could not be written to the spool",
    "quarantine": "It could not be stored in the quarantine",
    "internal": "An unexpected error occurred",
}
_POLICY = re.compile(r"(?:(listeners|tenants)\.(.+)\.)?policy\.(\w+)")
_PROFILE = re.compile(r"profiles\.(.+)\.(\w+)")


def decided(rule: str, action: str, error: str = "") -> str:
    """A sentence: `Rule policy.bounce applied: ...`; "" if no rule is known. `error`: why there is no decision."""
    if not rule:
        return ""
    done = DONE.get(action, action)
    if found := _POLICY.fullmatch(rule):
        part, name, key = found.groups()
        where = {"listeners": f"the policy of listener {name}", "tenants": f"the policy of tenant {name}"}
        whose = where.get(part, "the policy")
        return f"Rule {rule} applied: {_case(key, error)}, and {whose} says that such mail is {done}."
    if found := _PROFILE.fullmatch(rule):
        name, key = found.groups()
        return (
            f"Rule {rule} applied: {_case(key, error)}, and the {name} profile says that such mail is {done} "
            f"(set policy.{key} to change this)."
        )
    if rule.startswith("lists.") and rule not in rule_names.DOCUMENTED:
        return f"Rule {rule} applied: mail that matches this list is {done} without a scan."
    return f"Rule {rule} applied: {_fixed(rule)}. The mail was {done}."


def chosen(rule: str) -> str:
    """The same for a mail with which it was not done; "" if no rule is known."""
    said = decided(rule, CANCELLED)
    return f"{said.partition(', and ')[0].removesuffix('.')}." if said else ""


def _case(key: str, error: str) -> str:
    if error == "deadline" and key in ("failed", "unavailable"):  # they apply if `deadline` is not set
        key = "deadline"
    return CASES.get(key, key)


def _fixed(rule: str) -> str:
    """Rules that are not part of a policy."""
    documented = rule_names.DOCUMENTED
    if rule in documented:
        return documented[rule].partition(";")[0]
    if rule.endswith(".refuse_ambiguous_mime"):
        return documented["listeners.NAME.refuse_ambiguous_mime"]
    return documented["limits.NAME"] if rule.startswith("limits.") else "the log reference explains this rule"
