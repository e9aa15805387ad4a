"""Compares Exim's settings with ours, read from its file (or the parts in a directory, as Debian splits it).

Only part of Exim's language is understood: macros and includes are not followed. A setting that is not found is
reported with the line to write, and the operator decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bridge.cli.check.finding import Finding
from bridge.cli.check.seconds import seconds
from bridge.cli.postfix_lines import front_size, mail_server_wait_s
from bridge.config.listener import Listener
from bridge.config.model import Config

_SIZES = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_DEFAULT_SIZE = "50M"
_DEFAULT_WAIT = "10m"  # final_timeout of the smtp transport


def check_exim(conf: Config, place: Path) -> Iterator[Finding]:
    """Checks every listener with an Exim profile."""
    try:
        text = _read(place)
    except OSError as exc:
        yield Finding(f"Exim's {place}", f"cannot be read: {exc.strerror}")
        return
    listeners = [listener for listener in conf.listeners if listener.profile.startswith("exim-")]
    if not listeners:
        yield Finding(
            f"Exim's {place}", "no listener has an Exim profile: set profile: exim-cutthrough for one of the listeners"
        )
    for listener in listeners:
        yield from _listener(listener, text)
    if listeners:
        yield _size(conf, text)


def _listener(listener: Listener, text: str) -> Iterator[Finding]:
    what, address = f"Exim and listener {listener.name}", listener.address
    if not address.path and not re.search(rf"(?m)^\s*(route_list|route_data|port)\s*=.*\b{address.port}\b", text):
        yield Finding(what, f"no router sends mail to it: add route_list = * {address.host}::{address.port} byname")
    else:
        yield Finding(what, detail=str(address))
    yield _client(listener, text)
    if listener.profile == "exim-cutthrough":
        yield from _cutthrough(text)
        return
    waits = re.findall(r"(?m)^\s*final_timeout\s*=\s*(\w+)", text) or [_DEFAULT_WAIT]
    early = min(map(seconds, waits)) <= listener.deadline
    problem = (
        f"shorter than the bridge's deadline of {listener.deadline:g}s: "
        f"set final_timeout = {mail_server_wait_s(listener)}s"
    )
    yield Finding.of_setting("Exim final_timeout", waits[0], problem if early else "")


def _client(listener: Listener, text: str) -> Finding:
    """Exim does not send XFORWARD: a header field at the top of every mail names the client."""
    what, name = "Exim and the client's address", listener.client_header
    if name is None:
        advice = f"set client_header: X-Scanbridge-Client for listener {listener.name} (Exim's part is in deploy/exim)"
        return Finding(what, warning=f"the scanner gets Exim's address instead of the client's: {advice}")
    added = re.findall(rf"(?m)^[^#\n]*\badd_header\s*=\s*(\S*){re.escape(name)}:", text)
    line = f"accept add_header = :at_start:{name}: ADDR=$sender_host_address"
    if any(not place.startswith(":at_start:") for place in added):
        return Finding(what, f"a {name} field forged by the sender would be above Exim's and be trusted: use {line}")
    missing = [acl for acl in ("acl_smtp_mail", "acl_not_smtp") if not re.search(rf"(?m)^\s*{acl}\s*=", text)]
    if missing or len(added) < 2:
        where = " and ".join(missing or ["acl_smtp_mail", "acl_not_smtp"])
        return Finding(
            what, f"Exim does not add {name} to every mail, so a forged field is trusted: add {line} to {where}"
        )
    return Finding(what, detail=name)


def _cutthrough(text: str) -> Iterator[Finding]:
    what = "Exim cutthrough_delivery"
    found = re.findall(r"(?m)^[^#\n]*control\s*=\s*cutthrough_delivery(\S*)", text)
    if not found:
        line = "accept control = cutthrough_delivery/defer=pass to the RCPT ACL"
        yield Finding(what, f"missing, so the bridge's refusals become bounces: add {line}")
    elif not any("defer=pass" in options for options in found):
        advice = "set cutthrough_delivery/defer=pass"
        yield Finding(what, f"without defer=pass, Exim accepts mail that the bridge defers: {advice}")
    else:
        yield Finding(what)
    if re.search(r"(?m)^\s*headers_add\s*=", _transports(text)):
        yield Finding(
            "Exim headers_add", "in a transport, it corrupts mail with cutthrough delivery (Exim 4.96): remove it there"
        )


def _transports(text: str) -> str:
    return text.partition("begin transports")[2].partition("\nbegin ")[0]


def _size(conf: Config, text: str) -> Finding:
    match = re.search(r"(?m)^\s*message_size_limit\s*=\s*(\d+)([KMG]?)\s*$", text)
    value = match.group(1) + match.group(2) if match else _DEFAULT_SIZE
    number = re.fullmatch(r"(\d+)([KMG]?)", value)
    size = int(number.group(1)) * _SIZES[number.group(2)] if number else 0
    problem = (
        "with Exim's Received field added, mail may exceed the bridge's limit: "
        f"set message_size_limit = {front_size(conf)}"
    )
    is_large = size == 0 or size > front_size(conf)
    return Finding.of_setting("Exim message_size_limit", value, problem if is_large else "")


def _read(place: Path) -> str:
    if place.is_file():
        return place.read_text(encoding="utf-8", errors="replace")
    parts = sorted(path for path in place.rglob("*") if path.is_file())
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in parts)
