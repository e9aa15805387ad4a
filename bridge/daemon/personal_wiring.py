"""From the configuration to personal lists, as `wiring` does for everything else."""

from __future__ import annotations

from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.daemon.personal_refresh import PersonalRefresh
from bridge.filter.personal_rules import PersonalLists as PersonalFilter
from bridge.filter.personal_rules import PersonalRules, Source
from bridge.lists.personal_store import FILE, PersonalLists, PersonalListsFailed
from bridge.lists.personal_table import EMPTY, PersonalTable
from bridge.mail.action import Action
from bridge.runtime.database import Database


def place(conf: Config, state: Path) -> Database:
    """Where the personal lists are. Raises ConfigError."""
    shared = wiring.state_database(conf, state, "")
    return Database.file(state / FILE) if shared.is_sqlite else shared


def personal_lists(conf: Config, state: Path, tenant_uid: str | None = None) -> PersonalLists:
    """For commands and pages that change entries. Raises ConfigError."""
    return PersonalLists(place(conf, state), conf.personal_lists_of(tenant_uid).max_entries)


class Snapshot:
    """The entries as they are now, for a mail that is only looked at. None if they cannot be read."""

    def __init__(self, conf: Config, state: Path) -> None:
        self.table: PersonalTable = EMPTY
        lists = PersonalLists(place(conf, state), only_reads=True)
        try:
            if lists.exists():
                self.table = PersonalTable.of(lists.everything())
        except PersonalListsFailed:
            pass
        finally:
            lists.close()


def refresh(conf: Config, state: Path) -> PersonalRefresh:
    """For the daemon. Raises ConfigError."""
    found = place(conf, state)
    return PersonalRefresh(PersonalLists(found), found.path)


def personal_filter(conf: Config, source: Source) -> PersonalFilter:
    """What the entries do to mail."""
    by_tenant = {tenant.uid: _rules(conf, tenant.uid) for tenant in conf.tenants}
    return PersonalFilter(source, _rules(conf, None), by_tenant)


def _rules(conf: Config, tenant_uid: str | None) -> PersonalRules:
    settings = conf.personal_lists_of(tenant_uid)
    verdicts = [] if settings.allow_by == "nobody" else settings.allow_verdicts
    return PersonalRules(Action(settings.block), frozenset(verdict.lower() for verdict in verdicts))
