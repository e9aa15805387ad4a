"""From configuration to the scanner's dialect, and what is said about it in messages."""

from __future__ import annotations

from typing import assert_never

from bridge import __version__
from bridge.config.model import Config
from bridge.config.scanner import Rspamd as RspamdConfig
from bridge.scanner.dialect import MakeDialect
from bridge.scanner.dialects.email_scanning import EmailScanning
from bridge.scanner.dialects.mta_hooks import HooksSettings, MtaHooks
from bridge.scanner.dialects.rspamd import Rspamd, RspamdSettings


def dialect(conf: Config) -> MakeDialect:
    scanner = conf.scanner
    allowed = frozenset(["subject"] if scanner.allow_changes is None else scanner.allow_changes)
    match scanner.dialect:
        case "email-scanning":
            return EmailScanning
        case "rspamd":
            own = scanner.rspamd or RspamdConfig()
            settings = RspamdSettings(own.settings_id, own.actions, allowed, conf.headers.prefix)
            return lambda url, secret: Rspamd(url, secret, settings)
        case "mta-hooks":
            patience_s = max(listener.deadline for listener in conf.listeners)
            hooks = HooksSettings(__version__, patience_s, allowed, conf.headers.prefix)
            return lambda url, secret: MtaHooks(url, secret, hooks)
        case unknown:
            assert_never(unknown)
