"""The parts of digests in a configuration, for `scanbridge digest` and for the console."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from bridge.cli.quarantine.session import Session
from bridge.cli.reporting import Reporter
from bridge.config.model import Config
from bridge.daemon import named_files, personal_wiring, wiring
from bridge.digests.people import People
from bridge.digests.settings import DigestSettings
from bridge.digests.signed_links import LinkKeys
from bridge.errors import BridgeError
from bridge.feedback.report import ReportKind
from bridge.lists.personal_store import PersonalLists
from bridge.quarantine.record import MailRecord
from bridge.user_pages.actions import Feedback


def settings(conf: Config) -> DigestSettings:
    allow_by = lambda tenant: conf.personal_lists_of(tenant).allow_by  # noqa: E731
    return DigestSettings(conf.digests, conf.directory, wiring.tenants_by_domain(conf), wiring.hostname(conf), allow_by)


def people(conf: Config) -> People:
    digests = conf.digests
    domains = digests.domains or [domain for tenant in conf.tenants for domain in tenant.recipient_domains]
    aliases = named_files.locate(digests.aliases_file, conf.directory) if digests.aliases_file else None
    return People(domains, digests.exclude, aliases, digests.recipient_delimiter)


def keys(conf: Config, state: Path, *, makes: bool = False) -> LinkKeys:
    """`makes`: create the configured file, which several machines may share, if there is none. Raises ConfigError."""
    name = conf.digests.key_file
    found = LinkKeys(named_files.locate(name, conf.directory) if name else state / "digest-keys")
    if makes or not name:
        found.make()
    assert found.keys
    return found


def sender_lists(conf: Config, state: Path) -> PersonalLists:
    """Raises ConfigError."""
    return personal_wiring.personal_lists(conf, state)


def feedback(session: Session) -> Feedback:
    """Reports of users go the same way as those of operators."""

    def report(kind: str, mail: MailRecord, who: str) -> None:
        with closing(Reporter.of(session)) as reporter:
            done = reporter.report(ReportKind(kind), mail, f"user {who}")
        if not done.is_done:
            raise BridgeError(done.text)

    return report
