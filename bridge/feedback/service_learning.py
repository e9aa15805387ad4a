"""The included scanning service learns a mail: `/v1/feedback`, an extension of the Email Scanning API.

The token goes to the scanner's own URLs and nowhere else: redirects are not followed, proxies from the environment
are not used. The hosts share a database, so one of them is enough. Blocks, so callers in an event loop use a thread.
The service remembers who reported which mail: repeating a report changes nothing.
"""

from __future__ import annotations

import json
import secrets
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

import httpx2

from bridge.api.feedback import FEEDBACK_PATH, FeedbackRequest
from bridge.api.scanning import BOUNDARY_BYTES, BorderMtaData, form
from bridge.feedback.report import LearnableMail, ReportKind
from bridge.feedback.rspamd_learning import WHOLE_S, LearningRefused, LearningUnavailable, connector, exchange
from bridge.runtime.visible_text import visible

_ABOUT_THIS_MAIL = frozenset({400, 409, 413})


@dataclass(frozen=True, slots=True)
class ScannerLearningSettings:
    urls: tuple[str, ...]
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None  # for https
    connect_timeout_s: float = 3.0
    timeout_s: float = 60.0
    whole_s: float = WHOLE_S
    tenant_uid: str | None = None  # of mail that belongs to no other tenant


class ScannerLearning:
    def __init__(self, settings: ScannerLearningSettings) -> None:
        self._settings = settings
        headers = {"Accept-Encoding": "identity", "Authorization": f"Bearer {settings.token}"}
        timeout = httpx2.Timeout(settings.timeout_s, connect=settings.connect_timeout_s)
        self._connector = connector(headers, settings.tls, settings.urls, timeout, settings.whole_s)

    def learn(self, kind: ReportKind, mail: LearnableMail) -> bool:
        """False if the service had this report already. Raises LearningUnavailable, LearningRefused."""
        boundary = secrets.token_hex(BOUNDARY_BYTES // 2)
        before, after = form(self._request(kind, mail).to_json(), boundary.encode())
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        problem = LearningUnavailable("no address of the scanning service is known")
        for url in self._settings.urls:
            try:
                body = chain([before], mail.content.chunks(), [after])
                return self._ask(url + FEEDBACK_PATH, body, len(before) + mail.content.size + len(after), headers)
            except LearningUnavailable as exc:
                problem = exc
        raise problem

    def _request(self, kind: ReportKind, mail: LearnableMail) -> FeedbackRequest:
        border = BorderMtaData(mail.sender, mail.recipients, mail.client or None) if mail.recipients else None
        return FeedbackRequest(str(kind), mail.reporter, border, mail.tenant or self._settings.tenant_uid, mail.ggrid)

    def _ask(self, url: str, body: Iterable[bytes], size: int, headers: dict[str, str]) -> bool:
        status, _, answer = exchange(self._connector, url, body, size, "the scanning service", headers)
        if status == 200:
            return _value(answer).get("learned") is True
        said = visible(str(_value(answer).get("message") or ""))[:200]
        if status in _ABOUT_THIS_MAIL:
            raise LearningRefused(f"the scanning service cannot learn from this mail: {said or status}")
        if status == 404:
            raise LearningRefused("the scanning service has no feedback interface: remove feedback.scanner")
        raise LearningUnavailable(
            f"the scanning service answered with HTTP status {status}" + (f": {said}" if said else "")
        )


def _value(answer: bytes) -> dict[str, object]:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
