"""What to do when the scanner gives no decision: the end of the message in `scan` and `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import MessageTooLarge, ScanError, ScanFailed, ScanRefused, ScanTimeout
from bridge.scanner.answers import (
    NotFound,
    NotPermitted,
    OtherDialect,
    ScanningDisabled,
    StatusNotFound,
    TokenRefused,
)
from bridge.scanner.exchange import HostNotReached, Lost, Obstacle

if TYPE_CHECKING:
    from bridge.config.model import Config

_NOT_RUNNING = "; the embedded service runs as part of the daemon: start it with `scanbridge run`"

_PATH = "; check scanner.urls and scanner.dialect"
_OBSTACLES = {
    Obstacle.WRONG_NAME: "; in scanner.urls, use a name that is in the certificate, or replace the certificate",
    Obstacle.EXPIRED: "; have it renewed",
    Obstacle.UNTRUSTED: "; set scanner.ca_file to its issuer's certificate, or have the certificate renewed",
    Obstacle.NOT_TLS: "; check scanner.urls: use http://, or the port for https://",
    Obstacle.REFUSED: "; start the scanning service, or check scanner.urls",
    Obstacle.OTHER: "; check scanner.urls",
}


def next_step(exc: Exception, conf: Config) -> str:
    """Empty if nothing in the configuration would help."""
    match exc:
        case ScanningDisabled():
            return "; scanning is disabled there: add `scanSources: {restApi: {}}` to its guard.yml, then reload it"
        case NotPermitted():
            return (
                "; give this token the permission to scan (`permissions` in abby.staticApiTokens), "
                "then reload the service"
            )
        case TokenRefused() if conf.scanner.dialect == "rspamd":
            return f"; put rspamd's password into {_token_file(conf)}, then run `scanbridge reload`"
        case TokenRefused():
            return f"; put the service's token into {_token_file(conf)}, then run `scanbridge reload`"
        case ScanError() if not _is_about_the_mail(exc):
            return _NOT_RUNNING if conf.embedded_service else _connection_step(exc, conf)
        case _:
            return ""


def _is_about_the_mail(exc: ScanError) -> bool:
    match exc:
        case NotFound():
            return False
        case ScanRefused() | ScanFailed() | MessageTooLarge() | ScanTimeout(is_slow=True):
            return True
        case _:
            return False


def _token_file(conf: Config) -> str:
    name = conf.scanner.token_file
    return f"{name} (scanner.token_file)" if name else "a file, and set scanner.token_file to it"


def _connection_step(exc: ScanError, conf: Config) -> str:
    match exc:
        case HostNotReached():
            return _OBSTACLES[exc.obstacle]
        case NotFound() | StatusNotFound():
            return _PATH
        case OtherDialect():  # its text already says what to do
            return ""
        case Lost(answered=False) if any(url.startswith("http://") for url in conf.scanner.urls):
            return "; check scanner.urls: if this port is for TLS, use https://"
        case _:
            return "; check scanner.urls"
