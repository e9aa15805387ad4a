"""What a postmaster types next, after the story of a mail: commands made of what was recorded.

They contain text that was written by strangers, quoted for the shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from bridge.history.entry import MailEntry
from bridge.history.mails import Mail, is_open
from bridge.mail.action import Action
from bridge.mail.address import domain_of

_ALLOWING = ("list:allowed-", "list:personal-allowed-")  # tags, by the service's default rules


def in_mail_log(text: str) -> Iterator[str]:
    """Both forms: many systems have no file, and others no journal."""
    yield f"grep -F {shlex.quote(text)} /var/log/mail.log"
    yield f"journalctl -u 'postfix*' -g {shlex.quote(re.escape(text))}    # if Postfix logs to the journal"


def next_commands(mail: Mail, maildir: str, state: str) -> Iterator[str]:
    """`maildir`: of the next hop, if it is one. `state`: of the quarantined mail; "" if it is not there."""
    row, kind = mail.last.row, mail.last.kind
    if state:
        yield f"scanbridge quarantine show {row.id}"
        if state != "released":
            yield f"scanbridge quarantine release {row.id}"
    if kind.action == Action.HOLD and row.queue_id:
        yield f"postqueue -p | grep {shlex.quote(row.queue_id)}    # is it still in the queue?"
        yield f"postsuper -H {shlex.quote(row.queue_id)}    # release it"
    if kind.action == Action.RELAY and maildir:
        yield f"find {shlex.quote(maildir)} -name {shlex.quote(f'*.{row.id}.*')}"
    elif kind.action == Action.RELAY and (queue_id := row.next_id or row.queue_id):
        yield from in_mail_log(queue_id)
    yield from _list_commands(mail.last)
    if is_open(mail.last) and row.sender:
        yield f"scanbridge history --sender {shlex.quote(row.sender)} --follow"
    elif kind.action in (Action.REJECT, Action.DISCARD) and row.sender:
        yield f"scanbridge history --sender {shlex.quote(row.sender)}"


def _list_commands(entry: MailEntry) -> Iterator[str]:
    """How to find the entries that matched, with their comments, and how to delete one."""
    tenant = f"    # tenant's lists: --tenant {entry.kind.tenant}" if entry.kind.tenant else ""
    matched = entry.more.get("entry")
    for name in lists_of(entry):
        wanted = [str(matched)] if matched else _possible_entries(entry.row.sender)
        words = "".join(f" -e {shlex.quote(word)}" for word in wanted)
        pattern = f" | grep -iF{words}" if words else ""
        yield f"scanbridge lists entries {shlex.quote(name)}{pattern}{tenant}"
        yield f"scanbridge lists delete {shlex.quote(name)} {shlex.quote(str(matched)) if matched else 'ENTRY'}{tenant}"
    if entry.kind.list:  # the bridge enforces its own copy of the list, which is only refreshed from time to time
        yield "scanbridge lists refresh    # the bridge then uses the change within a second"


def lists_of(entry: MailEntry) -> list[str]:
    """The list that decided before the scan, or those that the scanner found a match in, which do not allow."""
    if entry.kind.list:
        return [entry.kind.list]
    if entry.kind.action == Action.RELAY and not entry.kind.would:
        return []
    matched = [tag for tag in entry.tags if tag.startswith("list:") and not tag.startswith(_ALLOWING)]
    return [tag.removeprefix("list:") for tag in matched]


def _possible_entries(sender: str) -> list[str]:
    """What an entry about this sender contains: its domain, or the one above it. Pseudonyms are in no list."""
    domain = "" if sender.startswith("~") else domain_of(sender)
    above = domain.partition(".")[2]
    return [name for name in (domain, above) if "." in name]
