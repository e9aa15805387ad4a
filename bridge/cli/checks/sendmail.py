"""Sendmail's settings against ours, from the `X` lines and options of its sendmail.cf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bridge.address import Address
from bridge.cli.checks.finding import Finding
from bridge.cli.checks.postfixmilter import LEAST_S
from bridge.cli.checks.seconds import seconds
from bridge.config import Config

_TIMES = {"S": LEAST_S, "R": LEAST_S}


def check_sendmail(conf: Config, file: Path) -> Iterator[Finding]:
    """Every milter listener against the X lines of a sendmail.cf."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        yield Finding(f"Sendmail's {file}", f"it cannot be read: {exc.strerror}")
        return
    for listener in [one for one in conf.listeners if one.protocol == "milter"]:
        what = f"Sendmail and listener {listener.name}"
        wanted = _names(listener.address)
        line = next((one for one in lines if one.startswith("X") and _equate(one, "S") in wanted), None)
        if line is None:
            yield Finding(what, f"no X line names it: INPUT_MAIL_FILTER(`scanbridge', `S={wanted[0]}, F=T')")
            continue
        yield Finding(what, _problem(line, listener.deadline), _equate(line, "S"))
    yield from _size(conf, lines)


def _problem(line: str, deadline: float) -> str:
    if _equate(line, "F") not in ("T", "R", "4"):
        return "mail passes unscanned when we are away: add F=T"
    times = dict(part.partition(":")[::2] for part in _equate(line, "T").split(";") if ":" in part)
    for name, least in _TIMES.items():
        if name in times and seconds(times[name]) < least:
            return f"T={name}:{times[name]} is too short under load: set it to {least:.0f}s at least"
    whole = seconds(times.get("E", "5m"))
    if whole <= deadline:
        return f"T=E:{whole:.0f}s ends before our deadline of {deadline:.0f}s: set E:{deadline + 60:.0f}s"
    return ""


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
