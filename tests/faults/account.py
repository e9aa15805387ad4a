"""The account of a fault run: what each client was told, and where its mail is.

`lost` mails were accepted and are nowhere, `astray` mails are where the decision did not send them, `damaged` mails
have changed bytes. All three must be empty. A duplicate is allowed if a fault explains it (RFC 1047), and is listed
with that cause.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

from bridge.testing import Received
from tests.faults.senders import Mail
from tests.faults.world import DEADLINE_S, World

ID = re.compile(rb"^X-Fault: \w+ [\d.]+ (\S+)\r$", re.MULTILINE)
OUR_ID = re.compile(rb"\(scanbridge\) with E?SMTP id (\w+);\s+([^\r\n]+)\r\n")
STRAY = re.compile(r"^\.|tmp|damaged")  # in the state directory: half-written, or set aside
NEXT_ID = re.compile(rb"by behind\.example \(Postfix\) with E?SMTP id (\w+)")


class Faults(Protocol):
    def nearest(self, began: float, ended: float, words: tuple[str, ...]) -> str:
        """The fault that explains what happened in this period; "" if none does."""


@dataclass
class Copy:
    """One copy of a mail that arrived somewhere."""

    where: str  # "behind", "quarantine"
    our_id: str
    time: datetime
    next_id: str = ""


@dataclass
class Account:
    mails: list[Mail]
    copies: dict[str, list[Copy]]
    notices: Counter[str]  # of bounces, by mail
    lost: list[str] = field(default_factory=list)
    astray: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)  # no final reply at the end
    duplicates: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # cause: ids
    partial: list[str] = field(default_factory=list)  # incomplete or unknown files
    released: Counter[str] = field(default_factory=Counter)  # copies that arrived after a release, by our id


def make(world: World, mails: list[Mail], troubles: Faults) -> Account:
    account = Account(mails, defaultdict(list), Counter())
    bodies = {mail.id: mail.body() for mail in mails}
    read_destination(world.destination.mails, account, bodies)
    read_quarantine(world.disk.place / "quarantine", {row["id"] for row in world.bridge.kept()}, account, bodies)
    account.partial += [path.name for path in world.disk.place.iterdir() if STRAY.search(path.name)]
    seen = set(world.scanner.seen.read_text().splitlines())
    for mail in mails:
        judge(account, mail, f"{mail.id} {mail.decision}" in seen)
    log = log_lines(world.bridge.log)
    for mail_id, copies in account.copies.items():
        if len(copies) > 1:
            account.duplicates[cause(copies, log, troubles)].append(mail_id)
    return account


def read_destination(received: list[Received], account: Account, bodies: dict[str, bytes]) -> None:
    for mail in received:
        found = ID.search(mail.content)
        assert found is not None, mail.content[:2000]
        mail_id = found[1].decode()
        if any(command.startswith(b"MAIL FROM:<>") for command in mail.commands):
            account.notices[mail_id] += 1
            continue
        if not mail.content.endswith(b"\r\n\r\n" + bodies[mail_id]):
            account.damaged.append(mail_id)
        ours, theirs = OUR_ID.search(mail.content), NEXT_ID.search(mail.content)
        assert ours is not None and theirs is not None
        account.copies[mail_id].append(_copy("behind", ours, theirs[1].decode()))


def read_quarantine(directory: Path, rows: set[str], account: Account, bodies: dict[str, bytes]) -> None:
    """Mails that have both a file and an index row."""
    names = {path.name for path in directory.iterdir()}
    for our_id in rows:
        content = (directory / f"{our_id}.eml").read_bytes()
        found, ours = ID.search(content), OUR_ID.search(content)
        assert found is not None and ours is not None
        mail_id = found[1].decode()
        if not content.endswith(b"\r\n\r\n" + bodies[mail_id]):
            account.damaged.append(mail_id)
        account.copies[mail_id].append(_copy("quarantine", ours))
    whole = {f"{our_id}.{end}" for our_id in rows for end in ("eml", "json")}
    account.partial += sorted(names - whole)


def _copy(where: str, ours: re.Match[bytes], next_id: str = "") -> Copy:
    return Copy(where, ours[1].decode(), parsedate_to_datetime(ours[2].decode()), next_id)


def judge(account: Account, mail: Mail, was_decided: bool) -> None:
    """Whether the mail is where its decision sends it, and only there."""
    places = {copy.where for copy in account.copies.get(mail.id, [])}
    notices = account.notices[mail.id]
    wanted = {"deliver": {"behind"}, "quarantine": {"quarantine"}}.get(mail.decision, set())
    notified = mail.decision == "bounce" and mail.way == "queue"
    if places - wanted or (notices and not notified) or (mail.refused and mail.decision != "bounce"):
        account.astray.append(mail.id)
    if not (mail.accepted or mail.refused):
        account.open.append(mail.id)
    elif mail.accepted and mail.decision == "bounce" and not notified:
        account.astray.append(mail.id)
    elif mail.accepted and (wanted - places or (notified and not notices) or not was_decided):
        account.lost.append(mail.id)


def log_lines(path: Path) -> dict[str, dict[str, Any]]:
    """The bridge's log line for each id."""
    return {line["id"]: line for line in _lines(path) if "reply" in line or line.get("action") == "cancelled"}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        try:
            yield {"id": "", **json.loads(line)}
        except ValueError:  # truncated by a kill
            continue


def cause(copies: list[Copy], log: dict[str, dict[str, Any]], troubles: Faults) -> str:
    """Why there was a second copy: from its log line and the faults at that time."""
    copies = sorted(copies, key=lambda copy: (copy.time, copy.our_id))
    first = copies[0]
    if first.next_id and any(copy.next_id == first.next_id for copy in copies[1:]):
        return "the next-hop Postfix was killed and delivered its copy again"
    line = log.get(first.our_id)
    if line is None:
        what, needed = "the bridge died before its reply", ("killed",)
    elif line["action"] == "cancelled":
        what, needed = "the drain was cut short, or the client disconnected", ("stopped", "reloaded", "killed")
    elif line["reply"].startswith("250"):
        what, needed = "our 250 did not reach the client", ("killed", "stopped")
    else:
        what, needed = f"the next hop did not answer ({line['reply'][:9]})", ("next hop", "killed")
    began = first.time.timestamp()
    fault = troubles.nearest(began, began + 1 + DEADLINE_S, needed)
    return f"{what}: {fault}" if fault else f"unexplained: {what}; {first} {line}"
