"""The settings that every SMTP session of a listener follows: its limits, and what it may offer and accept.

Plain values, made when a listener starts or reloads; a session points to them and never changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bridge.intake.smtp.fast_path import MAX_SIZE

EXTENDED_SIZE = 1024  # bytes that ESMTP parameters may add to a MAIL or RCPT line
_FAST_PATH_EXTENSIONS = frozenset({"DSN", "8BITMIME"})  # extensions whose parameters `fast_path` recognises


def _ignore(*_: object) -> None:
    """The default for callbacks."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may cost. Times in seconds."""

    command_timeout_s: float | None = None  # None: aiosmtpd's `timeout`
    data_timeout_s: float = 180.0
    min_data_rate: int = 256  # bytes per second over 30 s
    max_recipients: int = 1000
    max_errors: int = 20
    max_idle_commands: int = 100  # in a row, without progress towards a mail
    max_mails: int = 10_000  # on one connection
    mail_timeout_s: float = 7200.0  # from 354 to the final dot
    keeps_bare: bool = False  # after a queue: a mail with a bare CR, LF or NUL is left to the filter, which keeps it
    shortens_lines: bool = False  # after a queue: ENVID and ORCPT that make a line too long are left out


@dataclass(frozen=True)
class SessionSettings:
    """Made once for a listener. The fields that only aiosmtpd's options set are off in the bridge itself."""

    hostname: str
    ident: str = "ESMTP"
    is_lmtp: bool = False
    limits: SessionLimits = field(default_factory=SessionLimits)
    hidden: frozenset[str] = frozenset()  # extensions that are neither announced nor accepted
    max_message_size: int | None = None
    takes_utf8: bool = True
    offers_tls: bool = False
    requires_tls: bool = False
    on_limit: Callable[[str], None] = _ignore  # called with the name of each limit that a client exceeds
    ehlo_hook: Literal["old", "new"] | None = None  # aiosmtpd knows two forms of handle_EHLO
    auth_mechanisms: tuple[str, ...] | None = None  # None: AUTH is not offered at all
    auth_requires_tls: bool = True
    requires_auth: bool = False
    decodes_content: bool = False
    local_part_limit: int = 0  # 0: no limit
    command_size_limit: int = 512  # RFC 5321 4.5.3.1.4
    call_limits: Mapping[str, int] | None = None  # how often each verb may be sent
    default_call_limit: int = 0

    # Made from the fields above.
    banner: bytes = field(init=False)
    content_encoding: str | None = field(init=False)  # with aiosmtpd's `decode_data`
    uses_fast_path: bool = field(init=False)
    fast_path_takes_parameters: bool = field(init=False)
    ehlo_replies: dict[tuple[bool, bool], bytes] = field(init=False, default_factory=dict)  # see `ehlo`

    def __post_init__(self) -> None:
        if self.is_lmtp:
            object.__setattr__(self, "hidden", self.hidden | {"PRDR"})
        object.__setattr__(self, "banner", f"220 {self.hostname} {self.ident}\r\n".encode())
        encoding = "utf-8" if self.takes_utf8 else "ascii"
        object.__setattr__(self, "content_encoding", encoding if self.decodes_content else None)
        # Each of these needs a check that an ordinary line would otherwise skip.
        needs_full_parser = (
            self.requires_auth
            or self.requires_tls
            or self.call_limits is not None
            or self.local_part_limit
            or (self.max_message_size or MAX_SIZE) < MAX_SIZE
        )
        object.__setattr__(self, "uses_fast_path", not needs_full_parser)
        object.__setattr__(self, "fast_path_takes_parameters", self.hidden.isdisjoint(_FAST_PATH_EXTENSIONS))

    def max_line(self, verb: str, *, is_extended: bool) -> int:
        """The longest line that may go on to the next hop."""
        return self.command_size_limit + (EXTENDED_SIZE if is_extended and verb in ("MAIL", "RCPT") else 0)
