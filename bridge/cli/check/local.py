"""Checks of this machine: state directory, secrets, certificates, ports, file descriptors."""

from __future__ import annotations

import ipaddress
import os
import re
import resource
import stat
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bridge.cli.check.finding import Finding
from bridge.config.listener import Listener
from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config
from bridge.config.policy import Policy
from bridge.daemon import certificate_expiry, directories, embedded, event_wiring, hooks_wiring, named_files, wiring
from bridge.daemon.http_api.read_tokens import read_callers
from bridge.daemon.sockets import open_listening
from bridge.errors import BridgeError, ConfigError
from bridge.mail.action import Action
from bridge.runtime import root_as_owner
from bridge.runtime.endpoints import Endpoint

SOON_S = 14 * 86400.0  # automatic renewal happens earlier than this
_OWN_FILES = 64  # log, databases, event loop, spooled mail of a quiet hour


def check_state_directory(conf: Config) -> Finding:
    """As root, with the rights of the directory's owner."""
    state = directories.state_directory(conf.state_directory)
    try:
        with root_as_owner.acting_for(state):
            return _try_state_directory(conf, state)
    except OSError as exc:
        return Finding("state directory", f"state_directory: {state} {exc.strerror}; run this command as that user")


def _try_state_directory(conf: Config, state: Path) -> Finding:
    what = "state directory"
    try:
        directories.make_directory(state, "state_directory")
        wiring.quarantine_place(conf, state)
        with tempfile.TemporaryFile(dir=state) as probe:
            probe.write(b"x")
            probe.flush()
            os.fsync(probe.fileno())
    except ConfigError as exc:
        return Finding(what, str(exc))
    except OSError as exc:
        return Finding(
            what,
            f"state_directory: {state} cannot be written to: {exc.strerror}; check its owner and the free space, "
            "or choose another directory",
        )
    return Finding(what, _foreign_files(state), str(state))


def _foreign_files(state: Path) -> str:
    """Files of another user, usually root: the daemon cannot change them."""
    owner = state.stat().st_uid
    found = sorted(path.name for path in state.iterdir() if path.lstat().st_uid != owner)
    if not found:
        return ""
    return f"another user owns {', '.join(found[:5])} in {state}: run chown -R --reference={state} {state}"


def check_token(conf: Config) -> Finding:
    try:
        if conf.embedded_service:
            embedded.make_secrets(conf)
        wiring.token(conf)
    except ConfigError as exc:
        return Finding("token", str(exc))
    if conf.scanner.token_file is None:
        return Finding("token", detail="no password for rspamd")
    path = named_files.locate(conf.scanner.token_file, conf.directory)
    return Finding("token", detail=conf.scanner.token_file, warning=_open_to_all("scanner.token_file", path))


def _open_to_all(key: str, path: Path) -> str:
    """A warning, or empty."""
    is_open = path.stat().st_mode & stat.S_IROTH
    return f"{key}: every user of this machine can read this file; run chmod 600 {path}" if is_open else ""


def check_api(conf: Config) -> Iterator[Finding]:
    """The tokens of the HTTP API; nothing if there are none."""
    try:
        read_callers(conf)
    except ConfigError as exc:
        yield Finding("api", str(exc))
        return
    tenants = {conf.scanner.tenant_uid, *(tenant.uid for tenant in conf.tenants)}
    for number, token in enumerate(conf.api.tokens):
        what, key = f"api token {token.name}", f"api.tokens.{number}"
        warning = _open_to_all(f"{key}.token_file", named_files.locate(token.token_file, conf.directory))
        if unknown := [uid for uid in token.tenants or () if uid not in tenants]:
            warning = warning or f"{key}.tenants: not in `tenants`: {', '.join(unknown)}; add or correct them"
        yield Finding(what, detail=token.token_file, warning=warning)
    address = conf.admin.address
    if conf.api.tokens and not (address.is_local or address.systemd):
        text = f"admin.address: {address} can be reached from other machines, and tokens are sent to it unencrypted"
        yield Finding("api", warning=f"{text}: listen on 127.0.0.1, behind a proxy that provides TLS")


def check_listeners(conf: Config, state: dict[str, Any] | None) -> Iterator[Finding]:
    """`state`: that of the running daemon, which already listens on its own addresses."""
    taken = {entry["address"] for entry in state["listeners"]} if state else set()
    for listener in conf.listeners:
        yield _listener(conf, listener, str(listener.address) in taken)
        if listener.tls is not None:
            key = f"listener {listener.name}: tls.cert_file"
            path = named_files.locate(listener.tls.cert_file, conf.directory)
            if path.exists():
                yield certificate_file(key, path)
    if conf.scanner.client_cert_file:
        path = named_files.locate(conf.scanner.client_cert_file, conf.directory)
        if path.exists():
            yield certificate_file("scanner.client_cert_file", path)


def _listener(conf: Config, listener: Listener, running: bool) -> Finding:
    what = f"listener {listener.name}"
    profile = PROFILES[listener.profile]
    if listener.deadline >= profile.limit_s:
        limit = f"it must be shorter than the {profile.limit_s:.0f}s after which {listener.profile} gives up"
        return Finding(what, f"listeners.{listener.name}.deadline: {limit}; set it to {profile.deadline_s:.0f}s")
    try:
        if listener.tls is not None:
            named_files.listener_tls(listener.tls, conf.directory, f"listeners.{listener.name}.tls")
        if listener.hooks is not None:
            hooks_wiring.read_token(conf, listener)
        if not running and not listener.address.systemd:
            _try_to_listen(listener.address, f"listeners.{listener.name}.address")
    except BridgeError as exc:
        return Finding(what, str(exc))
    detail = f"{listener.protocol} on {listener.address}" + (", experimental" if listener.hooks is not None else "")
    return Finding(what, detail=detail + (", in use by the running daemon" if running else ""))


def check_admin(conf: Config, state: dict[str, Any] | None) -> Finding:
    """`state` is that of the daemon that answers there now: ours, or one with another configuration."""
    address = conf.admin.address
    if state is not None:
        ours = {(listener.name, str(listener.address)) for listener in conf.listeners}
        theirs = {(entry["name"], entry["address"]) for entry in state["listeners"]}
        if not ours & theirs:
            where = ", ".join(sorted(f"{name} on {place}" for name, place in theirs))
            problem = f"another scanbridge daemon (pid {state['pid']}, {where}) uses {address}"
            return Finding("admin", f"admin.address: {problem}; choose another port")
        return Finding("admin", detail=f"{address}, in use by the running daemon")
    try:
        if not address.systemd:
            _try_to_listen(address, "admin.address")
    except BridgeError as exc:
        return Finding("admin", str(exc))
    return Finding("admin", detail=str(address))


def check_addresses(conf: Config) -> Iterator[Finding]:
    """Two of our own sockets cannot share an address, although it is free for either of them alone."""
    named = [
        (f"listener {listener.name}", f"listeners.{listener.name}.address", str(listener.address))
        for listener in conf.listeners
    ]
    named.append(("admin", "admin.address", str(conf.admin.address)))
    if conf.embedded_service:
        named.append(("the embedded service", "scanner.urls", str(wiring.service_address(conf))))
    seen: dict[str, str] = {}
    for name, key, address in named:
        other = seen.setdefault(address, name)
        if other != name:
            yield Finding(name, f"{key}: it has the same address as {other}, {address}: give one of them another port")


_LARGEST = 7  # bits of the largest private network, fc00::/7


def check_trust(conf: Config) -> Iterator[Finding]:
    """Networks so large that strangers are in them: they could send mail that nobody checks again."""
    for listener in conf.listeners:
        if listener.address.is_local or listener.protocol == "mta-hooks":  # which needs a token
            continue
        for network in listener.trusted_clients:
            if ipaddress.ip_network(network).prefixlen < _LARGEST:
                where = f"listeners.{listener.name}.trusted_clients"
                warning = f"{where}: {network} lets strangers send mail through the bridge: list only your mail servers"
                yield Finding(f"listener {listener.name}", warning=warning)


_UNSCANNED = {
    "deadline": "a mail that takes too long to scan is delivered unscanned",
    "failed": "a mail on which the scanner fails is delivered unscanned",
    "saturated": "while more mail arrives than can be scanned, mail is delivered unscanned",
    "undecided": "a mail that the scanner could not examine completely is delivered",
}


def check_policies(conf: Config) -> Iterator[Finding]:
    """Settings that lose wanted mail, or that let a sender get a mail delivered unscanned.

    Such a mail is slow to scan, malformed, or one of very many.
    """
    for listener in conf.listeners:
        policies = [(listener.name, conf.policy_for(listener), f"listeners.{listener.name}.", listener.policy)]
        policies += [
            (f"{listener.name}, tenant {tenant.uid}", conf.policy_for(listener, tenant), f"tenants.{i}.", tenant.policy)
            for i, tenant in enumerate(conf.tenants)
            if tenant.policy.model_fields_set & {*_UNSCANNED, "deliver"}
        ]
        for name, policy, place, own in policies:
            for key, warning in _doubtful(policy):
                where = f"{place if key in own.model_fields_set else ''}policy.{key}"
                yield Finding(f"policy of listener {name}", warning=f"{where}: {warning}")


def _doubtful(policy: Policy) -> Iterator[tuple[str, str]]:
    for key, text in _UNSCANNED.items():
        entry = getattr(policy, key)
        if entry is not None and entry.action is Action.RELAY:
            yield key, f"{text}, and a sender can cause that: use tempfail or quarantine"
    if policy.deliver.action is Action.DISCARD and not policy.deliver.keep_copy:
        yield "deliver", "mail in which nothing is found is dropped, and its senders are not told: use relay"


def _try_to_listen(address: Endpoint, key: str) -> None:
    """Raises BridgeError, which names the key."""
    try:
        for sock in open_listening(address):
            sock.close()
    except BridgeError as exc:
        raise BridgeError(f"{key}: {exc}") from exc
    if address.path:
        Path(address.path).unlink(missing_ok=True)


def certificate_file(what: str, path: Path) -> Finding:
    """Its expiry, and whether each certificate is followed by its issuer's."""
    renew = f"renew {path}, then run `scanbridge reload`"
    if not certificate_expiry.is_chain(path):
        problem = f"{path} is not a chain: the certificate itself must come first, then its issuer's, and so on"
        return Finding(what, f"{problem}; reorder the certificates")
    return certificate_end(what, certificate_expiry.earliest_expiry(path), renew)


def certificate_end(what: str, end: float | None, renew: str) -> Finding:
    if end is None:
        return Finding(what)
    day, left_s = f"{datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M} UTC", end - time.time()
    if left_s <= 0:
        return Finding(what, f"the certificate expired on {day}: {renew}")
    warning = f"the certificate expires soon, on {day}: {renew}" if left_s < SOON_S else ""
    return Finding(what, detail=f"valid until {day}", warning=warning)


def check_descriptors(conf: Config, state: dict[str, Any] | None) -> Finding:
    """The limit of the running daemon; without one, that of this shell, which may differ from the unit's."""
    relay = conf.relay.max_connections if conf.relay else 0
    needed = conf.limits.max_connections * len(conf.listeners) + relay
    needed += 2 * conf.admission.max_in_processing + _OWN_FILES
    limit = _limit_of(state["workers"][0]["pid"]) if state and state.get("workers") else None
    here = limit is None
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    detail = f"limit of {'this shell' if here else 'the running daemon'}: {limit}, needed: up to {needed}"
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return Finding("descriptors", detail=detail)
    text = f"too few: set LimitNOFILE={max(needed, 65536)} in the unit (or ulimit -n), or reduce limits.max_connections"
    return Finding("descriptors", detail=detail, warning=text)


def _limit_of(pid: int) -> int | None:
    try:
        match = re.search(r"(?m)^Max open files +(\d+)", Path(f"/proc/{pid}/limits").read_text())
    except OSError:
        return None
    return int(match.group(1)) if match else None


def check_event_sinks(conf: Config) -> Iterator[Finding]:
    """The files that sinks name. Only `scanbridge events test` shows whether a receiver accepts events. Opens no file
    in the state directory."""
    state = directories.state_directory(conf.state_directory)
    for sink in conf.events:
        what = f"event sink {sink.name}"
        try:
            event_wiring.sink_maker(conf, sink, state)
        except ConfigError as exc:
            yield Finding(what, str(exc))
            continue
        path = named_files.locate(sink.secret_file, conf.directory) if sink.secret_file else None
        is_open = path is not None and path.stat().st_mode & stat.S_IROTH
        warning = f"secret_file: every user of this machine can read this file; run chmod 600 {path}" if is_open else ""
        detail = f"{sink.type}, not contacted: `scanbridge events test` sends it an event"
        yield Finding(what, detail=detail, warning=warning)
