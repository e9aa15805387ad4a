"""How much mail is processed at a time, and what one client may ask for.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from bridge.api.scanning import DEFAULT_IN_PROCESSING, MAX_MESSAGE_BYTES
from bridge.config.fields import Directory, Section
from bridge.runtime.units import Duration, Size

KiB, GiB = 1024, 1024**3


class Admission(Section):
    max_in_processing: int = Field(
        DEFAULT_IN_PROCESSING,
        ge=1,
        description="Maximum number of mails being processed (the service's maxGuardRequestsInProcessing). Further "
        "mail is answered with 451 4.3.2.",
    )
    throttle_threshold: int = Field(
        DEFAULT_IN_PROCESSING,
        ge=1,
        description="Number of mails being processed above which mail is delayed (the service's "
        "guardRequestThrottleThreshold). The delay grows linearly up to `throttle_max_delay`; while the scanner "
        "reports YELLOW, every mail is delayed. If this is not below `max_in_processing`, mail is delayed only while "
        "the scanner reports YELLOW.",
    )
    throttle_max_delay: Duration = Field(5.0, description="Maximum delay, reached just below the limit.")
    max_bytes_in_processing: Size = Field(
        GiB,
        ge=1,
        description="Maximum total size of all mails being processed. Further mail is answered with 451 4.3.2.",
    )
    shared_by: int = Field(
        1,
        ge=1,
        description="Number of bridges that share the scanner. Each divides its `max_in_processing` and "
        "`throttle_threshold` by this number, so that all of them can use the same file.",
    )
    limit: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="`fixed`: `max_in_processing` is the limit. `adaptive`: the limit follows the scanner's latency "
        "and never exceeds `max_in_processing`.",
    )

    def share_of(self, limit: int) -> int:
        """This bridge's part of a limit: rounded down, so that all parts together do not exceed it, but at least 1."""
        return max(1, limit // self.shared_by)


class Limits(Section):
    max_message_size: Size = Field(
        MAX_MESSAGE_BYTES,
        ge=1,
        description="Maximum size of a mail. Larger mail is refused with 552. If `scanner.size_limit_counts` is "
        "`request`, the form around the mail must fit into 50 MiB as well.",
    )
    max_recipients: int = Field(
        1000, ge=1, description="Maximum number of recipients of one mail; further recipients get 452 4.5.3."
    )
    max_connections: int = Field(
        2000, ge=1, description="Maximum number of connections to a listener; further connections get 421."
    )
    max_connections_per_client: int = Field(
        500, ge=1, description="Maximum number of connections from one client address; further connections get 421."
    )
    max_mails_per_client_per_minute: int | None = Field(
        None,
        ge=1,
        description="Maximum number of mails per minute from one client: an IPv4 address, or an IPv6 /64 network. "
        "Further mails get 451 4.7.1 at MAIL. The limit applies to all workers together, and to all bridges that share "
        "a PostgreSQL database ([several bridges](../operate/cluster.md#limits-for-each-client)). The client is the "
        "one that the mail server names; if it names none, or only in a header field, the mail server itself is the "
        "client. Default: no limit.",
    )
    max_mails_per_connection: int = Field(
        10_000,
        ge=1,
        description="Maximum number of mails on one SMTP connection. The next command is then answered with 421.",
    )
    max_errors: int = Field(
        20,
        ge=1,
        description="Number of bad commands after which a session ends with 421. MAIL, RCPT, DATA, XFORWARD and "
        "XCLIENT from a trusted client do not count, because it may be passing on what another client sent.",
    )
    command_timeout: Duration = Field(
        300.0, gt=0, description="Maximum time between commands. If it is exceeded, the session ends with 421."
    )
    data_timeout: Duration = Field(
        180.0,
        gt=0,
        description="Maximum time without data while a mail is being received. If it is exceeded, the session ends "
        "with 421.",
    )
    mail_timeout: Duration = Field(
        7200.0,
        gt=0,
        description="Maximum time to receive the content of one mail over SMTP. If it is exceeded, the session ends "
        "with 421.",
    )
    min_data_rate: Size = Field(
        256,
        description="Minimum bytes per second while a mail is being received, averaged over 30 s. Slower connections "
        "are closed.",
    )
    max_received: int = Field(
        99,
        ge=10,
        description="Maximum number of Received header fields. Mail with more is refused with 554 5.4.6 (a mail loop).",
    )

    @field_validator("max_message_size")
    @classmethod
    def _within_api(cls, value: int) -> int:
        if value > MAX_MESSAGE_BYTES:
            raise ValueError("the service accepts at most 50 MiB")
        return value


class Spool(Section):
    memory_per_mail: Size = Field(
        256 * KiB,
        description="Mail up to this size is kept in memory; larger mail is kept in an unlinked temporary file. A mail "
        "that is still being received moves to the file at three quarters of this size.",
    )
    directory: Directory | None = Field(
        None,
        description="Directory for temporary files; a relative name is next to the configuration file. Default: the "
        "system's temporary directory.",
    )
