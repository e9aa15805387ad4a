"""rspamd over HTTP (`/checkv2`): its action becomes a tag, and its score counts by its own thresholds.

A mail that rspamd just rejects (`required_score`) gets 15 points, and none gets more. One that it calls spam without
rejecting it gets its share of `spam_score`, and one that it does not call spam gets none.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from bridge.api.json_answer import read_decision_in_any_bytes
from bridge.service.analysis.connections import counted
from bridge.service.analysis.engine import Findings, LimitReached, Mail, as_tag
from bridge.service.analysis.http_answer import answer_to, http_client
from bridge.service.analysis.opinions import REJECTED, UNSURE, opinion_of
from bridge.service.engine_settings import Rspamd

_NOT_SPAM = frozenset({"no action", "greylist", "soft reject"})  # actions
_PASSED = frozenset({"rspamd:no-action", "rspamd:greylist"})  # tags that say nothing against a mail
MAX_ANSWER = 4 * 1024 * 1024


class RspamdError(Exception):
    """rspamd's answer is unusable."""


class RspamdAnalyzer:
    def __init__(self, settings: Rspamd) -> None:
        self._url = f"{settings.url}/checkv2"
        self._settings = settings
        self._client = http_client(settings.timeout, connections=100)

    async def start(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._settings.max_size:
            raise LimitReached("size")
        answer, has_sent_all = await answer_to(self._client, self._url, _headers(mail), _body(mail), MAX_ANSWER)
        found = read_answer(answer, self._settings.spam_score)
        return counted(found, has_sent_all, is_bad=found.tags.isdisjoint(_PASSED))

    async def close(self) -> None:
        await self._client.aclose()


def _headers(mail: Mail) -> list[tuple[bytes, bytes]]:
    border = mail.request.border
    found = [(b"Content-Length", str(mail.size).encode()), (b"Queue-Id", mail.ggrid.encode())]
    found.append((b"From", _value(border.envelope_from)))
    found += [(b"Rcpt", _value(recipient)) for recipient in border.envelope_recipients[:1000]]
    if border.remote_address:
        found.append((b"IP", _value(border.remote_address)))
    if border.sender_helo:
        found.append((b"Helo", _value(border.sender_helo)))
    return found


def _value(text: str) -> bytes:
    """Replace control characters, so that remote input cannot break out of its header field.

    Spaces at its ends are dropped: the HTTP library refuses them, and a sender whose HELO has one would not be checked.
    """
    return re.sub(rb"[\x00-\x1f\x7f]", b"?", text[:1000].encode("utf-8", "replace")).strip(b" ")


async def _body(mail: Mail) -> AsyncIterator[bytes]:
    for chunk in mail.chunks():
        yield chunk


def read_answer(body: bytes, spam_score: float) -> Findings:
    """Raises RspamdError if the answer has no action."""
    try:
        answer = read_decision_in_any_bytes(body, "action", "score", "required_score")
        action, score = answer["action"], float(answer.get("score", 0.0))
        worth = REJECTED if action == "reject" else spam_score
        points = opinion_of(score, float(answer.get("required_score") or 0.0), worth)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise RspamdError("malformed answer") from None
    if not isinstance(action, str):
        raise RspamdError("malformed answer")
    most = UNSURE if action in _NOT_SPAM else worth
    return Findings(frozenset({f"rspamd:{as_tag(action)}"}), opinion=min(points, most))
