"""Generates dashboard.json, for Grafana 9 and later, from the table below. `make docs` runs it.

A panel has a title, a unit, and queries with their legends; `$instance` and the rate window are Grafana variables.
A test runs every query against a real Prometheus and expects data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboard.json")
WINDOW = "$__rate_interval"
HERE = 'instance=~"$instance"'

Queries = list[tuple[str, str]]  # expression, legend


def rate(metric: str, by: str, condition: str = "") -> tuple[str, str]:
    """Rate per second, one line per value of the label."""
    inside = f"{HERE}, {condition}" if condition else HERE
    return f"sum by ({by}) (rate({metric}{{{inside}}}[{WINDOW}]))", f"{{{{{by}}}}}"


def level(metric: str, by: str = "", how: str = "sum") -> tuple[str, str]:
    """Current value; `by` may name several labels, separated by commas."""
    names = [name.strip() for name in by.split(",") if name.strip()]
    legend = " ".join(f"{{{{{name}}}}}" for name in names) or metric.removeprefix("scanbridge_").replace("_", " ")
    grouping = f" by ({by})" if by else ""
    return f"{how}{grouping} ({metric}{{{HERE}}})", legend


def times(metric: str) -> Queries:
    """Median, 95th and 99th percentile."""
    buckets = f"sum by (le) (rate({metric}_bucket{{{HERE}}}[{WINDOW}]))"
    return [(f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}") for share in (0.5, 0.95, 0.99)]


def total(*metrics: str) -> str:
    return " + ".join(f"sum(rate({metric}[{WINDOW}]))" for metric in metrics)


_REPLIES, _EARLY = f"scanbridge_replies_total{{{HERE}}}", f"scanbridge_saturated_replies_total{{{HERE}}}"
_DEFERRED = f'scanbridge_replies_total{{{HERE}, code="4xx"}}'


def of_service(metric: str, legend: str, how: str = "sum") -> tuple[str, str]:
    """A value of API nodes or workers, which are no instances of the variable; 0 without a cluster."""
    return f"{how}(scanservice_{metric}) or vector(0)", legend


# Rows of panels: title, unit, queries. A unit that ends in "!" makes a single number of the panel.
ROWS: list[tuple[str, list[tuple[str, str, Queries]]]] = [
    (
        "At a glance",
        [
            ("Up", "none!", [(f'min(up{{job="scanbridge", {HERE}}})', "up")]),
            ("Mail", "ops!", [(total(f"scanbridge_mails_total{{{HERE}}}"), "mails")]),
            (
                "Deferred",
                "percentunit!",
                [(f"({total(_DEFERRED, _EARLY)}) / ({total(_REPLIES, _EARLY)})", "4xx")],
            ),
            (
                "Slots in use",
                "percentunit!",
                [
                    (
                        f"sum(scanbridge_in_processing{{{HERE}}}) / sum(scanbridge_in_processing_limit{{{HERE}}})",
                        "in processing",
                    )
                ],
            ),
            (
                "Scanner hosts not in use",
                "none!",
                [(f"count(scanbridge_scanner_circuit{{{HERE}}} > 0) or vector(0)", "")],
            ),
            (
                "First certificate expires in",
                "s!",
                [(f"min(scanbridge_tls_certificate_expiry_time_seconds{{{HERE}}}) - time()", "")],
            ),
        ],
    ),
    (
        "Mail",
        [
            ("Actions", "ops", [rate("scanbridge_mails_total", "action")]),
            ("Decisions", "ops", [rate("scanbridge_mails_total", "decision")]),
            ("Replies", "ops", [rate("scanbridge_replies_total", "code"), (total(_EARLY), "451 at MAIL")]),
            ("Errors", "ops", [rate("scanbridge_failures_total", "reason")]),
            (
                "Accepted for some recipients only",
                "ops",
                [(f"sum(rate(scanbridge_mixed_mails_total{{{HERE}}}[{WINDOW}]))", "mixed")],
            ),
            ("By listener", "ops", [rate("scanbridge_mails_total", "listener")]),
            ("Bytes", "Bps", [rate("scanbridge_mail_bytes_total", "listener")]),
            ("Shadow mode: action that would be taken", "ops", [rate("scanbridge_shadow_mails_total", "would")]),
        ],
    ),
    (
        "Load",
        [
            (
                "In processing",
                "none",
                [
                    level("scanbridge_in_processing"),
                    level("scanbridge_in_processing_limit"),
                    level("scanbridge_in_processing_adaptive_limit"),
                ],
            ),
            (
                "Bytes in processing",
                "bytes",
                [level("scanbridge_bytes_in_processing"), level("scanbridge_bytes_in_processing_limit")],
            ),
            ("Throttle delay of the next mail", "s", [level("scanbridge_throttle_delay_seconds", how="max")]),
            ("Saturated", "none", [level("scanbridge_saturated", "cause", "max")]),
            ("Refused when saturated", "ops", [rate("scanbridge_saturated_replies_total", "stage")]),
        ],
    ),
    (
        "Times",
        [
            ("Waiting in the throttle", "s", times("scanbridge_wait_seconds")),
            ("Scanning", "s", times("scanbridge_scan_seconds")),
            ("Relaying", "s", times("scanbridge_relay_seconds")),
        ],
    ),
    (
        "Scanner",
        [
            ("Circuit: 0 closed, 1 half open, 2 open", "none", [level("scanbridge_scanner_circuit", "host", "max")]),
            (
                "Status: 0 GREEN, 1 YELLOW, 2 RED, -1 unknown",
                "none",
                [level("scanbridge_scanner_status", "host", "max")],
            ),
            ("Requests in flight", "none", [level("scanbridge_scanner_in_flight", "host")]),
            (
                "Late decisions",
                "ops",
                [rate("scanbridge_late_mails_total", "late"), rate("scanbridge_late_scans_total", "end")],
            ),
            ("Late scans running", "none", [level("scanbridge_late_scans_running")]),
        ],
    ),
    (
        "Next hops",
        [
            ("Reachable", "none", [level("scanbridge_next_hop_up", "next_hop", "min")]),
            (
                "Results",
                "ops",
                [
                    (
                        f"sum by (next_hop, result) (rate(scanbridge_next_hop_mails_total{{{HERE}}}[{WINDOW}]))",
                        "{{next_hop}} {{result}}",
                    )
                ],
            ),
            ("Connections", "none", [level("scanbridge_next_hop_connections", "next_hop, state")]),
        ],
    ),
    (
        "Quarantine",
        [
            ("Mails", "none", [level("scanbridge_quarantine_mails", "instance")]),
            (
                "Bytes",
                "bytes",
                [level("scanbridge_quarantine_bytes"), level("scanbridge_quarantine_limit_bytes")],
            ),
            ("Oldest mail", "s", [level("scanbridge_quarantine_oldest_age_seconds", "instance", "max")]),
            (
                "Disk",
                "bytes",
                [level("scanbridge_quarantine_disk_free_bytes"), level("scanbridge_quarantine_disk_size_bytes")],
            ),
        ],
    ),
    (
        "Digests",
        [
            ("Digests to users", "ops", [rate("scanbridge_digests", "result")]),
            ("Time since the last run", "s", [level("scanbridge_digests_last_run_age_seconds", "instance", "max")]),
            ("Requests waiting for a releaser", "none", [level("scanbridge_digests_requests_waiting", "instance")]),
        ],
    ),
    (
        "Enforced lists",
        [
            (
                "Matches",
                "ops",
                [
                    (
                        f"sum by (list, action) (rate(scanbridge_list_matches_total{{{HERE}}}[{WINDOW}]))",
                        "{{list}} {{action}}",
                    )
                ],
            ),
            ("Entries", "none", [level("scanbridge_list_entries", "list", "max")]),
            ("Age of the local copy", "s", [level("scanbridge_list_age_seconds", "list", "max")]),
            ("Scopes without a copy", "none", [level("scanbridge_list_copies_missing", "list", "max")]),
            ("Refreshes", "ops", [rate("scanbridge_list_refreshes_total", "outcome")]),
        ],
    ),
    (
        "History",
        [
            ("Mails recorded", "ops", [rate("scanbridge_history_total", "result", 'result=~"written|summed"')]),
            ("Mails not recorded", "ops", [rate("scanbridge_history_total", "result", 'result=~"overflow|failed"')]),
            ("Size of the history", "bytes", [level("scanbridge_history_bytes", "instance", "max")]),
        ],
    ),
    (
        "Process",
        [
            ("Connections", "none", [level("scanbridge_connections", "listener")]),
            ("Connections refused", "ops", [rate("scanbridge_connections_refused_total", "reason")]),
            ("Event loop lag", "s", [level("scanbridge_event_loop_lag_seconds", "instance", "max")]),
            ("CPU", "percentunit", [rate("process_cpu_seconds_total", "instance", 'job="scanbridge"')]),
            ("Memory", "bytes", [level("process_resident_memory_bytes", "instance")]),
            ("File descriptors", "none", [level("process_open_fds", "instance"), level("process_max_fds")]),
            (
                "Workers",
                "none",
                [
                    level("scanbridge_workers"),
                    level("scanbridge_workers_silent"),
                    (f"sum(increase(scanbridge_worker_restarts_total{{{HERE}}}[{WINDOW}]))", "restarts"),
                ],
            ),
            (
                "Log lines lost or suppressed",
                "ops",
                [
                    (f"sum(rate(scanbridge_log_lines_lost_total{{{HERE}}}[{WINDOW}]))", "lost"),
                    (f"sum(rate(scanbridge_log_lines_held_back_total{{{HERE}}}[{WINDOW}]))", "held back"),
                ],
            ),
            (
                "Time since last reload",
                "s",
                [(f"time() - max by (instance) (scanbridge_config_reload_time_seconds{{{HERE}}})", "{{instance}}")],
            ),
            ("Last reload succeeded", "none", [level("scanbridge_config_reload_success", "instance", "min")]),
            ("Version", "none", [level("scanbridge_build_info", "instance, version")]),
            (
                "Certificates expire in",
                "s",
                [
                    (
                        f"min by (role, name) (scanbridge_tls_certificate_expiry_time_seconds{{{HERE}}}) - time()",
                        "{{role}} {{name}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Cluster",
        [
            ("Mail by bridge", "ops", [rate("scanbridge_mails_total", "instance")]),
            (
                "Analysis workers",
                "none",
                [
                    of_service("workers", "seen by an API node", "max"),
                    of_service("queue_connected", "connected to NATS"),
                ],
            ),
            (
                "Slots of all workers",
                "none",
                [of_service("worker_slots", "slots", "max"), of_service("worker_busy", "in use", "max")],
            ),
            ("Mail waiting for a worker", "none", [of_service("queue_waiting", "waiting", "max")]),
        ],
    ),
]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append(_row(title, top, len(panels) + 1))
        top += 1
        singles = row[0][1].endswith("!")
        width, height = (_COLUMNS // len(row), 4) if singles else (_WIDTH, _HEIGHT)
        for number, panel in enumerate(row):
            left = number * width % _COLUMNS
            panels.append(_panel(panel, len(panels) + 1, left, top, width, height))
            if left + width >= _COLUMNS or number == len(row) - 1:
                top += height
    return {
        "uid": "scanbridge",
        "title": "scanbridge",
        "description": "Mail, load, scanner, next hops, quarantine. Generated by deploy/mixin/dashboard.py.",
        "tags": ["mail", "scanbridge"],
        "schemaVersion": 37,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": [_firing()]},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    query = "label_values(scanbridge_build_info, instance)"
    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "instance",
            "label": "Instance",
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": "instance"},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "allValue": ".+",
            "multi": True,
            "sort": 1,
            "current": {"selected": True, "text": "All", "value": "$__all"},
        },
    ]


def _firing() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertname=~"Scanbridge.+", alertstate="firing", {HERE}}}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}}",
    }


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(
    panel: tuple[str, str, Queries], number: int, left: int, top: int, width: int, height: int
) -> dict[str, Any]:
    title, unit, queries = panel
    single = unit.endswith("!")
    custom = {} if single else {"custom": {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}}
    return {
        "id": number,
        "type": "stat" if single else "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {"h": height, "w": width, "x": left, "y": top},
        "fieldConfig": {"defaults": {"unit": unit.rstrip("!"), "min": 0, **custom}, "overrides": []}
        if "unknown" not in title and "end" not in title.split()
        else {"defaults": {"unit": unit.rstrip("!"), **custom}, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value"}
        if single
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(queries)
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
