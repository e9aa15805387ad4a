"""What to do when the scanner gives no decision: the end of the message in `scan` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MessageTooLarge, ScanError, ScanFailed, ScanRefused, ScanTimeout
from bridge.runtime.reason import NOT_TLS
from bridge.scanner.answers import TokenRefused

if TYPE_CHECKING:
    from bridge.config.model import Config

_NOT_RUNNING = "; the embedded service runs as part of the daemon: start it with `scanbridge run`"

# The first one whose words are in the message applies.
_STEPS = {
    "set scanner.dialect": "",  # the message already says what to do
    "mismatch, certificate": "; in scanner.urls, use a name that the certificate has, or replace the certificate",
    "certificate has expired": "; have it renewed",
    "certificate is not valid": "; set scanner.ca_file to its issuer's certificate, or have the certificate renewed",
    NOT_TLS: "; check scanner.urls: use http://, or the port for https://",
    ": 404": "; check scanner.urls and scanner.dialect",
    "answered with 404": "; check scanner.urls and scanner.dialect",
    "Connection refused": "; start the scanning service, or check scanner.urls",
}


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
            return f"; put rspamd's password into {_token_file(conf)}, then run `scanbridge reload`"
        case TokenRefused():
            return f"; put the service's token into {_token_file(conf)}, then run `scanbridge reload`"
        case ScanRefused() if ": 404" not in str(exc):  # 404: another web server, or another path
            return ""
        case ScanFailed() | MessageTooLarge() | ScanTimeout(is_slow=True):  # the mail is the cause
            return ""
        case ScanError():
            return _NOT_RUNNING if conf.embedded_service else _connection_step(str(exc))
        case _:
            return ""


def _token_file(conf: Config) -> str:
    name = conf.scanner.token_file
    return f"{name} (scanner.token_file)" if name else "a file, and set scanner.token_file to it"


def _connection_step(problem: str) -> str:
    if problem.startswith("http://") and "connection lost" in problem:
        return "; check scanner.urls: if this port is for TLS, use https://"
    for words, step in _STEPS.items():
        if words in problem:
            return step
    return "; check scanner.urls"
