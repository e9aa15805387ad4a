"""Addresses of listeners and next hops, as written in the configuration.

`host:port`, `[::1]:port`, `unix:/path`, `systemd:NAME` for listeners; `smtp://host:port`,
`lmtp://host:port`, `lmtp+unix:/path`, `smtp+unix:/path`, `maildir:/path` for next hops.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

_HOST_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,9})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address to listen on or to connect to."""

    host: str = ""
    port: int = 0
    path: str = ""  # of a unix socket
    systemd: str = ""  # name of a socket that systemd passes to us

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        if text.startswith("unix:/"):
            return cls(path=text.removeprefix("unix:"))
        if text.startswith("systemd:") and len(text) > len("systemd:"):
            return cls(systemd=text.removeprefix("systemd:"))
        match = _HOST_PORT.fullmatch(text)
        if match is None:
            forms = "host:port, [IPv6]:port, unix:/path or systemd:NAME"
            raise ValueError(f"an address must be given as {forms}{_bracket_hint(text)}")
        if int(match.group(3)) > 65535:
            raise ValueError("a port must be a number from 1 to 65535")
        return cls(host=match.group(1) or match.group(2), port=int(match.group(3)))

    @property
    def is_local(self) -> bool:
        """Whether it can be reached from this machine only."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_ip(self) -> bool:
        """Whether the host is written as an IP address, not as a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        if self.systemd:
            return f"systemd:{self.systemd}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NextHop:
    """Where mail is relayed to."""

    protocol: Literal["smtp", "lmtp", "maildir"]
    address: Endpoint

    @classmethod
    def parse(cls, text: str) -> NextHop:
        match text.partition(":"):
            case ("maildir", _, path) if path.startswith("/"):
                return cls("maildir", Endpoint(path=path))
            case ("smtp+unix" | "lmtp+unix" as scheme, _, path) if path.startswith("/"):
                return cls("smtp" if scheme == "smtp+unix" else "lmtp", Endpoint(path=path))
            case ("lmtp", _, rest) if rest.startswith("//"):
                return cls("lmtp", cls._host(rest[2:]))
            case _:
                return cls("smtp", cls._host(text.removeprefix("smtp://")))

    @staticmethod
    def _host(text: str) -> Endpoint:
        match = _HOST_PORT.fullmatch(text.rstrip("/"))
        if match is None:
            forms = "smtp://host:port, lmtp://host:port, lmtp+unix:/path or maildir:/path"
            raise ValueError(f"a next hop must be given as {forms}{_bracket_hint(text.rstrip('/'))}")
        if not 0 < int(match.group(3)) <= 65535:
            raise ValueError("a port must be a number from 1 to 65535")
        return Endpoint(host=match.group(1) or match.group(2), port=int(match.group(3)))

    def __str__(self) -> str:
        if self.protocol == "maildir":
            return f"maildir:{self.address.path}"
        if self.address.path:
            return f"{self.protocol}+unix:{self.address.path}"
        return f"{self.protocol}://{self.address}"


def _bracket_hint(text: str) -> str:
    """The right spelling if it is an IPv6 address and a port, written with colons only; otherwise empty."""
    host, _, port = text.rpartition(":")
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return ""
    return f"; an IPv6 address needs brackets: [{address}]:{port}" if port.isdecimal() else ""
