"""Effects: what a session asks its connection to do, after the replies so far or instead of them.

A closed set: the connection handles it with `match` and `assert_never`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.runtime.value import value


@value
class Ask:
    """Call the handler's hook with these arguments, and continue with `then`."""

    hook: str
    then: Callable[[Any, Any, Any], Effect | None]  # called with the session, the hook's answer and the arguments
    arguments: tuple[Any, ...] = ()


@value
class ReadContent:
    """The client sends the mail now: collect it, then call `receive_content`."""


@value
class StartTls:
    """Make the TLS handshake, then call `secured`. What the client sent in plain text until then is discarded."""


@value
class Authenticate:
    """Let aiosmtpd run its AUTH."""

    argument: str | None


@value
class Close:
    """End the connection once the replies are written, or without them."""

    discards_replies: bool = False


Effect = Ask | ReadContent | StartTls | Authenticate | Close
