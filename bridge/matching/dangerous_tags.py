"""Tags of mail that no recipient's entry may get delivered: dangerous, forged, or not inspected completely.

The bridge and the service ask the same question. The names are those of our service; a vendor's tags are recognised by
their words. If this is wrong, a person who trusts a sender gets malware in that sender's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate

PATTERNS = (
    *("malware:*", "*virus*", "*phish*", "list:blocked-*", "incomplete", "failed:*", "limit:*"),
    *("mime:*", "office:*", "pdf:launch", "pdf:javascript", "pdf:embedded-file"),
    *("document:encrypted", "picture:qr-link"),
    *("attachment:builds-*", "attachment:credential-form", "attachment:script", "clamav:*", "icap:*", "yara:*"),
    *("auth:dmarc-reject", "auth:dmarc-quarantine", "auth:dmarc-fail", "auth:dmarc-temperror"),
    *("auth:dmarc-permerror", "auth:spf-fail"),
)
_DANGEROUS = re.compile("|".join(map(translate, PATTERNS)), re.IGNORECASE)


def has_danger(tags: Iterable[str]) -> bool:
    return any(map(_DANGEROUS.match, tags))
