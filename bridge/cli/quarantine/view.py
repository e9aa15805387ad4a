"""Quarantined mail for people: the table of mails, and the details of one mail.

Text written by strangers reaches the terminal as text: never as markup, and without control characters.
"""

from __future__ import annotations

from datetime import datetime

from rich.table import Table
from rich.text import Text

from bridge.quarantine.record import MailRecord
from bridge.runtime.visible_text import visible


def table(mails: list[MailRecord]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    longest = max(len(mail.id) for mail in mails)
    shown.add_column("ID", no_wrap=True, min_width=longest)
    shown.add_column("KEPT", no_wrap=True, min_width=16)
    for name in ("FROM", "TO", "SUBJECT"):
        shown.add_column(name, overflow="fold", ratio=1)
    for name in ("DECISION", "TAGS"):
        shown.add_column(name, overflow="fold")
    shown.add_column("SIZE", justify="right", no_wrap=True)
    shown.add_column("STATE", no_wrap=True)
    for mail in mails:
        addresses = mail.envelope.addresses
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        cells = [mail.id, _local(mail.time), f"<{mail.envelope.sender}>", "".join(addresses[:1]) + more]
        cells += [mail.subject, "damaged .json" if mail.is_damaged else mail.decision, ",".join(mail.tags)]
        shown.add_row(*(Text(visible(cell)) for cell in [*cells, _size(mail.size), mail.state]))
    return shown


def facts(mail: MailRecord) -> list[tuple[str, str]]:
    found = [("id", mail.id), ("kept", _local(mail.time)), ("state", mail.state)]
    found += [("from", f"<{mail.envelope.sender}>")] + [("to", address) for address in mail.envelope.addresses]
    found += [("subject", mail.subject), ("client", mail.client.address or ""), ("helo", mail.client.helo or "")]
    found += [("listener", mail.listener), ("session", mail.session), ("tenant", mail.tenant)]
    found += [("size", f"{mail.size} bytes")]
    found += [(str(name), _shown(value)) for name, value in mail.facts.items()]
    for attempt in mail.releases:
        answer = attempt.reply or "started, result unknown"
        found.append(("release", f"{attempt.at} by {attempt.by} to {', '.join(attempt.to)}: {answer}"))
        found.append(("delivered", ", ".join(attempt.delivered)))
    if mail.is_damaged:
        found.append(("note", "the .json file is damaged; the mail can be released with --to"))
    return [(name, value) for name, value in found if value]


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def _size(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.0f} KiB" if size < 1024**2 else f"{size / 1024**2:.1f} MiB"
