"""The header fields of every response, above all the content security policy.

No inline script or style, nothing from elsewhere, no framing. The preview of a mail has its own policy, and is the
only page that may be framed, by us alone. If this is wrong, text in a mail can run as code.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from bridge.console.preview import STYLE_HASH

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "font-src": "'self'",
    "connect-src": "'self'",
    "frame-src": "'none'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
}
_COMMON = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # not no-referrer: browsers would then send `Origin: null` with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
PREVIEW_POLICY = (
    f"default-src 'none'; style-src {STYLE_HASH}; sandbox; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)


# A digest: mail programs ignore style sheets, so its styles are inline.
SAMPLE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'self'; base-uri 'none'; "
    "form-action 'none'"
)  # fmt: skip


def page_headers(*, has_frame: bool = False) -> dict[str, str]:
    """For everything but the preview. `has_frame`: the page shows the preview of a mail."""
    policy = {**_POLICY, "frame-src": "'self'"} if has_frame else _POLICY
    return {**_COMMON, "Content-Security-Policy": _written(policy), "X-Frame-Options": "DENY"}


def preview_headers() -> dict[str, str]:
    return {**_COMMON, "Content-Security-Policy": PREVIEW_POLICY, "X-Frame-Options": "SAMEORIGIN"}


def sample_headers() -> dict[str, str]:
    return {**_COMMON, "Content-Security-Policy": SAMPLE_POLICY, "X-Frame-Options": "SAMEORIGIN"}


def set_cookie(response: Response, name: str, value: str, max_age_s: int) -> None:
    """Only over HTTPS or on this machine, only for this host, not for scripts, not with requests from other sites."""
    response.set_cookie(name, value, max_age=max_age_s, path="/", secure=True, httponly=True, samesite="lax")


def _written(policy: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


def with_allowed_methods(response: Response, exc: Exception) -> Response:
    """RFC 9110 15.5.6: an answer that refuses the method names those that are possible."""
    allowed = (getattr(exc, "headers", None) or {}).get("Allow", "")
    if allowed:
        response.headers["Allow"] = ", ".join(sorted(allowed.split(", ")))
    return response
