"""The columns of the list of quarantined mails."""

from __future__ import annotations

from bridge.cli.mail_table import MailTable, first_of
from bridge.cli.quarantine.scores import default_scores
from bridge.quarantine.record import MailRecord
from bridge.quarantine.worst_tags_first import why

BRIEF = ("ID", "TIME", "FROM", "TO", "SUBJECT", "WHY", "STATE")

QUARANTINED: MailTable[MailRecord] = MailTable(
    cells={
        "ID": lambda mail: mail.id,
        "TIME": lambda mail: mail.time.astimezone().strftime("%Y-%m-%d %H:%M"),
        "FROM": lambda mail: mail.envelope.sender or "<>",
        "TO": lambda mail: first_of(mail.envelope.addresses),
        "SUBJECT": lambda mail: mail.subject,
        "WHY": lambda mail: why(mail, default_scores()),
        "STATE": lambda mail: mail.state,
        "DECISION": lambda mail: mail.decision,
        "VERDICT": lambda mail: str(mail.facts.get("verdict") or ""),
        "SIZE": lambda mail: str(mail.size),
        "CLIENT": lambda mail: mail.client.address or "",
        "HELO": lambda mail: mail.client.helo or "",
        "LISTENER": lambda mail: mail.listener,
        "TENANT": lambda mail: mail.tenant,
    },
    brief=BRIEF,
    wide=(*BRIEF, "DECISION", "VERDICT", "SIZE", "CLIENT", "HELO", "LISTENER", "TENANT"),
    shared=("FROM", "TO", "SUBJECT", "WHY"),
    least_important=("TO", "FROM", "STATE", "WHY", "TIME", "SUBJECT"),
    usual={"STATE": "kept"},
    in_full={
        "TO": lambda mail: ", ".join(mail.envelope.addresses),
        "TIME": lambda mail: mail.time.astimezone().isoformat(timespec="seconds"),
    },
)
