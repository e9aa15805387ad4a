"""Helpers for a bridge with several workers as real processes: its workers, its metrics, mail in processing."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bridge.testing import SmtpClient
from tests.daemon.process_kit import MAIL, Bridge, get, until


def state(bridge: Bridge) -> dict[str, Any]:
    code, text = get(bridge.admin, "/status")
    assert code == 200, (code, text, bridge.log)
    return dict(json.loads(text))


def workers(bridge: Bridge) -> list[int]:
    """The process ids of the workers that are ready."""
    return [worker["pid"] for worker in state(bridge).get("workers", []) if worker["ready"]]


def number(bridge: Bridge, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    _, text = get(bridge.admin, "/metrics")
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def owner(client: SmtpClient, pids: list[int]) -> int:
    """Which of these processes has the other end of this connection."""
    local, peer = client.sock.getsockname(), client.sock.getpeername()
    wanted = [f"0100007F:{peer[1]:04X}", f"0100007F:{local[1]:04X}"]
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    inode = next(row[9] for row in rows if row[1:3] == wanted)

    def has(pid: int) -> bool:
        directory = Path(f"/proc/{pid}/fd")
        for fd in os.listdir(directory):
            try:
                if os.readlink(directory / fd) == f"socket:[{inode}]":
                    return True
            except FileNotFoundError:
                continue
        return False

    return next(pid for pid in pids if has(pid))


def clients_of_all(bridge: Bridge, stack: ExitStack, each: int = 1) -> dict[int, list[SmtpClient]]:
    """`each` connections to every worker; further ones are opened as needed and not returned."""
    pids = workers(bridge)
    found: dict[int, list[SmtpClient]] = {pid: [] for pid in pids}

    def another() -> bool:
        client = stack.enter_context(bridge.client())
        mine = found[owner(client, pids)]
        if len(mine) < each:
            mine.append(client)
        return all(len(clients) == each for clients in found.values())

    until(another, "connections at every worker")
    return found


def send(client: SmtpClient) -> None:
    """Send a whole mail without waiting for the reply."""
    assert client.begin().startswith(b"354 ")
    client.send(MAIL + b".\r\n")
