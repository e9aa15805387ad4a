"""Session: one client connection, and what is known of the client behind it.

The connection's peer is usually our own mail server. The stranger who sent the mail is the
`Client`: the peer itself, or what a trusted peer told us by XFORWARD, XCLIENT, PROXY, a header field
or milter macros. Only the `Client` goes to the scanner.
"""

from __future__ import annotations

from bridge.runtime.value import value


@value
class Client:
    """The sending host as seen at the border. None: not known, and never guessed."""

    address: str | None = None  # a bare IPv4 or IPv6 address
    port: int | None = None
    name: str | None = None  # the verified host name
    helo: str | None = None
    protocol: str | None = None  # SMTP, ESMTP
    ident: str | None = None  # the mail server's queue id
    login: str | None = None  # the authenticated user
    source: str | None = None  # LOCAL or REMOTE


@value
class Session:
    """One connection to one of our listeners."""

    id: str
    listener: str
    peer: str  # the connection's other end, for the log: an address, or "unix"
    client: Client = Client()
    tls: str | None = None  # the TLS version between the peer and us
    helo: str | None = None  # what the peer itself said
    esmtp: bool = True
    is_told: bool = False  # the client is a trusted peer's word, not the peer itself
    in_header: bool = False  # that word is in the mail's head: before the content nobody knows the client
