"""The work of `scanbridge lists personal`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bridge.cli.config_option import fail_config, load_or_exit
from bridge.cli.lists.session import EXIT_FAILED
from bridge.cli.quarantine.session import login_name
from bridge.cli.state import make_state_directory
from bridge.cli.table import lines
from bridge.cli.terminal import say, say_json, say_lines
from bridge.config.model import Config
from bridge.daemon import personal_wiring, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.lists.personal_store import PersonalLists
from bridge.mail.address import domain_of
from bridge.runtime.visible_text import visible


def show(path: Path | None, recipient: str | None, as_json: bool) -> None:
    with _opened(path, recipient) as (_, lists):
        found = lists.entries(recipient)
    if as_json:
        for entry in found:
            shown = {"recipient": entry.recipient, "kind": entry.kind, "sender": entry.sender}
            say_json(
                shown | {"time": datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="seconds"), "by": entry.by}
            )
        return
    if not found:
        say(f"no personal entries{f' for {recipient}' if recipient else ''}", err=True)
        return
    rows = [("RECIPIENT", "KIND", "SENDER", "SINCE", "BY")]
    rows += [(each.recipient, each.kind, each.sender, _local(each.at), each.by) for each in found]
    rows = [tuple(map(visible, row)) for row in rows]  # type: ignore[misc]
    say_lines("\n".join(lines(rows, None, shared=("RECIPIENT", "SENDER"), least_important=("BY",))))


def add(path: Path | None, kind: str, recipient: str, senders: tuple[str, ...]) -> None:
    with _opened(path, recipient) as (conf, lists):
        for sender in senders:
            is_new = (lists.block if kind == "block" else lists.allow)(recipient, sender, by=login_name())
            done = {"block": "blocked", "allow": "allowed"}[kind]
            say(f"{sender}: {done if is_new else f'already {done}'} for {recipient}")
        if kind == "allow" and conf.personal_lists_of(_tenant(conf, recipient)).allow_by == "nobody":
            say("this has no effect: personal_lists.allow_by is `nobody`", err=True)


def delete(path: Path | None, kind: str, recipient: str, senders: tuple[str, ...]) -> None:
    with _opened(path, recipient) as (_, lists):
        for sender in senders:
            is_gone = lists.remove(recipient, kind, sender)
            say(f"{sender}: {'deleted' if is_gone else 'no such entry'}")


@contextmanager
def _opened(path: Path | None, recipient: str | None) -> Iterator[tuple[Config, PersonalLists]]:
    conf = load_or_exit(path)
    try:
        state = make_state_directory(conf, path)
        lists = personal_wiring.personal_lists(conf, state, _tenant(conf, recipient or ""))
    except ConfigError as exc:
        fail_config(exc)
    try:
        yield conf, lists
    except BridgeError as exc:
        say(f"scanbridge lists personal: {exc}", err=True)
        sys.exit(EXIT_FAILED)
    finally:
        lists.close()


def _tenant(conf: Config, recipient: str) -> str | None:
    return wiring.tenants_by_domain(conf).get(domain_of(recipient), conf.scanner.tenant_uid)


def _local(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
