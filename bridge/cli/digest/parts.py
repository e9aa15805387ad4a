"""The parts of digests in a configuration, for `scanbridge digest` and for the console."""

from __future__ import annotations

from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import history_place, resources, wiring
from bridge.digests.database import FILE, DigestStore
from bridge.digests.links import LinkKeys
from bridge.digests.people import People
from bridge.digests.settings import DigestSettings
from bridge.runtime.database import Database
from bridge.user_pages.actions import Feedback, SenderLists


def settings(conf: Config) -> DigestSettings:
    return DigestSettings(conf.digests, conf.directory, wiring.tenants_by_domain(conf), wiring.hostname(conf))


def people(conf: Config) -> People:
    digests = conf.digests
    domains = digests.domains or [domain for tenant in conf.tenants for domain in tenant.recipient_domains]
    aliases = resources.locate(digests.aliases_file, conf.directory) if digests.aliases_file else None
    return People(domains, digests.exclude, aliases, digests.recipient_delimiter)


def store(conf: Config, state: Path) -> DigestStore:
    """In SQLite it is a file of its own, so that mail never waits for its locks."""
    server = history_place.has_server(conf)
    return DigestStore(history_place.server(conf) if server else Database.file(state / FILE))


def keys(conf: Config, state: Path) -> LinkKeys:
    """Raises ConfigError."""
    if conf.digests.key_file:
        found = LinkKeys(resources.locate(conf.digests.key_file, conf.directory))
    else:
        found = LinkKeys(state / "digest-keys")
        found.make()
    assert found.keys
    return found


def sender_lists(conf: Config, state: Path) -> SenderLists | None:
    """Personal lists; None: there are none."""
    return None


def feedback(conf: Config, state: Path) -> Feedback | None:
    """Where reports of users go; None: nowhere."""
    return None
