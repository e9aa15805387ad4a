"""From the configuration to feedback, as `wiring` does it for everything else."""

from __future__ import annotations

from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import history_place, resources, wiring
from bridge.feedback.learning import Learning, LearningSettings
from bridge.feedback.store import FILE, ReportStore
from bridge.runtime.database import Database


def report_store(conf: Config, state: Path) -> ReportStore:
    """Raises ConfigError."""
    shared = wiring.state_database(conf, state, "")
    place = Database.file(state / FILE) if shared.is_sqlite else shared
    return ReportStore(place, conf.feedback.retention)


def learning(conf: Config) -> Learning | None:
    """None if there is no rspamd that learns. Raises ConfigError."""
    rspamd = conf.feedback.rspamd
    if rspamd is None:
        return None
    key = "feedback.rspamd."
    is_encrypted = rspamd.url.startswith("https:")
    settings = LearningSettings(
        url=rspamd.url,
        password=history_place.read_secret(conf, rspamd.password_file, key + "password_file"),
        tls=resources.client_tls(rspamd.ca_file, conf.directory, key + "ca_file") if is_encrypted else None,
        timeout_s=rspamd.timeout,
        max_size=rspamd.max_size,
    )
    return Learning(settings)


def report_to(conf: Config) -> str | None:
    """The address that gets reported mail."""
    return conf.feedback.report_to or (conf.console.report_to if conf.console else None)
