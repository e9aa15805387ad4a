"""Compares Postfix's settings with ours: the usual mistakes with a filter.

A filter with wrong settings fails silently: mail passes unscanned, loops, is deferred again and again, or arrives
twice. The settings come from `postconf`, which knows Postfix's defaults and overrides.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.check.finding import Finding
from bridge.cli.check.postfix_milter import NAMES as MILTER_NAMES
from bridge.cli.check.postfix_milter import check_milters, milter_names
from bridge.cli.check.seconds import seconds
from bridge.cli.postfix_lines import HEADERS_BYTES, depends_on_recipients, front_size, mail_server_wait_s
from bridge.cli.postfix_settings import Settings, front_service, is_way_back, read, why_unreadable
from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint

_NAMES = (
    *MILTER_NAMES,
    "allow_percent_hack",
    "bounce_size_limit",
    "content_filter",
    "mailbox_size_limit",
    "message_size_limit",
    "queue_directory",
    "receive_override_options",
    "smtp_data_done_timeout",
    "smtp_send_xforward_command",
    "smtpd_authorized_xforward_hosts",
    "smtpd_proxy_filter",
    "smtpd_proxy_timeout",
    "swap_bangpath",
    "virtual_mailbox_limit",
)


def check_postfix(conf: Config, directory: Path) -> Iterator[Finding]:
    """Checks every listener for Postfix against the settings in `directory`."""
    try:
        settings = read(directory, *_NAMES)
    except (OSError, subprocess.SubprocessError) as exc:
        expected = "--postfix must be the directory that contains main.cf and master.cf, usually /etc/postfix"
        yield Finding(f"Postfix in {directory}", f"postconf cannot read it: {why_unreadable(exc)}; {expected}")
        return
    used = [listener for listener in conf.listeners if _is_used(listener, settings)]
    unused = [listener for listener in conf.listeners if _kind(listener) and listener not in used]
    for listener in used or conf.listeners:  # if none is used, each of them says what to set
        if _kind(listener) == "proxy":
            yield from _proxy(conf, listener, settings)
        elif _kind(listener) == "content_filter":
            yield from _content_filter(conf, listener, settings)
    milters = [listener for listener in (used or conf.listeners) if _kind(listener) == "milter"]
    overrides = [options["smtpd_milters"] for options in settings.overrides.values() if "smtpd_milters" in options]
    yield from check_milters(milters, settings.main, overrides, list(settings.services.values()))
    for listener in unused if used else []:
        note = "this Postfix does not use it; if no other mail server does, remove it from the configuration"
        yield Finding(f"Postfix and listener {listener.name}", note=note)
    yield from scanned_twice(conf, used, settings)
    yield from _mailboxes(settings)
    yield from _rewriting(conf, settings)


def _kind(listener: Listener) -> str:
    """How Postfix passes mail to it; "" if it is not for Postfix."""
    if listener.protocol == "milter":
        return "milter"
    if listener.protocol != "smtp":
        return ""
    return {"postfix-proxy": "proxy", "postfix-content-filter": "content_filter"}.get(listener.profile, "")


def _is_used(listener: Listener, settings: Settings) -> bool:
    return any(_passes(service, listener, settings) for service in (*settings.smtpds(), "pickup/unix"))


def _passes(service: str, listener: Listener, settings: Settings) -> str:
    """The setting by which this service of Postfix passes mail to the listener; "" if it does not."""
    match _kind(listener):
        case "proxy":
            is_set = settings.of(service, "smtpd_proxy_filter") in names_of(listener.address)
            return "smtpd_proxy_filter" if is_set and service != "pickup/unix" else ""
        case "content_filter":
            value = settings.of(service, "content_filter").partition(":")[2]
            return "content_filter" if value in names_of(listener.address) else ""
        case "milter":
            name = "non_smtpd_milters" if service == "pickup/unix" else "smtpd_milters"
            is_off = "no_milters" in settings.of(service, "receive_override_options")
            words = re.split(r"[\s,{}]+", settings.of(service, name))
            is_set = any(word in milter_names(listener.address, settings.main) for word in words)
            return name if is_set and not is_off else ""
    return ""


def scanned_twice(conf: Config, used: list[Listener], settings: Settings) -> Iterator[Finding]:
    """Mail that passes two of our listeners: two filters at once, or one of them where scanned mail comes back."""
    backs = [service for service in settings.smtpds() if is_way_back(conf, service)]
    for service in (*settings.smtpds(), "pickup/unix"):
        steps = [(service, name) for listener in used if (name := _passes(service, listener, settings))]
        if not steps or service in backs:
            continue
        if any(name != "smtpd_milters" for _, name in steps):  # it comes back
            milters = [listener for listener in used if _kind(listener) == "milter"]
            steps += [(back, name) for back in backs for milter in milters if (name := _passes(back, milter, settings))]
        if len(steps) > 1:
            ways = " and ".join(f"{name} of {where}" for where, name in steps)
            yield Finding(
                f"Postfix {service}",
                f"mail is scanned twice, by {ways}: remove all but one of them "
                "(for the service that takes scanned mail back, set -o smtpd_milters= in master.cf)",
            )


def _proxy(conf: Config, listener: Listener, settings: Settings) -> Iterator[Finding]:
    what, wanted = f"Postfix and listener {listener.name}", names_of(listener.address)
    users = [smtpd for smtpd in settings.smtpds() if settings.of(smtpd, "smtpd_proxy_filter") in wanted]
    if not users:
        yield Finding(what, f"no smtpd passes mail to it: {_proxy_advice(conf, wanted[0], settings)}")
        return
    yield Finding(what, detail=f"{', '.join(users)}: smtpd_proxy_filter")
    for service in users:
        if is_way_back(conf, service):
            yield Finding(what, f"mail loops: set -o smtpd_proxy_filter= for {service} in master.cf")
            continue
        yield _wait(listener, service, settings, "smtpd_proxy_timeout")
        yield _size(conf, service, settings)
    yield from _way_back(conf, settings, users)


def _proxy_advice(conf: Config, name: str, settings: Settings) -> str:
    """With a service that exists: `postconf` only warns about others."""
    try:
        service = front_service(conf, settings)
    except ConfigError as exc:
        return f"{exc} (scanbridge setup postfix --mode proxy)"
    return f"set -o smtpd_proxy_filter={name} for {service} in master.cf (scanbridge setup postfix --mode proxy)"


def _content_filter(conf: Config, listener: Listener, settings: Settings) -> Iterator[Finding]:
    what, wanted = f"Postfix and listener {listener.name}", names_of(listener.address)
    filters = [settings.main["content_filter"], *(settings.of(smtpd, "content_filter") for smtpd in settings.smtpds())]
    used = [name for name in dict.fromkeys(filters) if name.partition(":")[2] in wanted]
    if not used:
        advice = (
            f"set content_filter = scanbridge:{wanted[-1]} in main.cf (scanbridge setup postfix --mode content-filter)"
        )
        yield Finding(what, f"no content_filter refers to it: {advice}")
        return
    transport = used[0].partition(":")[0]
    service = f"{transport}/unix"
    if service not in settings.services:
        advice = f"scanbridge setup postfix --mode content-filter prints one for {transport}"
        missing = f"content_filter names the transport {transport}, which is missing from master.cf"
        yield Finding(what, f"{missing}: {advice}")
        return
    yield Finding(what, detail=used[0])
    yield _wait(listener, service, settings, "smtp_data_done_timeout")
    told = settings.of(service, "smtp_send_xforward_command") == "yes"
    unknown = f"the scanner does not get the client's address: set -o smtp_send_xforward_command=yes for {service}"
    yield Finding(f"Postfix {service} smtp_send_xforward_command", "" if told else f"{unknown} in master.cf")
    yield _bounces(settings)
    for smtpd in settings.smtpds():
        filtered = settings.of(smtpd, "content_filter") in used
        if filtered and is_way_back(conf, smtpd):
            yield Finding(what, f"mail loops: set -o content_filter= for {smtpd} in master.cf")
        elif filtered:
            yield _size(conf, smtpd, settings)
    yield from _way_back(conf, settings, [smtpd for smtpd in settings.smtpds() if not is_way_back(conf, smtpd)])


def _wait(listener: Listener, service: str, settings: Settings, name: str) -> Finding:
    value = settings.of(service, name)
    early = seconds(value) <= listener.deadline
    problem = (
        f"Postfix gives up before the bridge's deadline of {listener.deadline:g}s, and the mail may arrive twice: "
        f"set {name} = {mail_server_wait_s(listener)}s"
    )
    return Finding.of_setting(f"Postfix {service} {name}", value, problem if early else "")


def _bounces(settings: Settings) -> Finding:
    services = [service for service, columns in settings.services.items() if columns[7] == "bounce"]  # three of them
    values = [settings.main["bounce_size_limit"], *(settings.of(service, "bounce_size_limit") for service in services)]
    wrong = next((value for value in values if value != "1"), "")
    problem = (
        "a bounce sends the content of a mail, unscanned, to an address that may be forged: "
        "set bounce_size_limit = 1 in main.cf"
    )
    return Finding.of_setting("Postfix bounce_size_limit", wrong or "1", problem if wrong else "")


def _size(conf: Config, service: str, settings: Settings) -> Finding:
    value, ours = settings.of(service, "message_size_limit"), conf.limits.max_message_size
    larger = value.isdigit() and (int(value) == 0 or int(value) > ours)
    problem = (
        f"it accepts more than the bridge's limit of {ours} bytes: "
        f"set -o message_size_limit={front_size(conf)} for {service}"
    )
    problem = f"{problem} in master.cf" if larger else ""
    return Finding.of_setting(f"Postfix {service} message_size_limit", value, problem)


def _way_back(conf: Config, settings: Settings, users: list[str]) -> Iterator[Finding]:
    """Only if mail comes back to this machine: another machine's Postfix is not in this directory."""
    hop = conf.relay.hops[0] if conf.relay else None
    if hop is None or hop.protocol != "smtp" or not hop.address.is_local or hop.address.path:
        return
    service = next((smtpd for smtpd in settings.smtpds() if is_way_back(conf, smtpd)), None)
    what = f"Postfix and next hop {hop}"
    if service is None:
        yield Finding(
            what, f"no smtpd listens there: add {hop.address} inet ... smtpd to master.cf (scanbridge setup postfix)"
        )
        return
    hosts = settings.of(service, "smtpd_authorized_xforward_hosts")
    advice = f"set -o smtpd_authorized_xforward_hosts=127.0.0.0/8 for {service} in master.cf"
    denied = f"it does not accept XFORWARD from the bridge: {advice}"
    yield Finding.of_setting(what, hosts, "" if _has_loopback(hosts) else denied)
    value, least = settings.of(service, "message_size_limit"), _largest(conf, users, settings)
    small = value.isdigit() and 0 < int(value) < least
    larger = f"mail comes back with more header fields: set message_size_limit = {least + HEADERS_BYTES} in main.cf"
    yield Finding.of_setting(f"Postfix {service} message_size_limit", value, larger if small else "")


def _largest(conf: Config, users: list[str], settings: Settings) -> int:
    """The largest mail that these services pass to us; mail over our own limit does not come back."""
    limits = [settings.of(user, "message_size_limit") for user in users]
    ours = conf.limits.max_message_size
    return min(ours, max((int(limit) or ours if limit.isdigit() else ours for limit in limits), default=ours))


def _has_loopback(hosts: str) -> bool:
    """Names and lookup tables are assumed to be right."""
    for word in re.split(r"[\s,]+", hosts.strip()):
        try:
            network = ipaddress.ip_network(re.sub(r"[\[\]]", "", word), strict=False)
        except ValueError:
            if word and not word.startswith("!"):
                return True
            continue
        if network.is_loopback or ipaddress.ip_address("127.0.0.1") in network:
            return True
    return False


def _mailboxes(settings: Settings) -> Iterator[Finding]:
    size = int(settings.main["message_size_limit"])
    for name, service in (("mailbox_size_limit", "local/unix"), ("virtual_mailbox_limit", "virtual/unix")):
        limit = int(settings.main[name])
        if service in settings.services and limit > 0 and (limit < size or size == 0):
            problem = f"Postfix does not deliver if this is smaller than message_size_limit ({size}): set {name} = 0"
            yield Finding.of_setting(f"Postfix {name}", str(limit), f"{problem} in main.cf")


def _rewriting(conf: Config, settings: Settings) -> Iterator[Finding]:
    """Postfix would deliver to a domain other than the one that determines tenant, route and list."""
    if not depends_on_recipients(conf):
        return
    for name, example in (("allow_percent_hack", "user%b.example@a.example"), ("swap_bangpath", "b.example!user")):
        value = settings.main[name]
        problem = (
            f"Postfix delivers {example} to b.example, bypassing its tenant, route or list: set {name} = no in main.cf"
        )
        yield Finding.of_setting(f"Postfix {name}", value, problem if value != "no" else "")


def names_of(address: Endpoint) -> list[str]:
    """host:port as master.cf may write it, without and with brackets; the preferred one with brackets is last."""
    if address.path:
        return [f"unix:{address.path}"]
    hosts = [address.host, *(["localhost", "127.0.0.1"] if address.is_local else [])]
    if address.host in ("0.0.0.0", "::"):  # noqa: S104 - compared with
        hosts = ["127.0.0.1", "localhost", "::1"]
    plain = [f"{host}:{address.port}" for host in hosts if ":" not in host]
    return [*plain, *(f"inet:{name}" for name in plain), *(f"[{host}]:{address.port}" for host in reversed(hosts))]
