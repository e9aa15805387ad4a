"""From a configuration to digests and the pages for users."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.cli.config_option import EXIT_CONFIG, fail_config, load_or_exit
from bridge.cli.console import wiring as console_wiring
from bridge.cli.digest.actions import CommandUserActions
from bridge.cli.digest.parts import feedback, keys, people, sender_lists, settings
from bridge.cli.later_notes import LaterNotes
from bridge.cli.quarantine.session import Session
from bridge.cli.state import make_state_directory
from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.console.oidc import Provider
from bridge.daemon import history_place, wiring
from bridge.daemon.digests import digest_store
from bridge.digests.counts import DigestCounts
from bridge.digests.database import DigestStore
from bridge.digests.items import Items
from bridge.digests.message import DigestMaker
from bridge.digests.people import People
from bridge.digests.requests import Requests
from bridge.digests.sending import Outbox, Progress, Run
from bridge.errors import ConfigError
from bridge.mail.reply import Reply
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.relay import Relay
from bridge.user_pages.sources import UserSources

_HOW = """\
digests are off: the configuration has no `digests` key. Turn them on with

  digests:
    schedule: daily
    from: Quarantine <quarantine@example.org>
    domains: [example.org]

and see docs/operate/digests.md for the pages behind a reverse proxy"""
_SPARE_S = 86400.0
_PATIENCE_S = 30.0  # for the index of the quarantine


def configured(path: Path | None) -> Config:
    """The configuration, if it has digests; otherwise how to turn them on, and exit code 78."""
    conf = load_or_exit(path)
    if not conf.digests.is_on:
        where = str(path) if path is not None else "no configuration file was given (-c FILE)"
        for line in f"{where}: {_HOW}".splitlines():
            say(line, err=True)
        sys.exit(EXIT_CONFIG)
    return conf


@dataclass(frozen=True, slots=True)
class Digesting:
    """Everything that the digests of one configuration need."""

    conf: Config
    state: Path
    store: DigestStore
    quarantine: Quarantine
    items: Items
    people: People
    maker: DigestMaker

    @classmethod
    def open(cls, path: Path | None, *, makes_keys: bool = False) -> Digesting:
        conf = configured(path)
        try:
            state = make_state_directory(conf, path)
            quarantine = Quarantine(replace(wiring.quarantine_place(conf, state), patience_s=_PATIENCE_S))
            tables = digest_store(conf, state)
            return cls(
                conf, state, tables, quarantine, Items(tables, quarantine.owner), people(conf),
                DigestMaker(settings(conf), keys(conf, state, makes=makes_keys)),
            )  # fmt: skip
        except ConfigError as exc:
            fail_config(exc)

    @asynccontextmanager
    async def outbox(self) -> AsyncIterator[Outbox]:
        relay = self._relay()
        try:
            yield Outbox(relay, self.conf.digests.envelope_sender, wiring.release_tokens(self.conf, self.state))
        finally:
            await relay.close()

    async def send(self, to: str, content: bytes) -> Reply:
        """Sends one of our own mails. Raises NextHopError."""
        async with self.outbox() as outbox:
            return await outbox.send(to, content)

    def refresh(self, on_page: Callable[[int], None] = lambda count: None) -> int:
        return self.items.refresh(self.quarantine, self.people, on_page)

    async def send_digests(
        self, *, only: Collection[str] = (), now: bool = False,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> Progress:  # fmt: skip
        """One run over everyone. Raises BridgeError."""
        async with self.outbox() as outbox:
            redact = history_place.redaction(self.conf, self.state).address
            counts = DigestCounts(self.store, self.quarantine.owner)
            later = LaterNotes(self.conf, self.state)
            run = Run(
                self.items, self.quarantine, self.maker, outbox,
                only=only, now=now, redact=redact, counts=counts, on_sent=later.note_digest,
            )  # fmt: skip
            with later.together():
                return await run.go(on_progress)

    def forget(self) -> None:
        """Delete what concerns mail that is no longer in the quarantine. Raises BridgeError."""
        moment = time.time() - self.conf.quarantine.retention - _SPARE_S
        self.items.forget(moment)
        Requests(self.store, self.quarantine.owner).forget(moment)

    def sources(self, path: Path | None) -> UserSources:
        """For the pages. Raises ConfigError."""
        conf, state = self.conf, self.state
        place = wiring.quarantine_place(conf, state)
        session = Session(conf, state, place.directory, self.quarantine, LaterNotes(conf, state))
        return UserSources(
            settings=self.maker.settings,
            store=self.store,
            console_store=console_wiring.store(conf, path),
            quarantine=self.quarantine,
            items=self.items,
            requests=Requests(self.store, self.quarantine.owner),
            people=self.people,
            maker=self.maker,
            actions=CommandUserActions(session),
            send=self.send,
            console_url=conf.console.base if conf.console else "",
            redact=history_place.redaction(conf, state).address,
            provider=self._provider(),
            lists=sender_lists(conf, state),
            feedback=feedback(session),
        )

    def _relay(self) -> Relay:
        relay = wiring.relay(self.conf)
        assert relay is not None  # the configuration was checked
        return relay

    def _provider(self) -> Provider | None:
        """The console's provider, with a different address to return to."""
        if self.conf.console is None or not self.conf.digests.page.sign_in_by_oidc:
            return None
        return console_wiring.provider(self.conf, f"{self.conf.digests.page.base}/sign-in/back")
