"""One mail through a real listener and its real filter, with stand-ins for everything that has an effect.

The listener is built from the configuration as the daemon builds it, and serves a socket in a private directory for
one conversation. TLS and the PROXY protocol are left out: they are about the connection, not about the mail. So are
late decisions: no earlier scan of this mail is looked up.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.api.scanning import AnalysisRequest
from bridge.cli.trace.hooks_client import by_hooks
from bridge.cli.trace.mail_server import Exchange, Given, by_milter, by_smtp
from bridge.cli.trace.stand_ins import (
    ExistingMaildir,
    Handed,
    NotedCopies,
    NotedQuarantine,
    NotedRelay,
    SupposedScanner,
)
from bridge.config.listener import Listener
from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config
from bridge.config.relay import Relay as RelayConfig
from bridge.daemon import hooks_wiring, list_wiring, wiring
from bridge.daemon.personal_wiring import Snapshot, personal_filter
from bridge.filter.admission import Admission
from bridge.filter.outcome import Record
from bridge.filter.pipeline import Filter
from bridge.filter.policy import Case
from bridge.filter.released import ReleasedMail
from bridge.intake.hooks.server import HooksServer
from bridge.intake.milter.server import MilterServer
from bridge.intake.reports import IntakeReports
from bridge.intake.smtp.server import SmtpServer
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.quarantine.used_tokens import UnmarkedTokens
from bridge.relay.relay import Relay
from bridge.runtime.endpoints import NextHop
from bridge.scanner.client import Scanner

_SPARE_S = 30.0
_TOKEN = "trace"  # noqa: S105 - of a listener that exists for this conversation alone


@dataclass(frozen=True, slots=True)
class Setup:
    """What is traced, and how far."""

    config: Config
    listener: Listener
    state: Path
    given: Given
    scanner: Scanner | None = None  # asked for real
    probes: bool = False  # whether next hops are connected to


@dataclass(slots=True)
class Run:
    """What happened to the mail, if the scanner's answer is `case`."""

    case: Case
    exchanges: list[Exchange] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    requests: list[AnalysisRequest] = field(default_factory=list)
    handed: list[Handed] = field(default_factory=list)
    kept: list[tuple[Transaction, bytes, dict[str, object]]] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    copies: NotedCopies = field(default_factory=lambda: NotedCopies(Path()))
    closed_at_mail: Reply | None = None  # what the client receives at MAIL once saturation is known

    @property
    def processed(self) -> list[Record]:
        """The records of mails that arrived completely; one for each part of a mail that was divided."""
        return [record for record in self.records if not record.at]


async def run(setup: Setup, case: Case) -> Run:
    """Raises ConfigError, ProtocolError, TimeoutError."""
    done = Run(case)
    done.copies = NotedCopies(setup.state / "lists")
    done.copies.want(list_wiring.wanted_lists(setup.config))
    await asyncio.to_thread(done.copies.look)
    scanner = SupposedScanner(case, setup.scanner)
    done.requests = scanner.requests
    relay = wiring.relay(setup.config, make=lambda *hop: _noted(setup, done.handed, *hop))
    quarantine = NotedQuarantine()
    done.kept = quarantine.kept
    filter_ = _filter(setup, done, scanner, quarantine, relay)
    try:
        async with asyncio.timeout(setup.listener.deadline + _SPARE_S), _listening(setup, filter_, done) as streams:
            done.exchanges = await _converse(setup, streams)
        scanner.is_full = True
        done.closed_at_mail = filter_.early.closed_at_mail()
    finally:
        scanner.close()
        if relay is not None:
            await relay.close()
    return done


def _filter(setup: Setup, done: Run, scanner: Scanner, quarantine: NotedQuarantine, relay: Relay | None) -> Filter:
    conf, listener = setup.config, setup.listener
    settings = wiring.filter_settings(conf, listener)
    if 0 < settings.shadow_percent < 100:  # the story mentions it, and shows what happens to the other mails
        settings = replace(settings, shadow_percent=0.0)
    key = wiring.release_key(conf, setup.state)
    released = None
    if key.exists():
        tokens = wiring.release_tokens_of(conf, key)
        released = ReleasedMail(tokens, UnmarkedTokens(wiring.used_tokens_place(conf, setup.state)))
    return Filter(
        settings,
        scanner=scanner,
        admission=Admission(wiring.admission_settings(conf)),
        headers=wiring.header_editor(conf),
        quarantine=quarantine,
        relay=relay if listener.hands_on else None,
        report=done.records.append,
        released_mail=released,
        envelope_lists=list_wiring.envelope_lists(conf, listener, done.copies),
        personal=personal_filter(conf, Snapshot(conf, setup.state)),
    )


def _noted(setup: Setup, handed: list[Handed], conf: Config, settings: RelayConfig, hop: NextHop) -> Relay:
    if not setup.probes:
        return NotedRelay(hop, handed)
    if hop.protocol == "maildir":
        return NotedRelay(hop, handed, ExistingMaildir(Path(hop.address.path)))
    return NotedRelay(hop, handed, wiring.next_hop(conf, settings, hop))


@asynccontextmanager
async def _listening(
    setup: Setup, filter_: Filter, done: Run
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the listener; the listener exists only as long as the connection."""
    plain = setup.listener.model_copy(update={"tls": None, "proxy_protocol": False})
    spool = Spool(*wiring.spool_settings(setup.config))
    reports = IntakeReports(limit=done.limits.append)
    server: HooksServer | MilterServer | SmtpServer
    if plain.protocol == "mta-hooks":
        hooks = hooks_wiring.hooks_settings(setup.config, plain, _TOKEN, setup.state / "mta-hooks")
        server = HooksServer(hooks, filter_, spool, reports=reports)
    elif plain.protocol == "milter":
        settings = wiring.milter_settings(setup.config, plain)
        server = MilterServer(settings, filter_, spool, reports=reports)
    else:
        server = SmtpServer(wiring.smtp_settings(setup.config, plain), filter_, spool, reports=reports)
    with _private_path() as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(path)
        await server.serve(sock)
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            yield reader, writer
        finally:
            writer.close()
            await server.drain(1.0)


@contextmanager
def _private_path() -> Iterator[str]:
    """For a unix socket: in a directory of our own, and short, because such a path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="scanbridge-trace-") as directory:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{fd}/listener"
        finally:
            os.close(fd)


async def _converse(setup: Setup, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> list[Exchange]:
    listener = setup.listener
    if listener.protocol == "milter":
        return await by_milter(streams, setup.given, body_is_whole=PROFILES[listener.profile].body_is_whole)
    if listener.protocol == "mta-hooks":
        return await by_hooks(streams, setup.given, _TOKEN)
    return await by_smtp(
        streams, setup.given, wiring.hostname(setup.config), is_lmtp=listener.protocol == "lmtp"
    )  # fmt: skip
