"""One quarantined mail for people: what is known about it, its text, its attachments.

Everything is returned as lines of text; `terminal.say` makes them safe to show.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from bridge.api.scanning import Scoring
from bridge.cli.quarantine.scores import default_scores
from bridge.mime.mail_text import Attachment, Reading
from bridge.quarantine.record import KEPT, MailRecord
from bridge.quarantine.worst_tags_first import worst_first

_LATER = ("tags", "verdict", "decision", "rule", "reason", "reasons", "scoring")  # facts that are shown first
_NOT_REPORTED = "not reported by the scanner"


def facts(mail: MailRecord) -> list[tuple[str, str]]:
    found = [("id", mail.id), ("kept", _local(mail.time)), ("state", _state(mail))]
    found += _reasons(mail)
    found += [("from", f"<{mail.envelope.sender}>")] + [("to", address) for address in mail.envelope.addresses]
    found += [("subject", mail.subject), ("client", mail.client.address or ""), ("helo", mail.client.helo or "")]
    found += [("listener", mail.listener), ("session", mail.session), ("tenant", mail.tenant)]
    found += [("size", f"{mail.size} bytes")]
    found += [(str(name), _shown(value)) for name, value in mail.facts.items() if name not in _LATER]
    for attempt in mail.releases:
        answer = attempt.reply or "started, result unknown"
        found.append(("release", f"{attempt.local_time} by {attempt.by} to {', '.join(attempt.to)}: {answer}"))
        found.append(("delivered", ", ".join(attempt.delivered)))
        if attempt.unsure:
            found.append(("unsure", f"the next hop did not answer; {', '.join(attempt.unsure)} may have the mail"))
    if mail.is_damaged:
        found.append(("note", "the .json file is damaged; the mail can be released with --to"))
    return [(name, value) for name, value in found if value]


def _reasons(mail: MailRecord) -> Iterator[tuple[str, str]]:
    """Decision, verdict, tags and their scores, and the rules that decided, here and at the scanner."""
    for name in ("decision", "verdict"):
        yield name, _shown(mail.facts.get(name) or "")
    if not mail.is_damaged:
        yield "rule", _shown(mail.facts.get("rule") or "not recorded: stored by an older version")
    yield "reason", _shown(mail.facts.get("reason") or "")
    for reason in mail.reasons:
        yield "why", reason
    scoring = mail.scoring
    own = dict(scoring.scores) if scoring is not None else {}
    yield "tags", ", ".join(worst_first(mail.tags, {**default_scores(), **own}))
    if mail.facts.get("decision"):
        yield from _scoring(scoring)
    elif not mail.is_damaged:
        yield "scores", "none: the scanner made no decision about this mail"


def _scoring(found: Scoring | None) -> Iterator[tuple[str, str]]:
    """What the scanner said about its decision when it made it; its configuration may have changed since."""
    if found is None:
        yield "scan rule", _NOT_REPORTED
        yield "scores", _NOT_REPORTED
        return
    yield "scan rule", found.rule
    scores = ", ".join(f"{name} {score:g}" for name, score in found.scores)
    yield "scores", f"{found.total:g} ({scores})" if scores else "none"


def _state(mail: MailRecord) -> str:
    """With the number of recipients who have it, if only some do."""
    everyone = mail.envelope.recipients
    have = len(everyone) - len(mail.lacking(everyone))
    partly = mail.state == KEPT and have
    return f"{mail.state} (released to {have} of {len(everyone)} recipients)" if partly else mail.state


def content(reading: Reading) -> Iterator[str]:
    """The attachments, then the text."""
    for attachment in reading.attachments:
        yield _attachment(attachment)
    if reading.problem:
        yield f"note:        {reading.problem}; `show --raw` prints all of it"
    yield ""
    yield f"--- text{', from HTML' if reading.is_html else ''} ---"
    yield from reading.lines or ["(none)"]
    if reading.left_out:
        yield f"--- {reading.left_out} more lines: `show --raw` prints all of them ---"


def _attachment(part: Attachment) -> str:
    known = f"{part.name or '(no name)'}, {part.content_type}, {size(part.size)}"
    return f"attachment:  {known}, sha256 {part.sha256 or 'not computed'}"


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


def size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.0f} KiB" if count < 1024**2 else f"{count / 1024**2:.1f} MiB"
