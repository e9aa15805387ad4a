"""Why a mail is held, for people who do not know what a tag is; and what users may do because of it.

The most serious reason counts. What is not recognised is `other`: by default, users may only request such mail. If this
is wrong, users release malware themselves.
"""

from __future__ import annotations

import re
from enum import StrEnum

from bridge.matching.dangerous_tags import has_danger
from bridge.quarantine.record import MailRecord
from bridge.runtime.marked_text import N_


class Reason(StrEnum):
    MALWARE = "malware"
    PHISHING = "phishing"
    BLOCKED = "blocked"
    SPAM = "spam"
    OTHER = "other"


_NAMED = (
    (Reason.MALWARE, re.compile("malware|virus|trojan|ransom|worm|exploit|clamav|eicar")),
    (Reason.PHISHING, re.compile("phish|fraud|scam|spoof|impersonat")),
    (Reason.BLOCKED, re.compile(r"list:blocked|^blocked")),
    (Reason.SPAM, re.compile(r"spam|bulk|rspamd:(?:reject|add-header|rewrite-subject|greylist)|gtube|unsolicited")),
)
_HARMLESS = re.compile(r"[:-](?:pass|none|clean|ok)$|not-?spam|no-?virus|^list:allowed")
# An engine that found nothing says so with its whole tag. What follows `malware:` is a name that a sender may choose.
_FOUND_NOTHING = re.compile(
    r"(?:(?!malware:|limit:|failed:|mime:|yara:)[a-z0-9_.-]+:)?(?:pass|none|clean|ok|no-?virus)"
    r"|(?:virus|malware|phishing)-(?:pass|none|clean|ok)"
)
_USUAL_IN_SPAM = frozenset({"auth:spf-fail", "auth:dmarc-fail", "auth:dmarc-quarantine"})


def reason_of(mail: MailRecord) -> Reason:
    """Judged by the tags, the verdict and the rule."""
    if mail.is_damaged:
        return Reason.OTHER
    verdict = str(mail.facts.get("verdict") or "").lower()
    words = [tag.lower() for tag in mail.tags if not _is_harmless(tag.lower())]
    for reason, pattern in _NAMED:
        if pattern.search(verdict) or any(map(pattern.search, words)):
            is_more = reason is Reason.SPAM and has_danger(set(words) - _USUAL_IN_SPAM)  # whatever the verdict
            return Reason.OTHER if is_more else reason
    return Reason.OTHER


def _is_harmless(tag: str) -> bool:
    if not _HARMLESS.search(tag):
        return False
    is_serious = has_danger((tag,)) or any(pattern.search(tag) for _, pattern in _NAMED[:2])
    return not is_serious or _FOUND_NOTHING.fullmatch(tag) is not None


def words_for(reason: Reason) -> str:
    """A sentence in English, to be translated."""
    return _WORDS[reason]


_WORDS = {
    Reason.MALWARE: N_("It contains a virus or other harmful software."),
    Reason.PHISHING: N_("It looks like an attempt to steal passwords or money."),
    Reason.BLOCKED: N_("Its sender or content is blocked by your organisation."),
    Reason.SPAM: N_("It looks like unwanted advertising (spam)."),
    Reason.OTHER: N_("It contains something unusual, or could not be checked completely."),
}
