"""Two samples of a running daemon, and what happened between them.

A sample consists of /status and /metrics of the admin address. If a counter has decreased, the daemon was restarted:
its value then counts what has happened since.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bridge.observe.admin_client import ask, get
from bridge.runtime.counted import spoken
from bridge.runtime.endpoints import Endpoint

_TIMEOUT_S = 2.0
_QUANTILES = (0.5, 0.99)
_WEEKS_S = 21 * 86400.0  # warn about certificates that expire sooner

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of the daemon at one moment."""

    at: float  # monotonic
    state: dict[str, Any]
    values: dict[str, dict[Labels, float]]

    def get(self, name: str, default: float = 0.0) -> float:
        """The value of a metric without labels."""
        return self.values.get(name, {}).get((), default)

    def by(self, label: str, name: str) -> dict[str, float]:
        """The values of a metric by one label, summed over the others."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found


def take(address: Endpoint) -> Sample | None:
    """None if no daemon answers."""
    state = ask(address, _TIMEOUT_S)
    text = get(address, "/metrics", _TIMEOUT_S) if state is not None else None
    if state is None or text is None:
        return None
    try:
        return Sample(time.monotonic(), state, _parse(text.decode()))
    except ValueError:
        return None


def _parse(text: str) -> dict[str, dict[Labels, float]]:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def between(before: Sample, now: Sample) -> dict[str, Any]:
    """The data for `--json` and for the picture. Rates are per second, times in seconds."""
    state = now.state
    return {
        "up": True,
        "version": state["version"],
        "pid": state["pid"],
        "uptime_s": state["uptime_s"],
        "ready": state["ready"],
        "interval_s": round(now.at - before.at, 3),
        "mails": state.get("mails", {}),
        "in_processing": state["in_processing"],
        "max_in_processing": state["max_in_processing"],
        "bytes_in_processing": state["bytes_in_processing"],
        "bytes_limit": int(now.get("scanbridge_bytes_in_processing_limit")),
        "throttle_delay_s": now.get("scanbridge_throttle_delay_seconds"),
        "saturated_by": [cause for cause, on in now.by("cause", "scanbridge_saturated").items() if on],
        "connections": state["connections"],
        **_rates(before, now),
        **{f"{what}_s": _times(before, now, f"scanbridge_{what}_seconds") for what in ("wait", "scan", "relay")},
        "scanner": state["scanner"],
        "next_hops": _next_hops(before, now),
        "workers": state["workers"],
        "silent_workers": state.get("silent_workers", 0),
        "quarantine": _quarantine(now),
        "lists": _lists(now),
        "loop_lag_s": now.get("scanbridge_event_loop_lag_seconds"),
        "problems": state.get("problems", []),
        "warnings": _warnings(before, now),
    }


def _rates(before: Sample, now: Sample) -> dict[str, Any]:
    def rates(name: str, label: str) -> dict[str, float]:
        return _delta(before, now, f"scanbridge_{name}_total", label)

    decisions = rates("mails", "decision")
    return {
        "mails_per_s": round(sum(decisions.values()), 3),
        "bytes_per_s": round(sum(rates("mail_bytes", "listener").values())),
        "decisions_per_s": decisions,
        "actions_per_s": rates("mails", "action"),
        "replies_per_s": rates("replies", "code"),
        "saturated_replies_per_s": rates("saturated_replies", "stage"),
        "refused_connections_per_s": rates("connections_refused", "reason"),
        "failures_per_s": rates("failures", "reason"),
    }


def _delta(before: Sample, now: Sample, name: str, label: str, **only: str) -> dict[str, float]:
    """Rates per second by one label, of the series that have the labels `only`."""
    seconds, then = max(now.at - before.at, 1e-6), before.values.get(name, {})
    found: dict[str, float] = {}
    for labels, value in now.values.get(name, {}).items():
        pairs = dict(labels)
        if all(pairs.get(key) == wanted for key, wanted in only.items()):
            found[pairs.get(label, "")] = found.get(pairs.get(label, ""), 0.0) + _grown(then.get(labels, 0.0), value)
    return {key: round(value / seconds, 3) for key, value in found.items()}


def _grown(before: float, now: float) -> float:
    return now - before if now >= before else now


def _times(before: Sample, now: Sample, name: str) -> dict[str, float | None]:
    """Median, 99th percentile and mean of the times between the two samples; None if there were none."""
    counts: dict[float, float] = {}
    then = before.values.get(f"{name}_bucket", {})
    for labels, value in now.values.get(f"{name}_bucket", {}).items():
        bound = float(dict(labels)["le"])
        counts[bound] = counts.get(bound, 0.0) + _grown(then.get(labels, 0.0), value)
    buckets = sorted(counts.items())
    total = buckets[-1][1] if buckets else 0.0
    grown = [
        _grown(before.values.get(f"{name}_sum", {}).get(labels, 0.0), value)
        for labels, value in now.values.get(f"{name}_sum", {}).items()
    ]
    return {
        **{f"p{round(q * 100)}": quantile(q, buckets) for q in _QUANTILES},
        "mean": round(sum(grown) / total, 4) if total else None,
    }


def quantile(q: float, buckets: list[tuple[float, float]]) -> float | None:
    """From cumulative counts by upper bound; as Prometheus does, assumes an even spread within a bucket."""
    total = buckets[-1][1] if buckets else 0.0
    if not total:
        return None
    lower = below = 0.0
    for bound, count in buckets:
        if count >= q * total:
            if bound == float("inf"):
                return lower
            return round(lower + (bound - lower) * (q * total - below) / (count - below), 4)
        lower, below = bound, count
    return lower


def _next_hops(before: Sample, now: Sample) -> list[dict[str, Any]]:
    def connections(name: str) -> dict[str, int]:
        rows = now.values.get("scanbridge_next_hop_connections", {}).items()
        return {dict(labels)["state"]: int(value) for labels, value in rows if dict(labels)["next_hop"] == name}

    return [
        {
            "name": name,
            "up": up,
            "age_s": age_s,
            "mails_per_s": _delta(before, now, "scanbridge_next_hop_mails_total", "result", next_hop=name),
            "connections": connections(name),
        }
        for name, up, age_s in ((hop["name"], hop["up"], hop.get("age_s")) for hop in now.state.get("next_hops", ()))
    ]


def _quarantine(now: Sample) -> dict[str, float] | None:
    """None until it has been counted."""
    if "scanbridge_quarantine_mails" not in now.values or () not in now.values["scanbridge_quarantine_mails"]:
        return None
    return {
        "mails": int(now.get("scanbridge_quarantine_mails")),
        "bytes": int(now.get("scanbridge_quarantine_bytes")),
        "oldest_age_s": round(now.get("scanbridge_quarantine_oldest_age_seconds")),
        "disk_free_bytes": int(now.get("scanbridge_quarantine_disk_free_bytes")),
        "disk_size_bytes": int(now.get("scanbridge_quarantine_disk_size_bytes")),
    }


def _lists(now: Sample) -> dict[str, int]:
    """Number of entries by list, if lists are enforced."""
    return {name: int(count) for name, count in now.by("list", "scanbridge_list_entries").items()}


def _warnings(before: Sample, now: Sample) -> list[str]:
    """What an operator must not overlook."""
    state, found = now.state, []
    if state["uptime_s"] < before.state["uptime_s"]:
        found.append("the daemon was restarted")
    found += state.get("warnings", [])
    if (silent := state.get("silent_workers")) and not any(worker["silent_s"] for worker in state["workers"]):
        found.append(f"workers that are not responding: {silent}")
    if (lag := now.get("scanbridge_event_loop_lag_seconds")) > 0.5:
        found.append(f"the event loop was blocked for {lag:.1f} s")
    if _grown(before.get("scanbridge_log_lines_lost_total"), now.get("scanbridge_log_lines_lost_total")):
        found.append("log lines are being lost")
    for labels, end in now.values.get("scanbridge_tls_certificate_expiry_time_seconds", {}).items():
        if (left := end - time.time()) < _WEEKS_S:
            name = dict(labels).get("name", "")
            found.append(f"the certificate of {name} " + (f"expires in {spoken(left)}" if left > 0 else "has expired"))
    return found
