"""The columns of the list of mails."""

from __future__ import annotations

from bridge.cli.mail_table import MailTable, first_of
from bridge.history.entry import MailEntry

BRIEF = ("ID", "TIME", "FROM", "TO", "SUBJECT", "ACTION", "WHY")
# For lines that appear one by one: the width of each column is known before its content.
NATURAL = {"ID": 19, "TIME": 14, "FROM": 40, "TO": 40, "SUBJECT": 60, "ACTION": 10, "WHY": 60}


def action(entry: MailEntry) -> str:
    return f"{entry.kind.action} x{entry.row.mails}" if entry.row.mails > 1 else entry.kind.action


MAILS: MailTable[MailEntry] = MailTable(
    cells={
        "ID": lambda entry: entry.row.id or "-",
        "TIME": lambda entry: entry.time.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        "FROM": lambda entry: entry.shown_sender,
        "TO": lambda entry: first_of(entry.recipients) or "-",
        "SUBJECT": lambda entry: entry.row.subject,
        "ACTION": action,
        "WHY": lambda entry: entry.why,
        "DECISION": lambda entry: entry.kind.decision,
        "VERDICT": lambda entry: entry.kind.verdict,
        "TAGS": lambda entry: ",".join(entry.tags),
        "RULE": lambda entry: entry.kind.rule,
        "STAGE": lambda entry: entry.kind.stage,
        "REPLY": lambda entry: entry.row.reply,
        "MAILS": lambda entry: str(entry.row.mails),
        "SIZE": lambda entry: str(entry.row.size),
        "CLIENT": lambda entry: entry.row.client,
        "HELO": lambda entry: entry.row.helo,
        "LISTENER": lambda entry: entry.kind.listener,
        "TENANT": lambda entry: entry.kind.tenant,
        "MESSAGE-ID": lambda entry: entry.row.message_id,
        "QUEUE-ID": lambda entry: entry.row.queue_id,
        "NEXT-ID": lambda entry: entry.row.next_id,
        "GGRID": lambda entry: entry.row.ggrid,
        "SESSION": lambda entry: entry.row.session,
    },
    brief=BRIEF,
    wide=(
        *("ID", "TIME", "FROM", "TO", "SUBJECT", "ACTION", "DECISION", "VERDICT", "TAGS", "RULE", "STAGE", "REPLY"),
        *("MAILS", "SIZE", "CLIENT", "HELO", "LISTENER", "TENANT"),
        *("MESSAGE-ID", "QUEUE-ID", "NEXT-ID", "GGRID", "SESSION"),
    ),
    shared=("FROM", "TO", "SUBJECT", "WHY"),
    least_important=("TO", "WHY", "FROM", "ACTION", "TIME", "SUBJECT"),
    in_full={
        "TO": lambda entry: ", ".join(entry.recipients),
        "TIME": lambda entry: entry.time.astimezone().isoformat(timespec="seconds"),
    },
)
