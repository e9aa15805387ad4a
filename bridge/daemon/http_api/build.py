"""Connects the HTTP API with the running daemon: its tokens and its quarantine now, and where its history is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.daemon import wiring
from bridge.daemon.core import count
from bridge.daemon.http_api.app import Api, ApiParts
from bridge.daemon.http_api.query_queue import Queries
from bridge.daemon.running import Running


def build_api(running: Running) -> Api:
    core = running.core
    return Api(
        ApiParts(
            callers=lambda: running.components.api_callers,
            quarantine=lambda: _quarantine(running),
            redaction=wiring.redaction(running.config),
            queries=None if core.history is None else Queries(_place(running)),
            count=lambda result: count(core.metrics.api_requests, result),
        )
    )


def _quarantine(running: Running) -> str | None:
    quarantine = running.components.quarantine
    return None if quarantine.is_remote else quarantine.place


def _place(running: Running) -> Callable[[], dict[str, Any]]:
    """Like `wiring.history`, but for other processes: each gets the password that is valid when it starts."""
    state = running.core.state
    place = wiring.state_database(running.config, state, "")
    if place.is_sqlite:
        return lambda: {"directory": str(state / "history")}
    return lambda: {"url": place.url, "password": place.newest_password()}
