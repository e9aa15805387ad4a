"""The default scores: how many points each tag is worth if `decisions.scores` does not say otherwise.

From 8 points on, the default rules quarantine a mail, and from 15 on they bounce it. A tag without a score is only
reported. docs/operate/service.md explains each tag.
"""

from __future__ import annotations

from bridge.mime import ambiguity

TAG_SCORES: dict[str, float] = {
    "mime:executable": 8.0,
    "mime:double-extension": 5.0,
    "mime:deceptive-name": 5.0,
    "mime:type-mismatch": 4.0,
    "mime:encrypted-archive": 4.0,
    "mime:macro": 4.0,
    "mime:nested-archive": 1.0,
    "mime:broken-archive": 8.0,  # other programs may read more of it
    "mime:broken-container": 2.0,  # most were made by Outlook itself, or are cut off
    "mime:unopened-archive": 2.0,
    "document:encrypted": 2.0,
    "document:not-read": 4.0,
    "office:auto-macro": 3.0,
    "office:macro-runs-program": 4.0,
    "office:dde": 8.0,
    "office:dde-link": 1.0,
    "office:exploit": 8.0,
    "office:launch": 8.0,
    "office:remote-template": 8.0,
    "office:remote-object": 4.0,
    "office:equation": 4.0,
    "office:embedded-file": 0.5,
    "pdf:launch": 8.0,
    "pdf:javascript": 2.0,
    "pdf:open-action": 2.0,
    "pdf:embedded-file": 0.5,
    "attachment:builds-file": 4.0,
    "attachment:builds-page": 4.0,
    "attachment:credential-form": 4.0,
    "picture:qr-link": 1.0,
    "picture:not-read": 0.5,
    "mime:partial": 8.0,
    "mime:external-body": 4.0,
    **{f"mime:ambiguous:{reason}": 8.0 for reason in ambiguity.CRAFTED},
    **{f"mime:ambiguous:{reason}": 2.0 for reason in ambiguity.RARE},
    "url:starts-program": 8.0,
    "url:mismatch": 3.0,
    "url:userinfo": 2.0,
    "url:ip-host": 2.0,
    "url:punycode": 0.5,
    "header:missing-from": 2.0,
    "header:missing-date": 1.0,
    "header:missing-message-id": 0.5,
    "header:bad-date": 1.0,
    "header:duplicate": 2.0,
    "header:several-from": 1.0,
    "header:display-address": 2.0,
    "header:reply-to-differs": 0.5,
    "auth:spf-fail": 3.0,
    "auth:spf-softfail": 1.0,
    "auth:dkim-fail": 1.0,
    "auth:dmarc-reject": 10.0,
    "auth:dmarc-quarantine": 8.0,
    "auth:dmarc-permerror": 8.0,
    "auth:dmarc-temperror": 8.0,  # in doubt, the mail is held: 8 is the score of the rule that quarantines
    "clamav:encrypted": 4.0,
    "icap:blocked": 8.0,
    "icap:policy": 8.0,
    "icap:container": 8.0,
}
