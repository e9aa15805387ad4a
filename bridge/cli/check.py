"""`scanbridge check`: what would go wrong, said before it does. One line each."""

from __future__ import annotations

import ssl
import sys
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import click
import uvloop

from bridge.address import Address
from bridge.cli.common import config_option, load_or_exit
from bridge.cli.mailserver import Finding, check_postfix, check_sendmail
from bridge.cli.status import ask
from bridge.config import Config
from bridge.daemon import embedded, files, wiring
from bridge.daemon.sockets import open_listening
from bridge.errors import BridgeError, ConfigError, NextHopError, ScanError
from bridge.listconfig import DoorLists
from bridge.lists.client import ListClient
from bridge.lists.copies import Wanted
from bridge.lists.errors import ListsError
from bridge.lists.fetch import kind_of, scopes_of
from bridge.matching.match import NETWORK
from bridge.profiles import PROFILES
from bridge.scanner.client import Scanner

_TIMEOUT_S = 10.0


@click.command()
@config_option
@click.option(
    "--postfix", type=click.Path(path_type=Path, exists=True), help="Also Postfix's milter settings, e.g. /etc/postfix."
)
@click.option(
    "--sendmail", type=click.Path(path_type=Path, exists=True), help="Also Sendmail's, e.g. /etc/mail/sendmail.cf."
)
def check(path: Path | None, postfix: Path | None, sendmail: Path | None) -> None:
    """Check configuration, token, TLS, scanner, next hop, lists and ports. Exit code 0 only if all hold."""
    conf = load_or_exit(path)
    click.echo(Finding("configuration", detail=str(path or "embedded default")))
    findings = uvloop.run(_report(conf))
    servers = list(check_postfix(conf, postfix)) if postfix else []
    servers += check_sendmail(conf, sendmail) if sendmail else []
    for finding in servers:
        click.echo(str(finding))
    findings += servers
    sys.exit(1 if any(finding.problem for finding in findings) else 0)


async def _report(conf: Config) -> list[Finding]:
    findings = []
    async for finding in _findings(conf):
        click.echo(str(finding))
        findings.append(finding)
    return findings


async def _findings(conf: Config) -> AsyncIterator[Finding]:
    running = ask(conf.admin.address) is not None
    yield _state_directory(conf)
    token = ""
    try:
        if conf.embedded_service:
            embedded.make_token(conf)
        token = wiring.token(conf)
        yield Finding("token", detail=conf.scanner.token_file)
    except ConfigError as exc:
        yield Finding("token", str(exc))
    for finding in _listeners(conf, running):
        yield finding
    yield _admin(conf, running)
    if conf.embedded_service and not running:
        yield Finding("scanner", detail="the embedded service starts with `scanbridge run`")
    elif token:
        async for finding in _scanner(conf, token):
            yield finding
    async for finding in _next_hops(conf):
        yield finding
    if conf.lists is not None:
        if conf.embedded_service and not running:
            yield Finding("lists", detail="the embedded service starts with `scanbridge run`")
        else:
            for finding in await _lists(conf):
                yield finding
    if conf.tracing is not None:
        yield await _tracing(conf, conf.tracing.endpoint)


async def _tracing(conf: Config, endpoint: str) -> Finding:
    """Whether what it needs is installed; a collector that is away costs no mail."""
    try:
        tracing = wiring.tracing(conf)
    except ConfigError as exc:
        return Finding("tracing", str(exc))
    if tracing is not None:
        await tracing.close()
    return Finding("tracing", detail=endpoint)


def _state_directory(conf: Config) -> Finding:
    try:
        state = files.make_directory(files.state_directory(conf.state_directory), "state_directory")
        wiring.quarantine_place(conf, state)
    except ConfigError as exc:
        return Finding("state directory", str(exc))
    return Finding("state directory", detail=str(state))


def _listeners(conf: Config, running: bool) -> list[Finding]:
    findings = []
    for listener in conf.listeners:
        what = f"listener {listener.name}"
        profile = PROFILES[listener.profile]
        if listener.deadline >= profile.limit_s:
            problem = f"its deadline is not below the {profile.limit_s:.0f}s after which {listener.profile} gives up"
            findings.append(Finding(what, f"{problem}; set it to {profile.deadline_s:.0f}s"))
            continue
        try:
            if listener.tls is not None:
                files.listener_tls(listener.tls, conf.directory, f"{what}: tls")
            if not running and not listener.address.systemd:
                _try_to_listen(listener.address)
        except BridgeError as exc:
            findings.append(Finding(what, str(exc)))
        else:
            detail = f"{listener.protocol} on {listener.address}"
            findings.append(Finding(what, detail=detail + (", in use by the running daemon" if running else "")))
    return findings


def _admin(conf: Config, running: bool) -> Finding:
    address = conf.admin.address
    try:
        if not running and not address.systemd:
            _try_to_listen(address)
    except BridgeError as exc:
        return Finding("admin", str(exc))
    return Finding("admin", detail=str(address) + (", in use by the running daemon" if running else ""))


def _try_to_listen(address: Address) -> None:
    for sock in open_listening(address):
        sock.close()
    if address.path:
        Path(address.path).unlink(missing_ok=True)


async def _scanner(conf: Config, token: str) -> AsyncIterator[Finding]:
    try:
        scanner = Scanner(wiring.scanner_settings(conf, token))
    except (ConfigError, ssl.SSLError) as exc:
        yield Finding("scanner TLS", str(exc))
        return
    for host in scanner.hosts:
        try:
            status = await scanner.status(host, _TIMEOUT_S)
            yield Finding(f"scanner {host.url}", detail=str(status))
        except (ScanError, BridgeError) as exc:
            yield Finding(f"scanner {host.url}", str(exc))
    scanner.close()


async def _lists(conf: Config) -> list[Finding]:
    """The key, and every list that a listener names."""
    assert conf.lists is not None
    what, wanted = f"lists {conf.lists.url}", wiring.wanted_lists(conf) or [Wanted("")]
    try:
        async with ListClient(wiring.list_settings(conf, patience_s=0.0)) as client:
            scopes = await scopes_of(client, wanted)
    except (ConfigError, ssl.SSLError) as exc:
        return [Finding(what, str(exc))]
    failed = {str(answer): None for answer in scopes.values() if isinstance(answer, ListsError)}
    if failed:
        return [Finding(what, problem) for problem in failed]
    findings = [Finding(what, detail="the key works")]
    for one in wanted if wiring.wanted_lists(conf) else []:
        try:
            kind = kind_of(one, scopes)
        except ListsError as exc:
            findings.append(Finding(f"list {one}", str(exc)))
        else:
            if one.tenant is None or kind != kind_of(Wanted(one.name, None, one.kind), scopes):
                findings.append(Finding(f"list {one}", detail=_meaning(conf, one, kind)))
    return findings


def _meaning(conf: Config, one: Wanted, kind: str | None) -> str:
    forgeable = kind != NETWORK and any(one.name in door.skip_scan for door in _doors(conf))
    warning = "; careful: mail with a forged sender goes unscanned, a list of networks is safer" if forgeable else ""
    return (f"{kind} entries" if kind else "no such list in this scope") + warning


def _doors(conf: Config) -> list[DoorLists]:
    return [listener.lists for listener in conf.listeners if listener.lists is not None]


async def _next_hops(conf: Config) -> AsyncIterator[Finding]:
    """Every one of them: the general ones, those of routes and those of tenants."""
    if conf.relay is None:
        return
    for hop in dict.fromkeys([*conf.relay.hops, *chain(*wiring.hops_by_domain(conf).values())]):
        what = f"next hop {hop}"
        try:
            relay = wiring.next_hop(conf, conf.relay, hop)
            extensions = await relay.probe()
            await relay.close()
            yield Finding(what, detail=" ".join(extensions))
        except (ConfigError, NextHopError) as exc:
            yield Finding(what, str(exc))
