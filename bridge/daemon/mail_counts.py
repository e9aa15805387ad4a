"""How many mails were processed since startup, by outcome: for people who have just sent their first mail.

`status`, `top` and the page at / show the sentence. The numbers are those of the metric `scanbridge_mails_total`;
rates and details are there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from bridge.mail.action import Action
from bridge.runtime.counted import counted, spoken

_WORDS = {
    Action.RELAY: "delivered",
    Action.REJECT: "rejected",
    Action.QUARANTINE: "quarantined",
    Action.HOLD: "held by the mail server",
    Action.DISCARD: "discarded",
    Action.TEMPFAIL: "deferred",
    "cancelled": "abandoned by the client",
}


def mail_counts(rows: Iterable[Sequence[Any]], recent: Iterable[Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """`rows`: the metric of all workers, each with action and count last. `recent`: each worker's latest mails."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[-2]] += int(row[-1])
    actions = {str(action): counts[action] for action in _WORDS if counts[action]}
    total = counts.total()
    last = max((entry[0] for entries in recent for entry in entries), default=None)
    age_s = None if last is None else max(round(time.monotonic() - last), 0)
    last_at = None if age_s is None else datetime.fromtimestamp(time.time() - age_s, UTC).isoformat(timespec="seconds")
    return {"total": total, "actions": actions, "last_at": last_at, "summary": _summary(total, actions, age_s)}


def _summary(total: int, actions: dict[str, int], age_s: int | None) -> str:
    if not total:
        return "no mail since startup"
    words = ", ".join(f"{actions[action]:,} {word}" for action, word in _WORDS.items() if action in actions)
    last = "" if age_s is None else f"; the last one {spoken(age_s)} ago"
    return f"{counted(total, 'mail')} since startup: {words}{last}"
