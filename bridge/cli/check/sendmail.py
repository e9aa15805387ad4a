"""Sendmail's settings against ours, from the `X` lines and options of its sendmail.cf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.check.finding import Finding
from bridge.cli.check.postfix_milter import LEAST_S
from bridge.cli.check.seconds import seconds
from bridge.config.model import Config, Listener
from bridge.runtime.endpoints import Address

_TIMES = {"S": LEAST_S, "R": LEAST_S}
_MACROS = ("i", "{auth_authen}")


def check_sendmail(conf: Config, place: Path) -> Iterator[Finding]:
    """Every milter listener against a sendmail.cf, or the one in a directory."""
    file = place / "sendmail.cf" if place.is_dir() else place
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        yield Finding(f"Sendmail's {file}", f"it cannot be read: {exc.strerror}")
        return
    listeners = [one for one in conf.listeners if one.protocol == "milter"]
    if not listeners:
        advice = "add {name: milter, protocol: milter, address: 127.0.0.1:10027, profile: sendmail-milter} to listeners"
        yield Finding(f"Sendmail's {file}", f"no listener is for it: {advice}")
    for listener in listeners:
        yield _listener(listener, lines)
    if listeners:
        yield from _size(conf, lines)
        yield from _macros(lines)


def _listener(listener: Listener, lines: list[str]) -> Finding:
    what, wanted = f"Sendmail and listener {listener.name}", _names(listener.address)
    line = next((one for one in lines if one.startswith("X") and _equate(one, "S") in wanted), None)
    if line is None:
        return Finding(what, f"no X line names it: INPUT_MAIL_FILTER(`scanbridge', `S={wanted[0]}, F=T')")
    return Finding(what, _unused(line, lines) or _problem(line, listener.deadline), _equate(line, "S"))


def _unused(line: str, lines: list[str]) -> str:
    """MAIL_FILTER only describes a filter; somebody must name it as well."""
    name = line[1:].partition(",")[0].strip()
    named = [one.rpartition("InputMailFilters=")[2] for one in lines if re.match("O .*InputMailFilters=", one)]
    if any(name in re.split(r"[,;\s]+", one) for one in named):
        return ""
    return f"InputMailFilters does not name {name}, and mail passes unscanned: write INPUT_MAIL_FILTER, not MAIL_FILTER"


def _problem(line: str, deadline: float) -> str:
    away = _equate(line, "F")
    if away == "R":
        return "mail is refused for good when we are away: write F=T in place of F=R"
    if away not in ("T", "4"):
        return "mail passes unscanned when we are away: add F=T"
    times = dict(part.strip().partition(":")[::2] for part in _equate(line, "T").split(";") if ":" in part)
    for name, least in _TIMES.items():
        if name in times and seconds(times[name]) < least:
            return f"T={name}:{times[name]} is too short under load: set it to {least:.0f}s at least"
    whole = seconds(times.get("E", "5m"))
    if whole <= deadline:
        return f"T=E:{whole:.0f}s ends before our deadline of {deadline:.0f}s: set E:{deadline + 60:.0f}s"
    return ""


def _macros(lines: list[str]) -> Iterator[Finding]:
    """From 8.14 on we ask for the macros that we want; before, sendmail.cf says which ones come."""
    version = re.search(r"(?m)^DZ(\d+)\.(\d+)", "\n".join(lines))
    if version is None or (int(version[1]), int(version[2])) >= (8, 14):
        return
    sent = " ".join(one for one in lines if one.startswith("O Milter.macros.")).replace("=", " ").replace(",", " ")
    if missing := [name for name in _MACROS if name not in sent.split()]:
        define = f"define(`confMILTER_MACROS_ENVFROM', confMILTER_MACROS_ENVFROM``, {', '.join(missing)}'')"
        yield Finding("Sendmail Milter.macros", f"before 8.14 we cannot ask for what our log has: {define}")


def _size(conf: Config, lines: list[str]) -> Iterator[Finding]:
    """Without one we refuse what is too large ourselves."""
    match = re.search(r"(?m)^O +MaxMessageSize=(\d+)", "\n".join(lines))
    ours = conf.limits.max_message_size
    if match and int(match.group(1)) > ours:
        problem = f"it takes larger mail than our {ours} bytes: define(`confMAX_MESSAGE_SIZE', `{ours}')"
        yield Finding("Sendmail MaxMessageSize", problem, match.group(1))


def _equate(line: str, key: str) -> str:
    match = re.search(rf"[,\s]{key}=([^,]*)", line)
    return match.group(1).strip() if match else ""


def _names(address: Address) -> list[str]:
    if address.path:
        return [f"local:{address.path}", f"unix:{address.path}"]
    if ":" in address.host:
        return [f"inet6:{address.port}@{address.host}"]
    hosts = [address.host, *(["localhost"] if address.is_local else [])]
    return [f"inet:{address.port}@{host}" for host in hosts]
