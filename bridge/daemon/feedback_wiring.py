"""From the configuration to feedback, as `wiring` does for everything else."""

from __future__ import annotations

from pathlib import Path

from bridge.config.model import Config
from bridge.config.scanner import DEFAULT_DIALECT
from bridge.daemon import history_place, named_files, wiring
from bridge.errors import ConfigError
from bridge.feedback.learners import Learners
from bridge.feedback.rspamd_learning import Learning, LearningSettings
from bridge.feedback.service_learning import ScannerLearning, ScannerLearningSettings
from bridge.feedback.store import FILE, ReportStore
from bridge.runtime.database import Database


def report_store(conf: Config, state: Path) -> ReportStore:
    """Raises ConfigError."""
    shared = wiring.state_database(conf, state, "")
    place = Database.file(state / FILE) if shared.is_sqlite else shared
    return ReportStore(place, conf.feedback.retention)


def learners(conf: Config) -> Learners | None:
    """None if nothing learns. Raises ConfigError."""
    rspamd, scanner = _rspamd(conf), _scanner(conf)
    return Learners(rspamd, scanner) if rspamd is not None or scanner is not None else None


def _scanner(conf: Config) -> ScannerLearning | None:
    """The included service; by default only if it is embedded, because other services do not know our extension."""
    wanted = conf.embedded_service if conf.feedback.scanner is None else conf.feedback.scanner
    if not wanted:
        return None
    if conf.scanner.dialect != DEFAULT_DIALECT:
        raise ConfigError(f"feedback.scanner: needs `dialect: {DEFAULT_DIALECT}`, the dialect of the included service")
    if (discovery := conf.scanner.discovery) is not None and discovery.records == "srv":  # such names have no addresses
        raise ConfigError("feedback.scanner: SRV records are not supported; use `records: addresses`")
    if discovery is not None and discovery.nameservers:
        raise ConfigError("feedback.scanner: cannot use scanner.discovery.nameservers; use the system's resolver")
    known = wiring.scanner_settings(conf, wiring.token(conf))
    settings = ScannerLearningSettings(known.urls, known.token, known.tls, tenant_uid=known.tenant_uid)
    return ScannerLearning(settings)


def _rspamd(conf: Config) -> Learning | None:
    rspamd = conf.feedback.rspamd
    if rspamd is None:
        return None
    key = "feedback.rspamd."
    is_encrypted = rspamd.url.startswith("https:")
    settings = LearningSettings(
        url=rspamd.url,
        password=history_place.read_secret(conf, rspamd.password_file, key + "password_file"),
        tls=named_files.client_tls(rspamd.ca_file, conf.directory, key + "ca_file") if is_encrypted else None,
        timeout_s=rspamd.timeout,
        max_size=rspamd.max_size,
    )
    return Learning(settings)


def report_to(conf: Config) -> str | None:
    """The address that gets reported mail."""
    return conf.feedback.report_to or (conf.console.report_to if conf.console else None)
