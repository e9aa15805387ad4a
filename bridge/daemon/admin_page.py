"""The page at / of the admin address: the state in one sentence, and where to find the rest.

For people who open the address in a browser. No scripts, no styles, nothing from elsewhere: the headers forbid
all of it, so that no text in the state (an error from the scanner, the name of a next hop) can act.
"""

from __future__ import annotations

from html import escape
from typing import Any

from bridge.runtime.counted import spoken

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGES = {
    "/status": "everything that the command scanbridge status shows, as JSON",
    "/metrics": "metrics for Prometheus",
    "/api/v1/openapi.json": "the history of mail, for programs; needs a token",
    "/readyz": "200 if mail can pass, otherwise 503 with the reason",
    "/healthz": "200 if the process answers",
}


def page(state: dict[str, Any]) -> str:
    """HTML for a browser, from the state of all workers together."""
    pages = "".join(f'<li><a href="{path}">{path}</a>: {escape(text)}</li>\n' for path, text in _PAGES.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>scanbridge: {escape(_in_short(state))}</title></head>
<body>
<h1>scanbridge</h1>
{_paragraphs(state["problems"] or [_GOOD], "strong")}{_paragraphs([f"Warning: {text}" for text in state["warnings"]])}
<p>Version {escape(state["version"])}, up {spoken(state["uptime_s"])}, {state["in_processing"]} of \
{state["max_in_processing"]} mails being processed; {escape(state["mails"]["summary"])}.</p>
<ul>
{_parts(state)}</ul>
<ul>
{pages}</ul>
</body>
</html>
"""


_GOOD = "Mail is being accepted, scanned and delivered."


def _in_short(state: dict[str, Any]) -> str:
    return str(state["problems"][0]).partition(":")[0] if state["problems"] else "ok"


def _parts(state: dict[str, Any]) -> str:
    """Listeners, scanner hosts and next hops, each with its state and the age of our knowledge."""
    lines = [
        f"listener {listener['name']}: {listener['protocol']} on {listener['address']}"
        for listener in state["listeners"]
    ]
    lines += [f"scanner {host['url']}: {host['problem'] or host['status']}{_age(host)}" for host in state["scanner"]]
    for hop in state["next_hops"]:
        word = {True: "up", False: "down"}.get(hop["up"], "not tried yet")
        lines.append(f"next hop {hop['name']}: {word}{_age(hop)}")
    return "".join(f"<li>{escape(line)}</li>\n" for line in lines)


def _age(known: dict[str, Any]) -> str:
    return "" if known["age_s"] is None else f", as of {spoken(known['age_s'])} ago"


def _paragraphs(texts: list[str], element: str = "span") -> str:
    return "".join(f"<p><{element}>{escape(text)}</{element}></p>\n" for text in texts)
