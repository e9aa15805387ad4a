"""A daemon whose scanner or next hop is in trouble, and what its status says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bridge.testing import free_port
from tests.daemon.process_kit import Bridge, get, parts, scanbridge, start, write_config


@contextmanager
def bridge_with(
    directory: Path, scanner: str = "", next_hop: str = "", more_scanners: list[str] | None = None, **sections: Any
) -> Iterator[Bridge]:
    """A daemon; a scanner or a next hop that is not given works."""
    with parts() as (_, good_scanner, good_hop):
        sections.setdefault("relay", {})
        sections["relay"] = {"probe_interval": "500ms", "connect_timeout": "1s", **sections["relay"]}
        urls = [scanner or good_scanner.url, *(more_scanners or [])]
        file, port, admin = write_config(directory, urls[0], next_hop or good_hop.url, **sections)
        file.write_text(file.read_text().replace(f"- {urls[0]}\n", "".join(f"- {url}\n  " for url in urls).rstrip(" ")))
        bridge = start(file, port, admin)
        try:
            yield bridge
        finally:
            bridge.end()


def state(bridge: Bridge) -> dict[str, Any]:
    return dict(json.loads(get(bridge.admin, "/status")[1]))


def says(bridge: Bridge, start_: str, end: str = "") -> Callable[[], bool]:
    """Whether the first problem begins and ends like this."""

    def is_said() -> bool:
        problems = state(bridge)["problems"]
        return bool(problems) and problems[0].startswith(start_) and problems[0].endswith(end)

    return is_said


def status(bridge: Bridge) -> tuple[int, list[str]]:
    shown = scanbridge("status", "-c", bridge.directory / "bridge.yml")
    return shown.returncode, shown.stdout.splitlines()


def dead_hop() -> str:
    return f"smtp://127.0.0.1:{free_port()}"


@contextmanager
def silent_server() -> Iterator[int]:
    """Accepts connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        for connection in held:
            connection.close()
