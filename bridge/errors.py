"""Every error the bridge raises on purpose, in one tree, with what follows from each.

                                 when                                   policy case   label        reply
    BridgeError                  anything without a line below          unavailable   internal     451 4.3.0
    ├── ConfigError              the configuration is wrong; exit code 78, never restarted
    ├── ProtocolError            the peer broke SMTP, milter or HTTP; its connection ends
    ├── ScanError                there is no decision
    │   ├── ScanUnavailable      connect, 5xx to all mail               unreachable   unavailable  451 4.3.0
    │   │   └── ScanFailed           5xx, reset, nonsense to this mail only failed        failed       451 4.3.0
    │   ├── ScanTimeout          the deadline passed                    deadline      deadline     451 4.4.7
    │   │                        ... but other mail was answered         slow
    │   │   └── ScanGoesOn       ... and the scan still runs (bridge/scanner/client.py)
    │   ├── ScanMalformed        the answer cannot be read              nonsense      malformed    451 4.3.0
    │   ├── ScanRefused          401, 403, other 4xx: see the operator  refused       refused      451 4.3.5
    │   └── MessageTooLarge      413, or above the limit here           too_large     too_large    552 5.3.4
    ├── Saturated                admission closed, 429, 503             saturated     saturated    451 4.3.2
    │   └── NoRoom               503 about this mail only, for its size saturated     saturated    451 4.3.2
    ├── AmbiguousMail            refused by `refuse_ambiguous_mime`                  ambiguous    554 5.6.0
    ├── SpoolFull                no room for incoming content                         spool        452 4.3.1
    ├── StoreError               the mail cannot be quarantined                       quarantine   451 4.3.0
    │   └── StoreFull            no space, no inodes                                  quarantine   452 4.3.1
    └── NextHopError             carries its own reply (bridge/mail/next_hop.py)      next_hop

Each class carries its row as class attributes, and no other table lists the classes. The case selects
the operator's rule (`filter.policy`), the label names the failure in the log and the metrics, and the
reply is what a client receives when the rule is tempfail. An error's text is for the log only: replies
come from the class alone, so no host name, path or exception text can reach a client.

This file imports no other module of the package. An error that carries a value from a higher floor is defined
there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class FailureLabel(StrEnum):
    """The name of a failure: `error=` in the log, `reason=` in the metrics."""

    SATURATED = "saturated"
    DEADLINE = "deadline"
    REFUSED = "refused"
    MALFORMED = "malformed"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"
    TOO_LARGE = "too_large"
    AMBIGUOUS = "ambiguous"
    NEXT_HOP = "next_hop"
    SPOOL = "spool"
    QUARANTINE = "quarantine"
    INTERNAL = "internal"  # an error that we did not foresee


class BridgeError(Exception):
    """The root. Its attributes also apply to exceptions that are not ours."""

    policy_case: ClassVar[str] = "unavailable"  # a `filter.policy.Case`
    label: ClassVar[FailureLabel] = FailureLabel.INTERNAL
    client_reply: ClassVar[tuple[int, str, str]] = (451, "4.3.0", "Internal problem, try again later")


class ConfigError(BridgeError):
    """The configuration cannot be used; the text has one line per mistake."""


class ProtocolError(BridgeError):
    """The peer broke its protocol. Its connection ends; others are not affected."""


class ScanError(BridgeError):
    """There is no decision for this mail."""


class ScanUnavailable(ScanError):
    """The scanner could not be reached, failed, or closed the connection."""

    policy_case = "unreachable"
    label = FailureLabel.UNAVAILABLE
    client_reply = (451, "4.3.0", "The scanner cannot be reached, try again later")


class ScanFailed(ScanUnavailable):
    """The scanner failed on this mail, and as far as we know on no other. The mail may be the cause."""

    policy_case = "failed"
    label = FailureLabel.FAILED
    client_reply = (451, "4.3.0", "The scanner failed on this mail, try again later")


class ScanTimeout(ScanError):
    """The deadline passed before the scanner answered.

    `is_slow`: the mail may be the reason. `others_pass`: it is, since mail that was sent after it was answered.
    """

    policy_case = "deadline"
    label = FailureLabel.DEADLINE
    client_reply = (451, "4.4.7", "The scan took too long, try again later")

    def __init__(self, text: str = "", is_slow: bool = False, others_pass: bool = False) -> None:
        super().__init__(text)
        self.is_slow = is_slow
        self.others_pass = others_pass


class ScanMalformed(ScanError):
    """The scanner's answer is not a MessageAnalysisResult."""

    policy_case = "nonsense"
    label = FailureLabel.MALFORMED
    client_reply = (451, "4.3.0", "The scanner failed, try again later")


class ScanRefused(ScanError):
    """The scanner refuses our requests. An operator must act."""

    policy_case = "refused"
    label = FailureLabel.REFUSED
    client_reply = (451, "4.3.5", "The scanner refused the request, try again later")


class MessageTooLarge(ScanError):
    """The mail is above the limit; sending it again will not help."""

    policy_case = "too_large"
    label = FailureLabel.TOO_LARGE
    client_reply = (552, "5.3.4", "The message is too large")


class Saturated(BridgeError):
    """No room now, here or at the scanner. `retry_after_s` is the scanner's Retry-After, if it sent one."""

    policy_case = "saturated"
    label = FailureLabel.SATURATED
    client_reply = (451, "4.3.2", "Too much mail in processing, try again later")

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class NoRoom(Saturated):
    """The scanner has no room for a mail of this size at the moment, but has room for smaller mail."""


class AmbiguousMail(BridgeError):
    """Mail programs may read the structure of the mail differently, and the listener refuses such mail."""

    label = FailureLabel.AMBIGUOUS
    client_reply = (554, "5.6.0", "The MIME structure of this mail is ambiguous")


class SpoolFull(BridgeError):
    """Incoming content could not be written to the spool: its disk is full, or fails."""

    label = FailureLabel.SPOOL
    client_reply = (452, "4.3.1", "Insufficient system storage")


class StoreError(BridgeError):
    """The quarantine could not store the mail; no part of it was left behind."""

    label = FailureLabel.QUARANTINE
    client_reply = (451, "4.3.0", "The mail could not be stored, try again later")


class StoreFull(StoreError):
    """The quarantine's disk has no space or no inodes left."""

    client_reply = SpoolFull.client_reply
