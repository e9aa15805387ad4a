"""What the pages for users read and change. Built by the command (`bridge.cli.digest.wiring`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bridge.config.digests import UserPage
from bridge.console.audit import Audit
from bridge.console.database import ConsoleStore
from bridge.console.oidc import Provider
from bridge.console.sign_in_attempts import Attempts
from bridge.digests.database import DigestStore
from bridge.digests.items import Items
from bridge.digests.message import DigestMaker
from bridge.digests.people import People
from bridge.digests.requests import Requests
from bridge.digests.settings import DigestSettings
from bridge.lists.personal_store import PersonalLists
from bridge.mail.reply import Reply
from bridge.quarantine.quarantine import Quarantine
from bridge.user_pages.actions import Feedback, UserActions
from bridge.user_pages.sessions import UserSessions
from bridge.user_pages.sign_in_codes import SignInCodes


@dataclass(frozen=True, slots=True)
class UserSources:
    """Everything that reads a file or a database must run in a thread (`Call.run`)."""

    settings: DigestSettings
    store: DigestStore
    console_store: ConsoleStore  # the audit log and failed attempts, which operators see in the console
    quarantine: Quarantine
    items: Items
    requests: Requests
    people: People
    maker: DigestMaker
    actions: UserActions
    send: Callable[[str, bytes], Awaitable[Reply]]  # sends our own mail; raises NextHopError
    console_url: str  # for releasers
    redact: Callable[[str], str] = str  # addresses in the log
    provider: Provider | None = None
    lists: PersonalLists | None = None
    feedback: Feedback | None = None

    @property
    def page(self) -> UserPage:
        return self.settings.config.page

    @property
    def audit(self) -> Audit:
        return Audit(self.console_store)

    @property
    def attempts(self) -> Attempts:
        return Attempts(self.console_store)

    @property
    def sessions(self) -> UserSessions:
        return UserSessions(self.store, self.page.session_idle, self.page.session_max)

    @property
    def codes(self) -> SignInCodes:
        return SignInCodes(self.store)
