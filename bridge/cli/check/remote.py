"""Checks of other systems: scanner, next hops, databases, object storage, lists, tracing."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path

from bridge.cli.check.finding import Finding
from bridge.cli.check.local import certificate_end
from bridge.cli.lists.session import hint
from bridge.cli.postfix_lines import HEADERS_BYTES
from bridge.cli.scanner_remedy import next_step
from bridge.config.model import Config
from bridge.config.relay import NextHops, Relay
from bridge.config.scanner import DEFAULT_DIALECT
from bridge.daemon import certificate_expiry, directories, event_wiring, history_place, list_wiring, wiring
from bridge.errors import BridgeError, ConfigError, Saturated, ScanError, ScanTimeout
from bridge.lists.client import ListClient
from bridge.lists.copies import Wanted
from bridge.lists.errors import ListsError, ListsUnreachable
from bridge.lists.fetch import Scopes, kind_of, scopes_of
from bridge.mail.next_hop import NextHopError
from bridge.matching.match import NETWORK
from bridge.quarantine import s3_store
from bridge.relay.client_replies import UNTRUSTED
from bridge.runtime import database, root_as_owner
from bridge.runtime.endpoints import NextHop
from bridge.runtime.shown_url import shown_url
from bridge.scanner.client import Host, Scanner

_TIMEOUT_S = 10.0
_CLOCK_S = 60.0  # more than a slow answer takes, less than signatures and log readers tolerate
_UNCONDITIONAL = (
    "it does not support conditional writes (If-None-Match), so only the locks in PostgreSQL keep two machines from "
    "releasing the same mail: before you promote a standby, make sure that the old primary is stopped"
)
_ENFORCED = ("block", "block_recipients", "skip_scan")  # keys of `lists` of a listener
_POSTFIX = ("postfix-proxy", "postfix-content-filter")


async def check_scanner(conf: Config, token: str) -> AsyncIterator[Finding]:
    try:
        scanner = Scanner(wiring.scanner_settings(conf, token))
    except (ConfigError, ssl.SSLError) as exc:
        yield Finding("scanner TLS", str(exc))
        return
    async for finding in _discovered(scanner):
        yield finding
    for host in scanner.hosts:
        what = f"scanner {host.url}"
        yield await _scanner_host(conf, scanner, host, what)
        if host.date:
            yield _clock(host)
        if host.certificate:
            end = certificate_expiry.expiry_of(host.certificate)
            yield certificate_end(f"certificate of {host.url}", end, "the scanner's operator must renew it")
    scanner.close()


async def _discovered(scanner: Scanner) -> AsyncIterator[Finding]:
    """The hosts found in DNS."""
    if scanner.discoveries:
        await scanner.discover()
    for name in scanner.discoveries:
        what, found = f"discovery of {name.url}", ", ".join(place.url for place in name.places)
        if not found:
            yield Finding(what, f"no scanner host was found in DNS: {name.problem}; see scanner.discovery")
        else:
            yield Finding(what, detail=found, warning=name.problem)


async def _scanner_host(conf: Config, scanner: Scanner, host: Host, what: str) -> Finding:
    """Its status, and whether it decides on a test mail: a service may provide one and refuse the other."""
    try:
        status = str(await scanner.status(host, _TIMEOUT_S))
        if host.dialect.name != DEFAULT_DIALECT:
            status = f"{host.dialect.name}, {status}"
    except (ScanError, BridgeError) as exc:
        return Finding(what, f"scanner.urls: {exc}{next_step(exc, conf)}")
    try:
        await scanner.try_scan(host, max(_TIMEOUT_S, conf.scanner.connect_timeout))
    except Saturated as exc:
        return Finding(what, detail=status, warning=f"it has no capacity for a test mail at the moment: {exc}")
    except ScanTimeout as exc:
        return Finding(what, detail=status, warning=f"{exc}: it may be slow or hung")
    except ScanError as exc:
        text = f"scanner.urls: it does not scan mail (its status is {status}): {exc}{next_step(exc, conf)}"
        return Finding(what, text)
    return Finding(what, detail=status)


def _clock(host: Host) -> Finding:
    """Compares the service's Date header with our clock."""
    what = "clock"
    try:
        ahead_s = time.time() - parsedate_to_datetime(host.date.decode("latin-1")).timestamp()
    except ValueError:
        return Finding(what)
    if abs(ahead_s) <= _CLOCK_S:
        return Finding(what, detail=f"within {_CLOCK_S:.0f}s of {host.url}")
    which = "ahead of" if ahead_s > 0 else "behind"
    step = "run timedatectl set-ntp true on the machine whose clock is wrong"
    return Finding(what, f"{abs(ahead_s):.0f}s {which} the clock of {host.url}: {step}")


async def check_next_hops(conf: Config) -> AsyncIterator[Finding]:
    """Checks every next hop: the default ones, those of routes and those of tenants."""
    if conf.relay is None:
        return
    used = {*conf.relay.hops, *chain(*wiring.hops_by_domain(conf).values())}
    for hop, key in _keys_of_hops(conf, conf.relay).items():
        if hop in used:
            yield await _next_hop(conf, conf.relay, hop, key)


def _keys_of_hops(conf: Config, relay: Relay) -> dict[NextHop, str]:
    """Each next hop, and the first key that names it."""
    places: list[tuple[str, NextHops]] = [("relay", relay)]
    places += [(f"relay.routes.{i}", route) for i, route in enumerate(relay.routes)]
    places += [(f"tenants.{i}.relay", tenant.relay) for i, tenant in enumerate(conf.tenants) if tenant.relay]
    found: dict[NextHop, str] = {}
    for place, hops in places:
        for hop in hops.hops:
            found.setdefault(hop, f"{place}.next_hops" if hops.next_hops else f"{place}.next_hop")
    return found


async def _next_hop(conf: Config, settings: Relay, hop: NextHop, key: str) -> Finding:
    what = f"next hop {hop}"
    try:
        relay = wiring.next_hop(conf, settings, hop)
        extensions = await relay.probe()
        await relay.close()
    except ConfigError as exc:
        return Finding(what, str(exc))
    except NextHopError as exc:
        step = (
            "check relay.tls and relay.ca_file"
            if exc.reply is UNTRUSTED
            else "is the server running? check its address"
        )
        return Finding(what, f"{key}: {exc}; {step}")
    detail = " ".join(extensions)
    if hop.protocol == "maildir":
        return Finding(what, detail=detail)
    problem, warning = _size_problem(conf, extensions), _lacking(conf, hop, extensions)
    return Finding(what, problem and f"{key}: {problem}", detail, warning and f"{key}: {warning}")


def _size_problem(conf: Config, extensions: tuple[str, ...]) -> str:
    ours = conf.limits.max_message_size
    size = next((line.split()[1] for line in extensions if line.upper().startswith("SIZE ")), "0")
    if not size.isdigit() or not 0 < int(size) < ours:
        return ""
    return (
        f"it accepts {size} bytes, but the bridge accepts {ours}, so larger mail is scanned and then refused; "
        f"raise its limit to {ours + HEADERS_BYTES} (Postfix: message_size_limit), "
        f"or set limits.max_message_size: {size}"
    )


def _lacking(conf: Config, hop: NextHop, extensions: tuple[str, ...]) -> str:
    names = {line.split()[0].upper() for line in extensions}
    listeners = [listener for listener in conf.listeners if listener.hands_on]
    lacks = [
        name
        for name in ("8BITMIME", "DSN", "SMTPUTF8")
        if name not in names and any(name not in listener.hide_extensions for listener in listeners)
    ]
    found = []
    if lacks:
        words = ", ".join(lacks)
        found.append(f"no {words}: mail that needs it is refused; set hide_extensions: [{words}] for the listeners")
    if (
        hop.protocol == "smtp"
        and "XFORWARD" not in names
        and any(listener.profile in _POSTFIX for listener in listeners)
    ):
        found.append(
            "no XFORWARD: it does not get the client's address; if it is Postfix, "
            "set -o smtpd_authorized_xforward_hosts=OUR-ADDRESS for this service in master.cf"
        )
    return "; ".join(found)


def _left_behind(conf: Config, state: Path) -> dict[str, str]:
    """What was written before `state_database` was set, and is not used now."""
    if warning := event_wiring.events_left_behind(conf, state):
        return {"warning": warning}
    older = history_place.older_history(conf, state)
    return {"note": f"the history from before this key was set remains in {older} and is not searched"} if older else {}


def _probe(place: database.Database) -> None:
    """As root, with the rights of the owner of a local file. Raises BridgeError."""
    try:
        with root_as_owner.acting_for(place.path.parent) if place.path is not None else nullcontext():
            database.probe(place)
    except OSError as exc:
        raise database.DatabaseUnusable(str(exc)) from exc


async def check_stores(conf: Config) -> AsyncIterator[Finding]:
    """Checks database and object storage: writes something and removes it."""
    state = directories.state_directory(conf.state_directory)
    try:
        if conf.state_database is not None:
            await asyncio.to_thread(_probe, wiring.state_database(conf, state, ""))
            yield Finding("state_database", **_left_behind(conf, state))
    except ConfigError as exc:
        yield Finding("state_database", str(exc))
    except BridgeError as exc:
        problem = f"state_database: {exc}; check the URL, state_database_password_file, and the right to create tables"
        yield Finding("state_database", problem)
    settings = None
    try:
        settings = wiring.bucket_settings(conf)
        if settings is not None:
            is_conditional = await asyncio.to_thread(s3_store.probe, settings)
            is_shared = history_place.has_server(conf)
            note = _UNCONDITIONAL if is_shared and not is_conditional else ""
            yield Finding("quarantine.s3", detail=settings.name, note=note)
    except ConfigError as exc:
        yield Finding("quarantine.s3", str(exc))
    except BridgeError as exc:
        rights = "check the endpoint, the bucket and the keys; the bridge must put, get, list and delete objects"
        yield Finding("quarantine.s3", f"{exc}; {rights}", settings.name if settings else "")


async def check_lists(conf: Config) -> list[Finding]:
    """Checks the API key at every service, and every list that a listener names."""
    assert conf.lists is not None
    wanted = list_wiring.wanted_lists(conf)
    findings: list[Finding] = []
    known: Scopes | None = None
    keys = {"lists.url": conf.lists.url}
    keys |= {f"lists.other_urls.{number}": url for number, url in enumerate(conf.lists.other_urls)}
    for key, url in keys.items():
        what = f"lists {url}"
        try:
            settings = replace(list_wiring.list_settings(conf, patience_s=0.0), url=url, other_urls=())
            async with ListClient(settings) as client:
                scopes = await scopes_of(client, wanted or [Wanted("")])
        except (ConfigError, ssl.SSLError) as exc:
            return [Finding(what, str(exc))]
        errors = [answer for answer in scopes.values() if isinstance(answer, ListsError)]
        failed = {f"{key}: {exc}{_list_remedy(exc)}": None for exc in errors}
        findings += [Finding(what, problem) for problem in failed]
        if not failed:
            findings.append(Finding(what, detail="the API key is accepted"))
            known = known or scopes
    return findings if known is None else findings + list(_named_lists(conf, wanted, known))


def _list_remedy(exc: ListsError) -> str:
    is_down = isinstance(exc, ListsUnreachable)
    return "; is the service running? check its address" if is_down else hint(exc)


def _named_lists(conf: Config, wanted: list[Wanted], scopes: Scopes) -> Iterator[Finding]:
    for named in wanted:
        try:
            kind = kind_of(named, scopes)
        except ListsError as exc:
            yield Finding(f"list {named}", f"{_place_of(conf, named.name, *_ENFORCED)}: {exc}")
        else:
            if named.tenant is None or kind != kind_of(Wanted(named.name, None, named.kind), scopes):
                yield _list_kind(conf, named, kind)


def _list_kind(conf: Config, named: Wanted, kind: str | None) -> Finding:
    place = _place_of(conf, named.name, "skip_scan") if kind != NETWORK else ""
    warning = f"{place}: mail with a forged sender would pass unscanned; a list of networks is safer" if place else ""
    detail = f"{kind} entries" if kind else "no such list in this scope"
    return Finding(f"list {named}", detail=detail, warning=warning)


def _place_of(conf: Config, name: str, *keys: str) -> str:
    """The key of the first listener that names this list there; "" if there is none."""
    named = (
        f"listeners.{listener.name}.lists.{key}"
        for listener in conf.listeners
        for key in keys
        if listener.lists is not None and name in getattr(listener.lists, key)
    )
    return next(named, "")


async def check_tracing(conf: Config, endpoint: str) -> Finding:
    """Checks that its packages are installed; an unreachable collector does not affect mail."""
    try:
        tracing = wiring.tracing(conf)
    except ConfigError as exc:
        return Finding("tracing", str(exc))
    if tracing is not None:
        await tracing.close()
    return Finding("tracing", detail=shown_url(endpoint))
