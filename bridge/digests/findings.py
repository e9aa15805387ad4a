"""What was found in a mail, in the reader's language: `claims to be PayPal, sent from example.biz`.

The scanner's reasons are sentences in English, parts of which the sender of the mail chose. A sentence of the included
service is recognised by its form and translated; those of other scanners are shown as they are. The caller makes them
safe to show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridge.api.reason_texts import SENTENCES, UNKNOWN_DOMAIN
from bridge.digests.languages import Language

MAX_FINDINGS = 3  # for each mail: enough to see why it is held


def in_words(reasons: Iterable[str], words: Language) -> list[str]:
    """The first few, which matter most."""
    return [_translated(reason, words) for reason, _ in zip(reasons, range(MAX_FINDINGS), strict=False)]


def _translated(reason: str, words: Language) -> str:
    for sentence, form in _FORMS:
        if found := form.fullmatch(reason):
            named = found.groupdict()
            parts = [named.get("first", ""), named.get("second", "")]
            return words.say(sentence).format(*(words.say(part) if part == UNKNOWN_DOMAIN else part for part in parts))
    return reason


def _form(sentence: str) -> re.Pattern[str]:
    """The first value takes all it can: a name may contain words of the sentence, and a domain after it cannot."""
    escaped = re.escape(sentence).replace(r"\{0\}", "(?P<first>.*)").replace(r"\{1\}", "(?P<second>.*)")
    return re.compile(escaped, re.DOTALL)


# The longest first: the form of a shorter sentence may match a longer one, too.
_FORMS = [(sentence, _form(sentence)) for sentence in sorted(set(SENTENCES.values()), key=len, reverse=True)]
