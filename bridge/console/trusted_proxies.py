"""The address of the browser: its own, or the one that a trusted reverse proxy names.

Shared by the console and the pages for users. If this is wrong, clients can choose the address by which their attempts
are limited and recorded.
"""

from __future__ import annotations

import ipaddress
from typing import Protocol

from starlette.requests import Request

from bridge.runtime.ip import ip_or_none


class Front(Protocol):
    """Where pages are reached."""

    @property
    def public_url(self) -> str | None: ...

    @property
    def trusted_proxies(self) -> list[str]: ...


def client_address(request: Request, settings: Front) -> str:
    """The browser's: behind a reverse proxy that we trust, the address that it names last.

    Some proxies add their own field after the one that the client sent, so all of them are read.
    """
    peer = request.client.host if request.client else "local"
    if not settings.public_url or not _is_in(peer, settings.trusted_proxies):
        return peer
    named = ip_or_none(",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip())
    return peer if named is None else str(named)


def _is_in(address: str, networks: list[str]) -> bool:
    if address == "local":  # a unix socket: the proxy runs on this machine
        return True
    ip = ip_or_none(address)
    return ip is not None and any(ip in ipaddress.ip_network(network) for network in networks)
