"""Session: one client connection, and what is known about the client behind it.

The connection's peer is usually our own mail server. The host that sent the mail to it is the `Client`:
the peer itself, or the host that a trusted peer named by XFORWARD, XCLIENT, PROXY, a header field or
milter macros. The scanner and the next hop see only the `named_client`: a `Client` that was named (`is_told`), or a
peer that sends its own mail according to the listener's profile. Our mail server's address would pass checks that are
meant for the sender's.
"""

from __future__ import annotations

from bridge.runtime.ip import parse_ip
from bridge.runtime.value import value


def canonical_ip(text: str) -> str:
    """The one spelling in which client addresses are compared, counted and sent on. Raises ValueError."""
    return str(parse_ip(text))


@value
class Client:
    """The sending host as the border mail server saw it. None: unknown."""

    address: str | None = None  # as `canonical_ip` spells it
    port: int | None = None
    name: str | None = None  # the verified host name
    helo: str | None = None
    protocol: str | None = None  # SMTP, ESMTP
    ident: str | None = None  # the mail server's queue id
    login: str | None = None  # the authenticated user
    source: str | None = None  # LOCAL or REMOTE


UNKNOWN_CLIENT = Client()


@value
class Session:
    """One connection to one of our listeners."""

    id: str
    listener: str
    peer: str  # the other end of the connection, for the log: an address, or "unix"
    client: Client = UNKNOWN_CLIENT
    tls: str | None = None  # the TLS version between the peer and us
    helo: str | None = None  # the peer's own HELO
    esmtp: bool = True
    is_told: bool = False  # a trusted peer named the client, or the profile says that it is the peer
    in_header: bool = False  # the client is named in the mail's header, so it is unknown until the content arrives

    @property
    def named_client(self) -> Client:
        """The client that we may name to others as the sending host: never our own mail server."""
        return self.client if self.is_told else UNKNOWN_CLIENT
