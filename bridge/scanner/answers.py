"""What an HTTP answer of the scanner means: a decision, or one of a few named errors.

Pure functions. If this is wrong, a mail that the scanner wanted stopped is delivered, or wanted mail is refused.
"""

from __future__ import annotations

from bridge.api.failure import NO_ROOM, Failure
from bridge.api.scanning import AnalysisResult, QueueStatus, queue_status_from_json
from bridge.errors import MessageTooLarge, NoRoom, Saturated, ScanMalformed, ScanRefused, ScanUnavailable
from bridge.scanner.http import Answer

MAX_RETRY_AFTER_S = 60.0


class TokenRefused(ScanRefused):
    """401 or 403."""


class NotPermitted(TokenRefused):
    """403 with a reason: the service knows the token, which has no permission to scan."""


class ScanningDisabled(TokenRefused):
    """403 from a service that does not scan for anybody (`scanSources`)."""


class NotFound(ScanRefused):
    """404: another web server, or another path."""


class StatusNotFound(ScanUnavailable):
    """The same for a status request."""


class OtherDialect(ScanUnavailable):
    """The server speaks another dialect, which the text names."""


class BadGateway(ScanUnavailable):
    """502 or 504: the service behind a proxy disconnected or did not answer while it had the mail."""


def read_result(url: str, answer: Answer, token: str) -> AnalysisResult:
    """The decision in an answer. Raises ScanError or Saturated; the token is masked in their text."""
    need_decision(url, answer, token)
    try:
        return AnalysisResult.from_json(answer.body)
    except (ValueError, RecursionError) as exc:
        raise unreadable(url, answer, token) from exc


def need_decision(url: str, answer: Answer, token: str) -> None:
    """Raises ScanError or Saturated unless the answer is a complete 200, whose body is then to be read."""
    if answer.status == 200:
        if answer.early:
            raise ScanMalformed(f"{url}: the decision arrived before the whole mail had been sent")
        encoding = answer.headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            raise ScanMalformed(f"{url}: the answer is compressed, which was not requested")
        return
    failure = _failure(answer)
    said = _masked(f"{failure.error} {failure.message}", token)
    text = f"{url}: {answer.status} {said}".strip()[:300]
    if answer.status == 413:
        raise MessageTooLarge(text)
    retry_after = _retry_after(answer)
    if answer.status == 429 or (answer.status == 503 and retry_after is not None):
        error = NoRoom if failure.error == NO_ROOM else Saturated
        raise error(text, min(retry_after or 0.0, MAX_RETRY_AFTER_S))
    if answer.status >= 500:
        raise BadGateway(text) if answer.status in (502, 504) else ScanUnavailable(text)
    if answer.status >= 400:
        raise _refusal(answer.status, failure)(text)
    raise ScanMalformed(text)


def _refusal(status: int, failure: Failure) -> type[ScanRefused]:
    match status, failure.error:
        case 403, "scan_source_disabled":
            return ScanningDisabled
        case 403, error if error:
            return NotPermitted
        case 401 | 403, _:
            return TokenRefused
        case 404, _:
            return NotFound
        case _:
            return ScanRefused


def need_status(url: str, answer: Answer, expected: int = 200) -> None:
    """Raises ScanError unless a status request was answered as expected."""
    if answer.status in (401, 403):
        raise TokenRefused(f"{url}: the token was refused ({answer.status})")
    if answer.status != expected:
        text = f"{url}: the status request was answered with {answer.status}"
        if answer.headers.get(b"server", b"").startswith(b"rspamd/"):
            raise OtherDialect(f"{text}; this is an rspamd server: set scanner.dialect: rspamd")
        raise StatusNotFound(text) if answer.status == 404 else ScanUnavailable(text)


def read_status(url: str, answer: Answer) -> QueueStatus:
    """The status that the service reports. Raises ScanError."""
    need_status(url, answer)
    try:
        return queue_status_from_json(answer.body)
    except (ValueError, RecursionError) as exc:
        raise ScanMalformed(f"{url}: the status cannot be read") from exc


def unreadable(url: str, answer: Answer, token: str) -> ScanMalformed:
    """The error for a body that is not a decision. It shows how the body begins: often with a proxy's own page."""
    kind = answer.headers.get(b"content-type", b"no content type")
    # Masked before the text is cut in the middle of a token.
    said = (_masked(text.decode("utf-8", "replace"), token)[:80] for text in (kind, answer.body))
    return ScanMalformed(f"{url}: the answer cannot be read: {', '.join(map(repr, said))}")


def _masked(text: str, token: str) -> str:
    return text.replace(token, "***") if token else text


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
