"""`scanbridge status`: the live state of a running daemon, from its admin address."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import httpx2

from bridge.cli.common import config_option, load_or_exit
from bridge.runtime.endpoints import Address

_TIMEOUT_S = 5.0


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="JSON for machines.")
def status(path: Path | None, as_json: bool) -> None:
    """Show how a running daemon is. Exit code 1 when there is none, or it is not ready."""
    conf = load_or_exit(path)
    state = ask(conf.admin.address)
    if state is None:
        click.echo(f"no scanbridge answers at {conf.admin.address}", err=True)
        sys.exit(1)
    click.echo(json.dumps(state, indent=2) if as_json else table(state))
    sys.exit(0 if state["ready"] else 1)


def ask(address: Address) -> dict[str, Any] | None:
    """/status of the daemon there, None when nobody answers (or only systemd knows where it is)."""
    if address.systemd or (address.path and not Path(address.path).exists()):
        return None
    transport = httpx2.HTTPTransport(uds=address.path) if address.path else None
    url = "http://localhost/status" if address.path else f"http://{address}/status"
    try:
        with httpx2.Client(transport=transport, timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.get(url)
            state = answer.json() if answer.status_code == 200 else None
    except (httpx2.HTTPError, ValueError):
        return None
    return state if isinstance(state, dict) and "in_processing" in state else None


def table(state: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"scanbridge {state['version']}, pid {state['pid']}, up {state['uptime_s']} s, "
        f"{'ready' if state['ready'] else 'not ready'}",
        f"in processing  {state['in_processing']} of {state['max_in_processing']} mails, "
        f"{state['bytes_in_processing']} bytes",
    ]
    wanted = state.get("workers_wanted", 1)
    if wanted > len(state["workers"]):
        lines.append(f"workers        {len(state['workers'])} of {wanted} run")
    if wanted > 1 or len(state["workers"]) > 1:
        lines += [f"worker         {_worker(one)}" for one in state["workers"]]
    if not state["reload"]["ok"]:
        lines.append(f"configuration  the old one, because the last reload failed: {state['reload']['problem']}")
    lines += [f"listener       {one['name']}: {one['protocol']} on {one['address']}" for one in state["listeners"]]
    lines += [f"scanner        {_host(one)}" for one in state["scanner"]]
    lines += [f"next hop       {_hop(one)}" for one in state.get("next_hops", ())]
    lines += [f"list           {_list(one)}" for one in state.get("lists", ())]
    return "\n".join(lines)


def _host(one: dict[str, Any]) -> str:
    circuit = one.get("circuit", "closed")
    return f"{one['url']}: {one['status']}, {one['in_flight']} in flight" + (
        "" if circuit == "closed" else f", circuit {circuit}"
    )


def _hop(one: dict[str, Any]) -> str:
    busy = one.get("busy", 0)
    return f"{one['name']}: {'up' if one['up'] else 'down'}" + (f", {busy} mails on their way" if busy else "")


def _list(one: dict[str, Any]) -> str:
    name = f"{one['name']} of tenant {one['tenant']}" if one["tenant"] else one["name"]
    copy = "no local copy, not enforced" if one["entries"] is None else f"{one['entries']:,} entries"
    age = "" if one["age_s"] is None else f", seen {one['age_s']} s ago"
    return f"{name}: {copy}{age}{'; last refresh: ' + one['problem'] if one['problem'] else ''}"


def _worker(one: dict[str, Any]) -> str:
    if silent_s := one.get("silent_s", 0):
        return f"{one['pid']}, silent for {silent_s} s"
    ready = "ready" if one["ready"] else "not ready"
    return f"{one['pid']}, up {one['uptime_s']} s, {ready}, {one['connections']} connections"
