"""What a postmaster types next, after the story of a mail: commands made of what was recorded.

They contain text that was written by strangers, quoted for the shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from bridge.filter import rule_names
from bridge.history.entry import MailEntry
from bridge.history.mails import Mail, is_open
from bridge.mail.action import Action
from bridge.mail.address import domain_of

PERSONAL = (rule_names.PERSONAL_BLOCK, rule_names.PERSONAL_ALLOW)
_HIDDEN = ("~", "*@")  # how addresses begin that `log.addresses` hides
_ALLOWING = ("list:allowed-", "list:personal-allowed-")  # tags, by the service's default rules


def with_file(command: str, path: Path | None) -> str:
    """Adds `-c` and the configuration file, if there is one, to our own commands; leaves others unchanged."""
    if path is None or not command.startswith("scanbridge "):
        return command
    _, verb, rest = [*command.split(" ", 2), ""][:3]
    while verb in ("quarantine", "lists", "lists personal"):
        sub, _, rest = rest.partition(" ")
        verb = f"{verb} {sub}"
    return f"scanbridge {verb} -c {shlex.quote(str(path))} {rest}".rstrip()


def in_mail_log(text: str) -> Iterator[str]:
    """Both forms: many systems have no file, and others no journal."""
    yield f"grep -F {shlex.quote(text)} /var/log/mail.log"
    yield f"journalctl -u 'postfix*' -g {shlex.quote(re.escape(text))}    # if Postfix logs to the journal"


def next_commands(
    mail: Mail, maildir: str, state: str, *, is_milter: bool = False, is_after_queue: bool = False
) -> Iterator[str]:
    """`maildir`: the next hop's path, if it is a Maildir. `state`: the quarantined mail's; "" if it is not there."""
    row, kind = mail.last.row, mail.last.kind
    if state:
        yield f"scanbridge quarantine show {row.id}"
        if state != "released":
            is_unknown = state in ("interrupted", "unsure")
            hint = "    # first look for it in the next hop's log; then add --again" if is_unknown else ""
            yield f"scanbridge quarantine release {row.id}{hint}"
    is_waiting = is_after_queue and is_open(mail.last)
    is_in_queue = kind.action == Action.HOLD or (kind.action == Action.RELAY and is_milter) or is_waiting
    if row.queue_id and is_in_queue:
        yield f"postqueue -p | grep {shlex.quote(row.queue_id)}    # is it still in the queue?"
    if row.queue_id and is_waiting:
        yield f"postqueue -i {shlex.quote(row.queue_id)}    # try again now"
    if kind.action == Action.HOLD and row.queue_id:
        yield f"postsuper -H {shlex.quote(row.queue_id)}    # release it"
    if kind.action == Action.RELAY and maildir:
        yield f"find {shlex.quote(maildir)} -name {shlex.quote(f'*.{row.id}.*')}"
    elif kind.action == Action.RELAY and (queue_id := row.next_id or row.queue_id):
        for one in mail.last.more.get("next_ids") or [queue_id]:
            yield from in_mail_log(one)
    yield from _list_commands(mail.last)
    if is_open(mail.last) and row.sender:
        yield f"scanbridge history --sender {shlex.quote(row.sender)} --follow"
    elif kind.action in (Action.REJECT, Action.DISCARD) and row.sender:
        yield f"scanbridge history --sender {shlex.quote(row.sender)}"


def _list_commands(entry: MailEntry) -> Iterator[str]:
    """How to find the entries that matched, with their comments, and how to delete one."""
    if entry.kind.rule in PERSONAL:
        yield from _personal_commands(entry)
        return
    tenant = f"    # tenant's lists: --tenant {entry.kind.tenant}" if entry.kind.tenant else ""
    for name in lists_of(entry):
        matched = matched_entry(entry, name)
        matched = "" if matched.startswith(_HIDDEN) else matched
        wanted = [matched] if matched else _possible_entries(entry.row.sender)
        words = "".join(f" -e {shlex.quote(word)}" for word in wanted)
        pattern = f" | grep -iF{words}" if words else ""
        yield f"scanbridge lists entries {shlex.quote(name)}{pattern}{tenant}"
        yield f"scanbridge lists delete {shlex.quote(name)} {shlex.quote(matched) if matched else 'ENTRY'}{tenant}"
    if entry.kind.list:  # the bridge enforces its own copy of the list, which is only refreshed from time to time
        yield "scanbridge lists refresh    # the bridge then uses the change within a second"


def _personal_commands(entry: MailEntry) -> Iterator[str]:
    """Personal lists are not in the service's lists. All recipients of the entry have one; the first is shown."""
    matched, recipient = matched_entry(entry, entry.kind.list), "".join(entry.recipients[:1])
    if not recipient or recipient.startswith(_HIDDEN):
        yield "scanbridge lists personal show"
        return
    yield f"scanbridge lists personal show {shlex.quote(recipient)}"
    kind = "block" if entry.kind.rule == rule_names.PERSONAL_BLOCK else "allow"
    yield f"scanbridge lists personal delete {kind} {shlex.quote(recipient)} {shlex.quote(matched or 'SENDER')}"


def lists_of(entry: MailEntry) -> list[str]:
    """The list that decided before the scan, or those in which the scanner found a match, except allow lists."""
    if entry.kind.list:
        return [entry.kind.list]
    if entry.kind.action == Action.RELAY and not entry.kind.would:
        return []
    matched = [tag for tag in entry.tags if tag.startswith("list:") and not tag.startswith(_ALLOWING)]
    return [tag.removeprefix("list:") for tag in matched]


def matched_entry(entry: MailEntry, name: str) -> str:
    """The entry of this list that matched, as far as is known; addresses as in the log."""
    if entry.kind.list:
        return str(entry.more.get("entry") or "")
    return str((entry.more.get("entries") or {}).get(name) or "")


def _possible_entries(sender: str) -> list[str]:
    """What an entry about this sender contains: its domain, or the one above it. Pseudonyms are in no list."""
    domain = "" if sender.startswith("~") else domain_of(sender)
    above = domain.partition(".")[2]
    return [name for name in (domain, above) if "." in name]
