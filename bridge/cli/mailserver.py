"""The mail server's own settings against ours: what people get wrong with a milter.

A milter that is set up badly fails silently: mail passes unscanned, is put off for ever, or the
socket is not where a chrooted process looks. Postfix is asked through `postconf`, which knows its
defaults and overrides; Sendmail's `X` lines are read from its configuration file.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bridge.address import Address
from bridge.config import Config, Listener

_PROGRESS_S = 5.0  # we show a sign of life this often while a scan runs
_LEAST_S = 2 * _PROGRESS_S
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LIMITS_S = {"milter_connect_timeout": 5.0, "milter_command_timeout": _LEAST_S, "milter_content_timeout": _LEAST_S}
_NAMES = (
    *_LIMITS_S,
    "milter_default_action",
    "milter_protocol",
    "non_smtpd_milters",
    "queue_directory",
    "smtpd_milters",
)
_SENDMAIL_TIMES = {"S": _LEAST_S, "R": _LEAST_S}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at, and what is wrong with it ("" when nothing is)."""

    what: str
    problem: str = ""
    detail: str = ""

    def __str__(self) -> str:
        state = f"PROBLEM: {self.problem}" if self.problem else "ok"
        return f"{self.what}: {state}" + (f" ({self.detail})" if self.detail else "")


def check_postfix(conf: Config, directory: Path) -> Iterator[Finding]:
    """Every milter listener against the Postfix configured in `directory`."""
    try:
        settings, overrides = _postconf(directory, *_NAMES), _postconf(directory, "-P")
        services = _run_postconf(directory, "-M").splitlines()
    except (OSError, subprocess.SubprocessError) as exc:
        yield Finding(f"Postfix in {directory}", f"postconf cannot read it: {_why(exc)}")
        return
    for listener in _milters(conf):
        yield from _postfix_listener(listener, settings, overrides, services)
    yield from _postfix_settings(settings)


def _postfix_listener(
    listener: Listener, settings: dict[str, str], overrides: dict[str, str], services: list[str]
) -> Iterator[Finding]:
    what = f"Postfix and listener {listener.name}"
    values = [value for name, value in (settings | overrides).items() if name.split("/")[-1] == "smtpd_milters"]
    named = {word for value in values for word in re.split(r"[\s,{}]+", value)}
    wanted, queue = _postfix_names(listener.address), settings["queue_directory"]
    if listener.address.path and _is_chrooted(services):
        inside = PurePosixPath(listener.address.path)
        if not inside.is_relative_to(queue):
            yield Finding(what, f"smtpd runs chrooted to {queue} and cannot see {inside}: listen on 127.0.0.1 instead")
            return
        wanted = [f"unix:/{inside.relative_to(queue)}"]
    found = next((name for name in wanted if name in named), "")
    yield Finding(what, "" if found else f"no smtpd_milters names it: set smtpd_milters = {wanted[0]}", found)


def _is_chrooted(services: list[str]) -> bool:
    """Whether some smtpd is: it looks for a unix socket below its queue directory then."""
    columns = [line.split() for line in services]
    return any(len(column) > 7 and column[7] == "smtpd" and column[4] != "n" for column in columns)


def _postfix_settings(settings: dict[str, str]) -> Iterator[Finding]:
    action = settings["milter_default_action"]
    problem = "mail passes unscanned when we are away: set milter_default_action = tempfail"
    yield Finding("Postfix milter_default_action", problem if action == "accept" else "", action)
    for name, least in _LIMITS_S.items():
        value = settings[name]
        short = f"too short for a mail server under load: set it to {least:.0f}s at least"
        yield Finding(f"Postfix {name}", short if _seconds(value) < least else "", value)
    protocol = settings["milter_protocol"]
    old = "older than 6: no macros can be asked for, and spaces in headers are lost: set milter_protocol = 6"
    yield Finding("Postfix milter_protocol", old if protocol < "6" else "", protocol)
    if not settings["non_smtpd_milters"]:
        yield Finding("Postfix non_smtpd_milters", detail="empty: mail submitted by local programs is not scanned")


def check_sendmail(conf: Config, file: Path) -> Iterator[Finding]:
    """Every milter listener against the X lines of a sendmail.cf."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        yield Finding(f"Sendmail's {file}", f"it cannot be read: {_why(exc)}")
        return
    for listener in _milters(conf):
        what = f"Sendmail and listener {listener.name}"
        wanted = _sendmail_names(listener.address)
        line = next((one for one in lines if one.startswith("X") and _equate(one, "S") in wanted), None)
        if line is None:
            yield Finding(what, f"no X line names it: INPUT_MAIL_FILTER(`scanbridge', `S={wanted[0]}, F=T')")
            continue
        problem = _sendmail_problem(line, listener.deadline)
        yield Finding(what, problem, _equate(line, "S"))


def _sendmail_problem(line: str, deadline: float) -> str:
    if _equate(line, "F") not in ("T", "R", "4"):
        return "mail passes unscanned when we are away: add F=T"
    times = dict(part.partition(":")[::2] for part in _equate(line, "T").split(";") if ":" in part)
    for name, least in _SENDMAIL_TIMES.items():
        if name in times and _seconds(times[name]) < least:
            return f"T={name}:{times[name]} is too short under load: set it to {least:.0f}s at least"
    whole = _seconds(times.get("E", "5m"))
    if whole <= deadline:
        return f"T=E:{whole:.0f}s ends before our deadline of {deadline:.0f}s: set E:{deadline + 60:.0f}s"
    return ""


def _equate(line: str, key: str) -> str:
    match = re.search(rf"[,\s]{key}=([^,]*)", line)
    return match.group(1).strip() if match else ""


def _milters(conf: Config) -> list[Listener]:
    return [listener for listener in conf.listeners if listener.protocol == "milter"]


def _postfix_names(address: Address) -> list[str]:
    if address.path:
        return [f"unix:{address.path}"]
    hosts = [address.host, *(["localhost", "127.0.0.1"] if address.is_local else [])]
    return [f"inet:{f'[{host}]' if ':' in host else host}:{address.port}" for host in dict.fromkeys(hosts)]


def _sendmail_names(address: Address) -> list[str]:
    if address.path:
        return [f"local:{address.path}", f"unix:{address.path}"]
    if ":" in address.host:
        return [f"inet6:{address.port}@{address.host}"]
    hosts = [address.host, *(["localhost"] if address.is_local else [])]
    return [f"inet:{address.port}@{host}" for host in hosts]


def _postconf(directory: Path, *options: str) -> dict[str, str]:
    """Settings by name. `$name` is expanded only where there is one: it may take a look into DNS."""
    text = _run_postconf(directory, *options)
    if "$" in text:
        text = _run_postconf(directory, "-x", *options)
    lines = text.splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def _run_postconf(directory: Path, *options: str) -> str:
    command = ["postconf", "-c", str(directory), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    return done.stdout


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhdw]?)", text)
    return float(match.group(1)) * _UNITS[match.group(2)] if match else float("inf")


def _why(exc: Exception) -> str:
    if isinstance(exc, subprocess.CalledProcessError):
        return (exc.stderr or "").strip().splitlines()[-1:][0] if (exc.stderr or "").strip() else "it failed"
    return (exc.strerror if isinstance(exc, OSError) else None) or type(exc).__name__
