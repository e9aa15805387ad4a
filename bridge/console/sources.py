"""What the console reads and changes: the history, the daemon's admin address, its own tables.

Built by the command, which knows where everything of a configuration is. Nothing here is an object of the daemon:
either can run without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridge.config.console import Console as ConsoleConfig
from bridge.config.model import Config
from bridge.console.audit import Audit
from bridge.console.database import ConsoleStore
from bridge.console.list_copies import ListCopies
from bridge.console.mail_actions import MailActions
from bridge.console.oidc import Provider
from bridge.console.roles import Tenants
from bridge.console.scanning import Scans
from bridge.console.sessions import SessionLimits, Sessions, SignInLinks
from bridge.console.sign_in_attempts import Attempts
from bridge.console.users import Users
from bridge.digests.message import DigestMaker
from bridge.digests.requests import Requests
from bridge.history.store import HistoryStore
from bridge.lists.client import ListSettings
from bridge.lists.personal_store import PersonalLists
from bridge.observe.cluster_view import Nodes
from bridge.observe.redaction import Redaction
from bridge.quarantine.quarantine import MailNotFound, Quarantine
from bridge.quarantine.record import MailRecord
from bridge.runtime.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class Sources:
    """Of one configuration. Everything that reads a file or a database must run in a thread (`Call.run`)."""

    config: Config
    path: Path | None  # of the configuration; None: the embedded default
    state: Path  # the state directory
    history: HistoryStore
    redaction: Redaction
    quarantine: Quarantine
    store: ConsoleStore
    provider: Provider | None  # for sign-in
    command: tuple[str, ...]  # `scanbridge`
    is_shared: bool  # other machines have parts of the history, and their own quarantines
    tag_scores: Mapping[str, float]  # the scores of the included service's tags
    mail_actions: MailActions
    scan: Scans
    list_copies: ListCopies | None  # None: no lists are configured
    list_settings: Callable[[], ListSettings]  # reads the key; raises ConfigError
    own_domains: frozenset[str]
    reread: Callable[[], Config]  # the configuration as it is in the file now; raises ConfigError
    requests: Requests | None = None  # of users; None: there are no digests
    digests: DigestMaker | None = None
    personal_lists: PersonalLists | None = None
    cluster: Nodes = field(default_factory=Nodes)

    @property
    def console(self) -> ConsoleConfig:
        return self.config.console or ConsoleConfig()

    @property
    def admin(self) -> Endpoint:
        return self.config.admin.address

    def tenant_name(self, uid: str) -> str:
        """For people, who know their domains better than a UUID."""
        domains = next((tenant.recipient_domains for tenant in self.config.tenants if tenant.uid == uid), [])
        more = f" and {len(domains) - 1} more" if len(domains) > 1 else ""
        return f"tenant {domains[0]}{more} ({uid})" if domains else f"tenant {uid}"

    def held(self, mail_id: str, tenants: Tenants) -> MailRecord | None:
        """A mail in the quarantine, if it is there and belongs to one of these tenants. Raises BridgeError."""
        try:
            record = self.quarantine.read(mail_id)
        except MailNotFound:
            return None
        return record if tenants is None or record.tenant in tenants else None

    @property
    def users(self) -> Users:
        return Users(self.store)

    @property
    def sessions(self) -> Sessions:
        return Sessions(self.store, SessionLimits(self.console.session_idle, self.console.session_max))

    @property
    def links(self) -> SignInLinks:
        return SignInLinks(self.store)

    @property
    def attempts(self) -> Attempts:
        return Attempts(self.store)

    @property
    def audit(self) -> Audit:
        return Audit(self.store)
