"""From a configuration to what the console reads and changes. Only here does the console's code meet the daemon's."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from bridge.cli.config_option import EXIT_CONFIG, fail_config, load_or_exit
from bridge.cli.console.mail_actions import ConsoleMailActions
from bridge.cli.console.scanning import ConsoleScans
from bridge.cli.digest import parts
from bridge.cli.later_notes import LaterNotes
from bridge.cli.lists.session import own_domains
from bridge.cli.quarantine.scores import default_scores
from bridge.cli.quarantine.session import Session
from bridge.cli.state import make_state_directory
from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.console.database import FILE, ConsoleStore
from bridge.console.list_copies import ListCopies
from bridge.console.oidc import Provider
from bridge.console.sources import Sources
from bridge.daemon import config_file, history_place, list_wiring, named_files, wiring
from bridge.daemon.cluster_nodes import nodes_of
from bridge.daemon.digests import digest_store
from bridge.digests.message import DigestMaker
from bridge.digests.requests import Requests
from bridge.errors import ConfigError
from bridge.lists.client import ListSettings
from bridge.quarantine.quarantine import Quarantine
from bridge.runtime.database import Database

_HOW = """\
the console is off: the configuration has no `console` key. Turn it on with

  console:
    address: 127.0.0.1:9083

and see docs/operate/console.md for a reverse proxy and for single sign-on"""
_PATIENCE_S = 10.0
_STATEMENT_S = 8.0  # less than _PATIENCE_S, so that a slow search ends before those who wait for it give up
_LISTS_PATIENCE_S = 5.0


def configured(path: Path | None) -> Config:
    """The configuration, if it has a console; otherwise how to turn it on, and exit code 78."""
    conf = load_or_exit(path)
    if conf.console is None:
        say_how = _HOW if path is None else f"{path}: {_HOW}"
        for line in say_how.splitlines():
            say(line, err=True)
        sys.exit(EXIT_CONFIG)
    return conf


def store(conf: Config, path: Path | None) -> ConsoleStore:
    """The console's own tables. SQLite keeps them in a separate file, so that mail never waits for their locks."""
    state = make_state_directory(conf, path)
    if history_place.has_server(conf):
        return ConsoleStore(history_place.server(conf))
    return ConsoleStore(Database.file(state / FILE))


def provider(conf: Config, back: str) -> Provider | None:
    """`back`: where the provider sends people after they have signed in. Raises ConfigError."""
    assert conf.console is not None
    oidc = conf.console.oidc
    if oidc is None:
        return None
    secret = history_place.read_secret(conf, oidc.client_secret_file, "console.oidc.client_secret_file")
    tls = named_files.client_tls(oidc.ca_file, conf.directory, "console.oidc.ca_file")
    return Provider(oidc, back, secret, tls)


def sources(conf: Config, path: Path | None) -> Sources:
    try:
        state = make_state_directory(conf, path)
        place = wiring.quarantine_place(conf, state)
        # People can wait longer than the reply to a mail, and also wait for others' searches: they share a connection.
        quarantine = Quarantine(replace(place, patience_s=_PATIENCE_S, statement_s=_STATEMENT_S))
        session = Session(conf, state, place.directory, quarantine, LaterNotes(conf, state))

        def list_settings() -> ListSettings:
            return list_wiring.list_settings(conf, _LISTS_PATIENCE_S)

        return Sources(
            config=conf,
            path=path,
            state=state,
            history=history_place.history(conf, state, _PATIENCE_S),
            redaction=history_place.redaction(conf, state),
            quarantine=quarantine,
            store=store(conf, path),
            provider=provider(conf, f"{conf.console.base}/sign-in/back") if conf.console else None,
            command=(sys.executable, "-P", "-m", "bridge"),
            is_shared=history_place.has_server(conf),
            tag_scores=default_scores(),
            mail_actions=ConsoleMailActions(session),
            scan=ConsoleScans(conf),
            list_copies=ListCopies(list_settings) if conf.lists is not None else None,
            list_settings=list_settings,
            own_domains=frozenset(own_domains(conf)),
            reread=lambda: config_file.load(path),
            requests=Requests(digest_store(conf, state), quarantine.owner) if conf.digests.is_on else None,
            digests=DigestMaker(parts.settings(conf), parts.keys(conf, state)) if conf.digests.is_on else None,
            personal_lists=parts.sender_lists(conf, state),
            cluster=nodes_of(conf),
        )
    except ConfigError as exc:
        fail_config(exc)
