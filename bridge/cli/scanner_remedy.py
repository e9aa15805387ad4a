"""What to do when the scanner gives no decision: the end of the message in `scan` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MessageTooLarge, ScanError, ScanFailed, ScanRefused, ScanTimeout
from bridge.scanner.answers import TokenRefused

if TYPE_CHECKING:
    from bridge.config.model import Config

_NOT_RUNNING = "; the embedded service runs as part of the daemon: start it with `scanbridge run`"


def next_step(exc: Exception, conf: Config) -> str:
    """Empty if nothing in the configuration would help."""
    match exc:
        case TokenRefused() if "scan_source_disabled" in str(exc):
            return "; scanning is disabled there: add `scanSources: {restApi: {}}` to its guard.yml, then reload it"
        case TokenRefused() if ": 403 " in str(exc):
            return (
                "; give this token the permission to scan (`permissions` in abby.staticApiTokens), "
                "then reload the service"
            )
        case TokenRefused() if conf.scanner.dialect == "rspamd":
            return "; put rspamd's password into scanner.token_file, then run `scanbridge reload`"
        case TokenRefused():
            return "; put the service's token into scanner.token_file, then run `scanbridge reload`"
        case ScanRefused() if ": 404" not in str(exc):  # 404: another web server, or another path
            return ""
        case ScanFailed() | MessageTooLarge() | ScanTimeout(is_slow=True):  # the mail is the cause
            return ""
        case ScanError() if "certificate is not valid" in str(exc):
            return "; set scanner.ca_file to its issuer's certificate, or have the certificate renewed"
        case ScanError():
            return _NOT_RUNNING if conf.embedded_service else "; check scanner.urls"
        case _:
            return ""
