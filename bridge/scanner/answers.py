"""What an HTTP answer of the scanner means: a decision, or one of a few named errors.

Pure functions. If this is wrong, a mail that the scanner wanted stopped is delivered, or wanted mail is refused.
"""

from __future__ import annotations

from bridge.api.failure import Failure
from bridge.api.scanning import AnalysisResult, QueueStatus, queue_status_from_json
from bridge.errors import MessageTooLarge, Saturated, ScanMalformed, ScanRefused, ScanUnavailable
from bridge.scanner.http import Answer

MAX_RETRY_AFTER_S = 60.0


class TokenRefused(ScanRefused):
    """401 or 403."""


class BadGateway(ScanUnavailable):
    """502 or 504: the service behind a proxy went away, or did not answer, while it had the mail."""


def read_result(url: str, answer: Answer, token: str) -> AnalysisResult:
    """The decision in an answer. Raises ScanError or Saturated; the token is masked in their text."""
    if answer.status == 200:
        if answer.early:
            raise ScanMalformed(f"{url}: the decision arrived before the mail was sent completely")
        encoding = answer.headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise ScanMalformed(f"{url}: the answer is compressed, which was not requested")
        try:
            return AnalysisResult.from_json(answer.body)
        except (ValueError, RecursionError) as exc:
            raise ScanMalformed(f"{url}: the answer cannot be read: {_seen(answer, token)}") from exc
    failure = _failure(answer)
    said = f"{failure.error} {failure.message}".replace(token, "***")
    text = f"{url}: {answer.status} {said}".strip()[:300]
    if answer.status == 413:
        raise MessageTooLarge(text)
    retry_after = _retry_after(answer)
    if answer.status == 429 or (answer.status == 503 and retry_after is not None):
        raise Saturated(text, min(retry_after or 0.0, MAX_RETRY_AFTER_S))
    if answer.status >= 500:
        raise BadGateway(text) if answer.status in (502, 504) else ScanUnavailable(text)
    if answer.status >= 400:
        raise TokenRefused(text) if answer.status in (401, 403) else ScanRefused(text)
    raise ScanMalformed(text)


def read_status(url: str, answer: Answer) -> QueueStatus:
    """The status that the service reports. Raises ScanError."""
    if answer.status in (401, 403):
        raise TokenRefused(f"{url}: the token is refused ({answer.status})")
    if answer.status != 200:
        raise ScanUnavailable(f"{url}: the status request was answered with {answer.status}")
    try:
        return queue_status_from_json(answer.body)
    except (ValueError, RecursionError) as exc:
        raise ScanMalformed(f"{url}: the status cannot be read") from exc


def _seen(answer: Answer, token: str) -> str:
    """The start of an answer that cannot be read: often a proxy's own page."""
    kind = answer.headers.get(b"content-type", b"no content type")
    said = (
        text.replace(token.encode(), b"***") for text in (kind, answer.body)
    )  # masked before the text is cut in the middle of a token
    return ", ".join(repr(text[:80].decode("utf-8", "replace")) for text in said)


def _failure(answer: Answer) -> Failure:
    try:
        return Failure.from_json(answer.body)
    except RecursionError:  # deeply nested brackets
        return Failure("")


def _retry_after(answer: Answer) -> float | None:
    """Seconds. A date counts as one second, because the clocks may differ."""
    value = answer.headers.get(b"retry-after")
    if value is None:
        return None
    return float(value) if value.isdigit() and len(value) < 9 else 1.0
