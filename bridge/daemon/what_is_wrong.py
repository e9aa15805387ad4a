"""What is wrong, in words, from the state of the whole daemon: the first thing that operators read.

`status`, `top`, /readyz and the page at / all show these sentences. A problem means that mail is not scanned, not
delivered, or not accepted; a warning, that something needs attention while mail flows. Reads /status and the
configuration only; other modules have collected the facts. If this is wrong, a bridge that defers all mail looks
healthy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.mail.action import Action
from bridge.runtime.counted import counted, spoken

RECENT_S = 600.0  # older outcomes say nothing about now
_ENOUGH = 3  # mails in a row that are worth a sentence
_EVIDENCE = 10  # and those that say something about all mail: at night, three may be of one sender
_ENOUGH_RECIPIENTS = 10  # the same if every refusal concerns a recipient: spam to invented addresses is common
_NAMED = 3  # domains in one sentence
_EVENTS_LATE_S = 60
_STALE_FACTOR = 3  # a list is stale after this many missed refreshes

_WORDS = {
    Action.TEMPFAIL: "deferred",
    Action.REJECT: "rejected",
    Action.RELAY: "delivered unscanned",
    Action.QUARANTINE: "quarantined unscanned",
    Action.HOLD: "held unscanned",
    Action.DISCARD: "discarded",
}
_BLOCKING = frozenset({Action.TEMPFAIL, Action.REJECT})


@dataclass(frozen=True, slots=True)
class Health:
    problems: tuple[str, ...] = ()  # the worst first
    warnings: tuple[str, ...] = ()
    stops_mail: bool = False  # no mail passes at all


def assess(state: dict[str, Any], conf: Config) -> Health:
    """`state` is that of all workers together."""
    problems: list[str] = [f"NOT ACCEPTING MAIL: {state['phase']}"] if state["phase"] else []
    warnings: list[str] = []
    scanner, stops_scan = _scanner(state["scanner"], conf)
    next_hops, stops_delivery = _next_hops(state["next_hops"], conf, warnings)
    problems += scanner + next_hops
    if not (stops_scan or stops_delivery):
        problems += _deferred(state["recent"])
        problems += _rejected(state["recent"])
    if "scanner" in state["saturated"] and not scanner:
        problems.append("SATURATED: the scanner reports that it is full (RED); new mail is being deferred")
    elif "limit" in state["saturated"]:
        limit = state["max_in_processing"]
        warnings.append(
            f"saturated: the limit of {limit} mails being processed has been reached; new mail is being deferred"
        )
    if state.get("spool_problem"):
        problems.append(
            f"SPOOL: {state['spool_problem']} (spool.directory); large mail is kept in memory, and deferred when there "
            "is no room for it"
        )
    if state["quarantine_problem"]:
        problems.append(f"NOT QUARANTINING: {state['quarantine_problem']}; mail for the quarantine is being deferred")
    warnings += _hosts(state["scanner"]) if not scanner else []
    warnings += _discovery(state.get("discovery", ()))
    warnings += _others(state, conf)
    return Health(tuple(problems), tuple(warnings), bool(state["phase"]) or stops_scan or stops_delivery)


# The scanner


def _scanner(hosts: Sequence[dict[str, Any]], conf: Config) -> tuple[list[str], bool]:
    """The problem if no host scans mail, and whether all mail is then deferred or rejected."""
    if any(not host["problem"] for host in hosts):
        return [], False
    if not hosts:
        actions = _actions(conf, "unreachable")
        return [f"NOT SCANNING: no scanner host has been found in DNS; {_consequence(actions)}"], (actions <= _BLOCKING)
    reasons = dict.fromkeys(_reason(host) for host in hosts)
    actions = set().union(*(_actions(conf, host["case"]) for host in hosts))
    return [f"NOT SCANNING: {', '.join(reasons)}; {_consequence(actions)}"], actions <= _BLOCKING


def _reason(host: dict[str, Any]) -> str:
    problem = str(host["problem"]).replace("the token was refused", "token refused")
    return problem if problem.startswith("token refused") else f"scanner {host['url']}: {problem}"


def _actions(conf: Config, case: str) -> set[Action]:
    """What happens to mail without a decision, at any listener and for any tenant."""
    found = set()
    for listener in conf.listeners:
        if listener.mode == "shadow":
            found.add(Action.RELAY)
            continue
        policies = [conf.policy_for(listener), *(conf.policy_for(listener, tenant) for tenant in conf.tenants)]
        found |= {policy.entry_for(case).action for policy in policies}
        found |= {Action.RELAY} if listener.shadow_percent else set()
    return found


def _consequence(actions: set[Action]) -> str:
    words = [word for action, word in _WORDS.items() if action in actions]
    if len(words) == 1:
        return f"all mail is being {words[0]}"
    return f"mail is being {' or '.join(words)}, depending on the listener and the tenant"


def _hosts(hosts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for host in hosts:
        if host["problem"]:
            yield f"{_reason(host)}; its mail goes to the other scanner hosts"
        elif host.get("status_problem"):
            yield f"scanner {host['url']} does not report its status: {host['status_problem']}"


def _discovery(names: Sequence[dict[str, Any]]) -> Iterator[str]:
    for name in names:
        if name["problem"]:
            yield f"scanner.discovery: {name['url']}: {name['problem']}; keeping {counted(name['hosts'], 'host')}"


# The next hops


def _next_hops(hops: Sequence[dict[str, Any]], conf: Config, warnings: list[str]) -> tuple[list[str], bool]:
    """A problem for each group of next hops in which none is up, and whether no mail at all can be delivered."""
    if conf.relay is None or not any(listener.hands_on for listener in conf.listeners):
        return [], False
    down = {hop["name"]: hop["problem"] or "it does not answer" for hop in hops if hop["up"] is False}
    groups = _groups(conf)
    problems = []
    for names, domains in groups.items():
        reasons = [f"next hop {name} cannot be used ({down[name]})" for name in names if name in down]
        if len(reasons) == len(names):
            which = _which_mail(conf, domains, len(groups))
            problems.append(f"NOT DELIVERING: {', '.join(reasons)}; {which} is being deferred")
        else:
            warnings += [f"{reason}; its mail goes to the other next hops" for reason in reasons]
    has_others = not all(listener.hands_on for listener in conf.listeners)
    return problems, len(problems) == len(groups) and not has_others


def _groups(conf: Config) -> dict[tuple[str, ...], list[str]]:
    """Next hops that stand in for each other, and the domains whose mail they get (none for the default)."""
    assert conf.relay is not None
    groups: dict[tuple[str, ...], list[str]] = {tuple(map(str, conf.relay.hops)): []}
    for domain, hops in wiring.hops_by_domain(conf).items():
        groups.setdefault(tuple(map(str, hops)), []).append(domain)
    return groups


def _which_mail(conf: Config, domains: list[str], groups: int) -> str:
    if domains:
        more = f" and {counted(len(domains) - _NAMED, 'more domain')}" if len(domains) > _NAMED else ""
        return f"mail for {', '.join(domains[:_NAMED])}{more}"
    if groups > 1:
        return "mail for all domains without a route"
    is_mixed = not all(listener.hands_on for listener in conf.listeners)
    return "all mail received by SMTP or LMTP" if is_mixed else "all mail"


# Mail, and everything else


def _deferred(recent: Sequence[Sequence[Any]]) -> Iterator[str]:
    """`recent` is ordered by time, and has no outcome that is too old."""
    reasons = [str(reason) for _, reason, _ in recent]
    if len(reasons) >= _ENOUGH and all(reasons):
        minutes = int((time.monotonic() - recent[-1][0]) / 60)
        age = f" {counted(minutes, 'minute')} ago" if minutes else ""  # no mail since then: the problem may be over
        yield (
            f"DEFERRING {_which(len(reasons))}: {_of_all(recent)} were deferred, "
            f"the last one{age} with error={reasons[-1]}"
        )


def _rejected(recent: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Counts only mail that was offered to a next hop; a problem if all of it was answered with a 5xx."""
    offered = [outcome for outcome in recent if outcome[2] is not None]
    refusals = [str(refusal) for _, _, refusal in offered]
    about_recipients = all(" 5.1." in refusal or " 5.2." in refusal for refusal in refusals)
    if len(refusals) >= (_ENOUGH_RECIPIENTS if about_recipients else _ENOUGH) and all(refusals):
        yield (
            f"REJECTING {_which(len(refusals))}: the next hop rejected {_of_all(offered)}, "
            f"the last one with {refusals[-1]}; see `reply=` in the log"
        )


def _which(count: int) -> str:
    return "ALL MAIL" if count >= _EVIDENCE else "MAIL"


def _of_all(outcomes: Sequence[Sequence[Any]]) -> str:
    """How many there were, and since when; all of them failed."""
    minutes = max(1, math.ceil((time.monotonic() - outcomes[0][0]) / 60))
    period = "minute" if minutes == 1 else f"{minutes} minutes"
    return f"{len(outcomes)} of {len(outcomes)} mails in the last {period}"


def _others(state: dict[str, Any], conf: Config) -> Iterator[str]:
    if not state["reload"]["ok"]:
        first = state["reload"]["problem"].partition("\n")[0]
        yield f"the last reload failed, and the old configuration is still in use: {first}"
    if state["history"]["problem"]:
        yield f"mails are not being recorded in the history: {state['history']['problem']}"
    wanted = state.get("workers_wanted", 1)
    if len(state["workers"]) < wanted:
        yield f"only {len(state['workers'])} of {wanted} workers are running"
    for worker in state["workers"]:
        if worker["silent_s"]:
            yield f"worker {worker['pid']} has not responded for {worker['silent_s']} s"
    for copy in state["lists"]:
        yield from _list(copy, conf)
    yield from _people(state)
    yield from _events(state)


def _list(copy: dict[str, Any], conf: Config) -> Iterator[str]:
    name = f"list {copy['name']}" + (f" of tenant {copy['tenant']}" if copy["tenant"] else "")
    assert conf.lists is not None
    if copy["entries"] is None:
        doors = [listener.lists for listener in conf.listeners if listener.lists is not None]
        blocks = any(copy["name"] in (*each.block, *each.block_recipients) for each in doors)
        defers = conf.lists.without_copy == "tempfail" and blocks  # without one of skip_scan, mail is scanned
        effect = "mail that it applies to is being deferred" if defers else "it is not enforced"
        yield f"{name} has no local copy: {effect}"
    elif copy["age_s"] > _STALE_FACTOR * conf.lists.refresh:
        problem = f" ({copy['problem']})" if copy["problem"] else ""
        yield f"{name} is stale: its copy is {spoken(copy['age_s'])} old{problem}"


def _people(state: dict[str, Any]) -> Iterator[str]:
    if problem := state.get("personal_lists", {}).get("problem"):
        yield f"{problem}: changes to personal lists are not enforced"
    feedback = state.get("feedback", {})
    if feedback.get("problem"):
        yield f"{counted(feedback['waiting'], 'report')} waiting to be processed: {feedback['problem']}"


def _events(state: dict[str, Any]) -> Iterator[str]:
    if problem := state.get("events_problem"):
        yield f"events cannot be recorded: {problem}"
    for sink in state.get("events", ()):
        if sink["problem"] and sink["oldest_s"] > _EVENTS_LATE_S:
            yield (
                f"event sink {sink['name']}: {counted(sink['waiting'], 'event')} waiting, "
                f"the oldest for {sink['oldest_s']} s: {sink['problem']}"
            )
        if sink["dead"]:
            yield f"event sink {sink['name']}: {counted(sink['dead'], 'dead letter')}; see `scanbridge events dead`"


def recent_of(lists: Sequence[Sequence[Sequence[Any]]], last: int) -> list[list[Any]]:
    """The latest outcomes of all workers, by time."""
    oldest = time.monotonic() - RECENT_S
    found = [list(entry) for entries in lists for entry in entries if entry[0] >= oldest]
    return sorted(found, key=lambda entry: entry[0])[-last:]


def merged_hops(hops: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each name: down if any worker has found it down, up if any has found it up; the newest of them."""
    found: dict[str, dict[str, Any]] = {}
    for hop in hops:
        other = found.setdefault(hop["name"], {**hop, "busy": 0})
        other["busy"] += hop["busy"]
        if hop["up"] is other["up"]:
            other["age_s"] = min((age for age in (other["age_s"], hop["age_s"]) if age is not None), default=None)
        elif other["up"] is None or hop["up"] is False:
            other["up"], other["problem"], other["age_s"] = hop["up"], hop["problem"] or other["problem"], hop["age_s"]
    return list(found.values())
