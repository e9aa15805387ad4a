"""Who asks, and whose mail they may see.

Secrets are compared as SHA-256 digests with `hmac.compare_digest`, against every candidate, so neither the time of
the answer nor the length of a guess reveals anything. If this is wrong, one tenant reads about the mail of another.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge.daemon.http_api.failures import ApiError

CHALLENGE = 'Bearer realm="scanbridge"'
_HOW = "add a token to api.tokens in the configuration, then run `scanbridge reload`"


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """The user of a token."""

    name: str
    digest: bytes = field(repr=False)
    tenants: tuple[str, ...] | None = None  # None: all mail, including mail of no tenant

    def check(self, wanted: str | None) -> None:
        """`wanted`: the tenant that is asked for. Raises ApiError. A search is limited to `tenants` in any case."""
        if self.tenants is not None and wanted is not None and wanted not in self.tenants:
            raise ApiError("forbidden", "tenant: the token is valid for other tenants only", parameter="tenant")


def authenticate(callers: Sequence[Caller], authorization: Sequence[bytes]) -> Caller:
    """`authorization`: the values of this header field. Raises ApiError."""
    if not callers:
        raise ApiError("no_tokens", f"the history cannot be queried over HTTP yet: {_HOW}")
    if len(authorization) != 1:
        problem = "is missing" if not authorization else "occurs twice"
        raise ApiError("unauthorized", f"the Authorization header {problem}", challenge=CHALLENGE)
    scheme, _, secret = authorization[0].decode("utf-8", "surrogateescape").strip().partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise ApiError("unauthorized", "the Authorization header must be `Bearer TOKEN`", challenge=CHALLENGE)
    given, found = digest(secret.strip()), None
    for caller in callers:
        if hmac.compare_digest(caller.digest, given):
            found = caller
    if found is None:
        raise ApiError("unauthorized", "unknown token", challenge=f'{CHALLENGE}, error="invalid_token"')
    return found
