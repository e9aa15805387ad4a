"""What can go wrong with a request: each failure has a stable word, a status and a sentence.

`ERRORS` is part of the OpenAPI document, so a new word is added there first.
"""

from __future__ import annotations

from bridge.api.failure import Failure

RETRY_S = 5
# Every value of `error`, with its HTTP status. The values are stable: clients may depend on them.
ERRORS: dict[str, tuple[int, str]] = {
    "unknown_parameter": (400, "There is no such parameter."),
    "invalid_parameter": (400, "A parameter has an invalid value, or a required one is missing."),
    "duplicate_parameter": (400, "A parameter is given twice."),
    "bad_request": (400, "The request is not valid HTTP."),
    "unauthorized": (401, "The token is missing or unknown, or the scheme is not Bearer."),
    "no_tokens": (403, "`api.tokens` is empty, so every request is refused."),
    "forbidden": (403, "The token is valid for other tenants only."),
    "not_found": (404, "There is no such path, or no such mail that the token gives access to."),
    "method_not_allowed": (405, "The path supports GET and HEAD only."),
    "head_timeout": (408, "The request line and header fields did not arrive within 30 s."),
    "too_many_queries": (429, "Too many queries with this token are waiting; see Retry-After."),
    "head_too_large": (431, "The request line and header fields are larger than 64 KiB."),
    "trailer_too_large": (431, "The trailer fields of a chunked request are larger than 64 KiB."),
    "internal": (500, "An internal error occurred; the log has the details."),
    "history_off": (503, "`history.enabled` is false."),
    "history_unavailable": (503, "The history cannot be read at the moment; see Retry-After."),
    "saturated": (503, "Too many queries or connections; see Retry-After."),
    "query_too_large": (503, "The query needs too much memory; narrow it, for example with `since`."),
    "query_timeout": (503, "The query took too long; narrow it, for example with `since`."),
}


_DENIED = ("unauthorized", "no_tokens", "forbidden")
_BUSY = ("too_many_queries", "saturated", "query_timeout", "query_too_large")


class ApiError(Exception):
    """The request is answered with an Error object."""

    def __init__(
        self, error: str, message: str, *, parameter: str = "", retry_after_s: int = 0, challenge: str = ""
    ) -> None:
        super().__init__(error)
        self.status = ERRORS[error][0]
        self.body = Failure(error, message).to_dict() | ({"parameter": parameter} if parameter else {})
        self.headers: dict[str, str] = {}
        self.result = (  # the label of the metric
            "denied"
            if error in _DENIED
            else "busy"
            if error in _BUSY
            else "failed"
            if self.status >= 500
            else "mistake"
        )
        if retry_after_s:
            self.headers["Retry-After"] = str(retry_after_s)
        if challenge:
            self.headers["WWW-Authenticate"] = challenge


def invalid(parameter: str, problem: str) -> ApiError:
    return ApiError("invalid_parameter", f"{parameter}: {problem}", parameter=parameter)
