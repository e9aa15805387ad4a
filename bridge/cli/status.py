"""`scanbridge status`: the health of a running daemon, read from its admin address."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge import __version__
from bridge.cli.config_option import EXIT_CONFIG, admin_address, config_option, load_or_exit, no_daemon
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_json, say_lines
from bridge.runtime.build import built_from, version
from bridge.runtime.counted import counted, spoken
from bridge.runtime.visible_text import visible

if TYPE_CHECKING:
    from bridge.observe.cluster_view import ClusterView


@click.command(cls=Command)
@config_option
@click.option("--cluster", "whole", is_flag=True, help="Show all nodes of the cluster, and the servers they share.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(path: Path | None, whole: bool, as_json: bool) -> None:
    """Show the daemon's health, problems first.

    Exit code 0: mail is accepted, scanned and delivered (there may be warnings). 1: it is not, or no daemon answers.
    With --cluster: 0 if every node answers and is working.
    """
    from bridge.observe.admin_client import ask

    if whole:
        _show_cluster(path, as_json)
    address = admin_address(path)
    state = ask(address)
    if state is None:
        load_or_exit(path)  # an error in the file may be the reason
        say(no_daemon(address), err=True)
        sys.exit(1)
    if as_json:
        say_json(state, indent=2)
    else:
        say_lines(table(state))
        if state.get("problems"):
            say("`scanbridge check` says what to change", err=True)
    sys.exit(0 if state["ready"] and not state.get("problems") else 1)


def _show_cluster(path: Path | None, as_json: bool) -> NoReturn:
    from bridge.daemon.cluster_nodes import nodes_of
    from bridge.observe import cluster_view

    conf = load_or_exit(path)
    if not conf.cluster.bridges:
        say("the configuration lists no nodes; add their admin addresses to cluster.bridges", err=True)
        sys.exit(EXIT_CONFIG)
    view = cluster_view.look(nodes_of(conf))
    if as_json:
        say_json(view.to_dict(), indent=2)
    else:
        say_lines(cluster_table(view))
    sys.exit(0 if view.is_well else 1)


def cluster_table(view: ClusterView) -> str:
    """All nodes as text: those that need attention, then the totals, then one line per node."""
    lines = [f"{node.kind} {node.address} {node.summary}" for node in view.nodes if not node.is_reached]
    lines += [f"{node.kind} {node.address}: {node.problem}" for node in view.nodes if node.problem]
    lines += [f"WARNING: {text}" for text in view.warnings]
    lines += [f"WARNING: {node.kind} {node.address}: {text}" for node in view.nodes for text in node.warnings]
    lines.append(f"cluster        {view.summary()}")
    lines += [f"{node.kind:<15}{node.address}: {node.summary}" for node in view.nodes]
    return "\n".join(visible(line.replace("\n", "; ")) for line in lines)


def table(state: dict[str, Any]) -> str:
    """The status as text: one line for each fact, even for a reason of several lines."""
    lines = [*state.get("problems", ()), *(f"WARNING: {text}" for text in state.get("warnings", ()))]
    build = f" ({state['build']})" if "build" in state else ""  # an older daemon does not say
    lines += [
        f"scanbridge {state['version']}{build}, pid {state['pid']}, up {spoken(state['uptime_s'])}, "
        f"{'ready' if state['ready'] else 'not ready'}",
        f"mail           {state.get('mails', {}).get('summary', 'unknown')}",
        f"in processing  {state['in_processing']} of {state['max_in_processing']} mails, "
        f"{state['bytes_in_processing']} bytes",
    ]
    if _is_other_build(state):
        ours = f"scanbridge {version()}"
        lines.append(f"version        this command is {ours}; restart the daemon to run the same version")
    wanted = state.get("workers_wanted", 1)
    if wanted > len(state["workers"]):
        lines.append(f"workers        {len(state['workers'])} of {wanted} running")
    if wanted > 1 or len(state["workers"]) > 1:
        lines += [f"worker         {_worker(worker)}" for worker in state["workers"]]
    if "\n" in state["reload"].get("problem", ""):  # the warning above has the first line of it
        lines.append(f"configuration  all errors found by the failed reload: {state['reload']['problem']}")
    lines += [
        f"listener       {listener['name']}: {listener['protocol']} on {listener['address']}"
        for listener in state["listeners"]
    ]
    lines += [f"scanner        {_scanner(host)}" for host in state["scanner"]]
    lines += [f"next hop       {_next_hop(hop)}" for hop in state.get("next_hops", ())]
    lines += [f"list           {_list(copy)}" for copy in state.get("lists", ())]
    if lost := state.get("history", {}).get("lost"):
        lines.append(f"history        not recorded since startup: {counted(lost, 'mail')}")
    lines += _people(state.get("personal_lists") or {}, state.get("feedback") or {})
    lines += [f"event sink     {_sink(sink)}" for sink in state.get("events", ())]
    return "\n".join(visible(line.replace("\n", "; ")) for line in lines)


def _is_other_build(state: dict[str, Any]) -> bool:
    """Whether the program was replaced since the daemon started. A daemon that does not name its build is older."""
    return (state["version"], state.get("build")) != (__version__, built_from())


def _scanner(host: dict[str, Any]) -> str:
    circuit = host.get("circuit", "closed")
    problem = host.get("problem") or host.get("status_problem")
    status = host["status"]
    if host.get("problem"):
        status = "down" if status == "unknown" else "not scanning"
    elif not host.get("tried", True):
        status += ", no mail scanned with this configuration yet"
    dialect = host.get("dialect", "email-scanning")
    name = host["url"] if dialect == "email-scanning" else f"{host['url']} ({dialect})"
    text = f"{name}: {status}{f' ({problem})' if problem else ''}{_age(host)}, {host['in_flight']} in flight"
    return text if circuit == "closed" else f"{text}, circuit {circuit}"


def _next_hop(hop: dict[str, Any]) -> str:
    busy = hop.get("busy", 0)
    state = {True: "up", False: "down"}.get(hop["up"], "not tried yet")
    problem = f" ({hop['problem']})" if hop.get("problem") else ""
    return f"{hop['name']}: {state}{problem}{_age(hop)}" + (f", {counted(busy, 'mail')} in transit" if busy else "")


def _age(known: dict[str, Any]) -> str:
    """The age of this information. An older daemon does not report it."""
    age_s = known.get("age_s")
    return "" if age_s is None else f", as of {spoken(age_s)} ago"


def _list(copy: dict[str, Any]) -> str:
    name = f"{copy['name']} of tenant {copy['tenant']}" if copy["tenant"] else copy["name"]
    count = copy["entries"]
    entries = "no local copy, not enforced" if count is None else counted(count, "entry", "entries")
    age = "" if copy["age_s"] is None else f", confirmed {spoken(copy['age_s'])} ago"
    return f"{name}: {entries}{age}{'; last refresh failed: ' + copy['problem'] if copy['problem'] else ''}"


def _people(personal: dict[str, Any], feedback: dict[str, Any]) -> list[str]:
    """What users have reported; nothing until there is a report."""
    lines = []
    if personal.get("entries") or personal.get("problem"):
        problem = f" ({personal['problem']})" if personal["problem"] else ""
        lines.append(f"personal lists {counted(personal['entries'], 'entry', 'entries')}{problem}")
    if feedback.get("waiting") or any(feedback.get("reports", {}).values()):
        said = [
            f"{feedback['reports'][kind]:,} {kind}, {feedback['learned'][kind]:,} learned" for kind in ("spam", "ham")
        ]
        waiting = f"; {feedback['waiting']:,} waiting" if feedback["waiting"] else ""
        problem = f" ({feedback['problem']})" if feedback["problem"] else ""
        lines.append(f"reports        {'; '.join(said)}{waiting}{problem}")
    return lines


def _sink(sink: dict[str, Any]) -> str:
    text = f"{sink['name']}: {counted(sink['waiting'], 'event')} waiting"
    text += f", {counted(sink['dead'], 'dead letter')}" if sink["dead"] else ""
    text += f", {sink['lost']:,} lost" if sink["lost"] else ""
    return f"{text} ({sink['problem']})" if sink["problem"] else text


def _worker(worker: dict[str, Any]) -> str:
    if silent_s := worker.get("silent_s", 0):
        return f"{worker['pid']}, not responding for {spoken(silent_s)}"
    ready = "ready" if worker["ready"] else "not ready"
    return f"{worker['pid']}, up {spoken(worker['uptime_s'])}, {ready}, {counted(worker['connections'], 'connection')}"
