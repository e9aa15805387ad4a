"""Compares Sendmail's settings with ours, from the `X` lines and options of its sendmail.cf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.check.finding import Finding
from bridge.cli.check.postfix_milter import LEAST_S
from bridge.cli.check.seconds import seconds
from bridge.config.listener import Listener
from bridge.config.model import Config
from bridge.runtime.endpoints import Endpoint

_TIMES = {"S": LEAST_S, "R": LEAST_S}
_MACROS = ("i", "{auth_authen}")


def check_sendmail(conf: Config, place: Path) -> Iterator[Finding]:
    """Checks every milter listener against a sendmail.cf, or the one in a directory."""
    file = place / "sendmail.cf" if place.is_dir() else place
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        yield Finding(f"Sendmail's {file}", f"cannot be read: {exc.strerror}")
        return
    listeners = [listener for listener in conf.listeners if listener.protocol == "milter"]
    if not listeners:
        advice = "add {name: milter, protocol: milter, address: 127.0.0.1:10027, profile: sendmail-milter} to listeners"
        yield Finding(f"Sendmail's {file}", f"no listener has a Sendmail profile: {advice}")
    for listener in listeners:
        yield _listener(listener, lines)
    if listeners:
        yield from _size(conf, lines)
        yield from _macros(lines)


def _listener(listener: Listener, lines: list[str]) -> Finding:
    what, wanted = f"Sendmail and listener {listener.name}", _names(listener.address)
    line = next((text for text in lines if text.startswith("X") and _equate(text, "S") in wanted), None)
    if line is None:
        return Finding(what, f"no X line refers to it: add INPUT_MAIL_FILTER(`scanbridge', `S={wanted[0]}, F=T')")
    return Finding(what, _unused(line, lines) or _problem(line, listener.deadline), _equate(line, "S"))


def _unused(line: str, lines: list[str]) -> str:
    """MAIL_FILTER only defines a filter; InputMailFilters must name it as well."""
    name = line[1:].partition(",")[0].strip()
    named = [line.rpartition("InputMailFilters=")[2] for line in lines if re.match("O .*InputMailFilters=", line)]
    if any(name in re.split(r"[,;\s]+", filters) for filters in named):
        return ""
    return f"InputMailFilters does not name {name}, so mail passes unscanned: use INPUT_MAIL_FILTER, not MAIL_FILTER"


def _problem(line: str, deadline: float) -> str:
    away = _equate(line, "F")
    if away == "R":
        return "mail is refused permanently when the bridge is unavailable: use F=T instead of F=R"
    if away not in ("T", "4"):
        return "mail passes unscanned when the bridge is unavailable: add F=T"
    times = dict(part.strip().partition(":")[::2] for part in _equate(line, "T").split(";") if ":" in part)
    for name, least in _TIMES.items():
        if name in times and seconds(times[name]) < least:
            return f"T={name}:{times[name]} is too short under load: set it to at least {least:.0f}s"
    whole = seconds(times.get("E", "5m"))
    if whole <= deadline:
        return f"T=E:{whole:.0f}s is shorter than the bridge's deadline of {deadline:.0f}s: set E:{deadline + 60:.0f}s"
    return ""


def _macros(lines: list[str]) -> Iterator[Finding]:
    """From 8.14 on, we request the macros that we need; before, sendmail.cf decides which ones are sent."""
    version = re.search(r"(?m)^DZ(\d+)\.(\d+)", "\n".join(lines))
    if version is None or (int(version[1]), int(version[2])) >= (8, 14):
        return
    sent = " ".join(line for line in lines if line.startswith("O Milter.macros.")).replace("=", " ").replace(",", " ")
    if missing := [name for name in _MACROS if name not in sent.split()]:
        define = f"define(`confMILTER_MACROS_ENVFROM', confMILTER_MACROS_ENVFROM``, {', '.join(missing)}'')"
        problem = "Sendmail before 8.14 does not let the bridge request these macros for its log"
        yield Finding("Sendmail Milter.macros", f"{problem}: add {define}")


def _size(conf: Config, lines: list[str]) -> Iterator[Finding]:
    """Without a limit there, we refuse larger mail ourselves."""
    match = re.search(r"(?m)^O +MaxMessageSize=(\d+)", "\n".join(lines))
    ours = conf.limits.max_message_size
    if match and int(match.group(1)) > ours:
        advice = f"add define(`confMAX_MESSAGE_SIZE', `{ours}')"
        problem = f"it accepts more than the bridge's limit of {ours} bytes: {advice}"
        yield Finding.of_setting("Sendmail MaxMessageSize", match.group(1), problem)


def _equate(line: str, key: str) -> str:
    match = re.search(rf"[,\s]{key}=([^,]*)", line)
    return match.group(1).strip() if match else ""


def _names(address: Endpoint) -> list[str]:
    if address.path:
        return [f"local:{address.path}", f"unix:{address.path}"]
    if ":" in address.host:
        return [f"inet6:{address.port}@{address.host}"]
    hosts = [address.host, *(["localhost"] if address.is_local else [])]
    return [f"inet:{address.port}@{host}" for host in hosts]
