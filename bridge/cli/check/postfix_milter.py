"""Compares Postfix's milter settings with ours: addresses, timeouts, and the action when the bridge is unavailable."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from bridge.cli.check.finding import Finding
from bridge.cli.check.seconds import seconds
from bridge.config.listener import Listener
from bridge.runtime.endpoints import Endpoint

_PROGRESS_S = 5.0  # while a scan runs, we report progress this often
LEAST_S = 2 * _PROGRESS_S
_LIMITS_S = {"milter_connect_timeout": 5.0, "milter_command_timeout": LEAST_S, "milter_content_timeout": LEAST_S}
_WHEN_UNAVAILABLE = {
    "accept": "mail passes unscanned",
    "quarantine": "mail is put on hold unscanned",
    "reject": "mail is refused permanently",
}
NAMES = (
    *_LIMITS_S,
    "enable_original_recipient",
    "milter_default_action",
    "milter_protocol",
    "non_smtpd_milters",
    "smtpd_milters",
)


def check_milters(
    listeners: list[Listener], main: dict[str, str], overrides: list[str], services: list[list[str]]
) -> Iterator[Finding]:
    """`overrides`: smtpd_milters in master.cf; `services`: the columns of master.cf."""
    for listener in listeners:
        yield _named(listener, main, [main["smtpd_milters"], *overrides], services)
    if listeners:
        yield from _settings(main)


def _named(listener: Listener, main: dict[str, str], values: Iterable[str], services: list[list[str]]) -> Finding:
    what = f"Postfix and listener {listener.name}"
    named = {word for value in values for word in re.split(r"[\s,{}]+", value)}
    wanted, queue = _names(listener.address), main["queue_directory"]
    if listener.address.path and _is_chrooted(services):
        inside = PurePosixPath(listener.address.path)
        if not inside.is_relative_to(queue):
            return Finding(
                what, f"smtpd runs chrooted in {queue} and cannot reach {inside}: listen on 127.0.0.1 instead"
            )
        wanted = [f"unix:/{inside.relative_to(queue)}"]
    found = next((name for name in wanted if name in named), "")
    return Finding(what, "" if found else f"no smtpd_milters refers to it: set smtpd_milters = {wanted[0]}", found)


def _is_chrooted(services: list[list[str]]) -> bool:
    """Whether any smtpd is: then it looks for unix sockets in its queue directory."""
    return any(columns[7] == "smtpd" and columns[4] != "n" for columns in services)


def _settings(main: dict[str, str]) -> Iterator[Finding]:
    action = main["milter_default_action"]
    wrong = _WHEN_UNAVAILABLE.get(action, "")
    problem = f"{wrong} when the bridge is unavailable: set milter_default_action = tempfail" if wrong else ""
    yield Finding.of_setting("Postfix milter_default_action", action, problem)
    for name, least in _LIMITS_S.items():
        value = main[name]
        short = f"too short for a mail server under load: set it to at least {least:.0f}s"
        yield Finding.of_setting(f"Postfix {name}", value, short if seconds(value) < least else "")
    protocol = main["milter_protocol"]
    old = "with less than 6, the bridge cannot request macros, and spaces in headers are lost: set milter_protocol = 6"
    yield Finding.of_setting("Postfix milter_protocol", protocol, old if protocol < "6" else "")
    original = main["enable_original_recipient"]
    forgets = (
        "Postfix delivers mail to rewritten recipients that the bridge removes: set enable_original_recipient = yes"
    )
    yield Finding.of_setting("Postfix enable_original_recipient", original, "" if original == "yes" else forgets)
    if not main["non_smtpd_milters"]:
        yield Finding("Postfix non_smtpd_milters", detail="empty: mail submitted by local programs is not scanned")


def milter_names(address: Endpoint, main: dict[str, str]) -> list[str]:
    """The forms that smtpd_milters may use, also for a chrooted smtpd."""
    names, queue = _names(address), main["queue_directory"]
    if address.path and PurePosixPath(address.path).is_relative_to(queue):
        names.append(f"unix:/{PurePosixPath(address.path).relative_to(queue)}")
    return names


def _names(address: Endpoint) -> list[str]:
    if address.path:
        return [f"unix:{address.path}"]
    hosts = [address.host, *(["localhost", "127.0.0.1"] if address.is_local else [])]
    return [f"inet:{f'[{host}]' if ':' in host else host}:{address.port}" for host in dict.fromkeys(hosts)]
