"""Our HTTP clients keep no cookies: a receiver could fill memory with them, or recognise us by them."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy


def no_cookies() -> CookieJar:
    """The `cookies` of every client of `httpx2`: none is accepted, no matter who sets it."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=()))
