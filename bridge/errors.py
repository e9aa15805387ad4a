"""Every error the bridge raises on purpose, in one tree.

    BridgeError
    ├── ConfigError                the operator's file is wrong            exit 78, never restarted
    ├── ProtocolError              the peer broke SMTP, milter or HTTP
    ├── ScanError                  no decision could be had
    │   ├── ScanUnavailable        connect, reset, 5xx, cut off            temporary
    │   ├── ScanTimeout            the deadline passed                     temporary
    │   ├── ScanMalformed          an answer that is no answer             temporary
    │   ├── ScanRefused            401, 403, other 4xx                     temporary, page the operator
    │   └── MessageTooLarge        413, or over the limit here             permanent
    ├── Saturated                  admission closed, 429, 503              temporary
    ├── SpoolFull                  no room for content that came           temporary
    ├── StoreError                 the quarantine could not keep the mail  temporary
    │   └── StoreFull              no space, no inodes                     temporary
    └── NextHopError(reply)        carries the next hop's own reply

An error's text is for the log. What the client reads is chosen in `filter.policy`, from the
class alone, so that no host, path or exception text can reach a stranger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bridge.api.scanning import AnalysisResult
    from bridge.mail.reply import Reply


class BridgeError(Exception):
    """The root: whatever we raise ourselves."""


class ConfigError(BridgeError):
    """The configuration cannot be used; the text has one line per mistake."""


class ProtocolError(BridgeError):
    """The peer broke its protocol; its connection ends, nothing else does."""


class ScanError(BridgeError):
    """No decision could be had for this mail."""


class ScanUnavailable(ScanError):
    """The scanner could not be reached, failed, or went away."""


class RunningScan(Protocol):
    """A scan that goes on although nobody waits for it now: to be awaited or abandoned."""

    async def result(self) -> AnalysisResult: ...

    def abandon(self) -> None: ...


class ScanTimeout(ScanError):
    """The deadline passed before the scanner answered. `running` is the scan, if it goes on."""

    def __init__(self, text: str = "", running: RunningScan | None = None) -> None:
        super().__init__(text)
        self.running = running


class ScanMalformed(ScanError):
    """The scanner answered something that is not a MessageAnalysisResult."""


class ScanRefused(ScanError):
    """The scanner refuses us: a wrong token, most of all. An operator must look."""


class MessageTooLarge(ScanError):
    """The mail is over the limit; sending it again will not help."""


class Saturated(BridgeError):
    """No room now, here or at the scanner. `retry_after_s` is the scanner's wish, if it had one."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class SpoolFull(BridgeError):
    """Content could not be put aside while it came: the spool's disk is full, or fails."""


class StoreError(BridgeError):
    """The quarantine could not keep the mail; no part of it was left behind."""


class StoreFull(StoreError):
    """The quarantine's disk has no space or no inodes left."""


class NextHopError(BridgeError):
    """The mail was not handed on; `reply` is what the client reads."""

    def __init__(self, reply: Reply, text: str = "") -> None:
        super().__init__(text or str(reply))
        self.reply = reply
