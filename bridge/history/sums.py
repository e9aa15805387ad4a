"""Statistics: from numbers in the database to lines of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from bridge.history.query import By, Sum


def labels_of(by: By, value: Any) -> Iterable[str]:
    """What a mail is counted under: a mail with two tags or two recipients counts for both."""
    if by in ("tag", "recipient"):
        return set(str(value).split("," if by == "tag" else "\n")) - {""}
    if by == "hour":
        return (datetime.fromtimestamp(value * 3600, UTC).strftime("%Y-%m-%d %H:00"),)
    if by == "day":
        return (datetime.fromtimestamp(value * 86400, UTC).strftime("%Y-%m-%d"),)
    return (str(value),)


def ordered_sums(by: By, mails: Counter[str], sizes: Counter[str]) -> list[Sum]:
    labels = sorted(mails) if by in ("hour", "day") else sorted(mails, key=lambda label: (-mails[label], label))
    return [Sum(label, mails[label], sizes[label]) for label in labels]
