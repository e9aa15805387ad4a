"""Authentication: static bearer tokens for scanning, API keys for lists, and neither works for the other.

Secrets are compared as SHA-256 digests with `hmac.compare_digest`, against every candidate, so
neither the response time nor the length of a guess reveals anything.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import Scope

from bridge.service.abby_settings import StaticApiToken
from bridge.service.requests import header
from bridge.service.responses import Refused

CHALLENGE_BEARER = 'Bearer realm="scanning"'


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class StaticTokens:
    """The `staticApiTokens` of the configuration."""

    def __init__(self, tokens: Iterable[StaticApiToken]) -> None:
        self._known = [
            (digest(secret), token.name, frozenset(token.permissions)) for token in tokens for secret in token.secrets
        ]

    def check(self, scope: Scope, permission: str) -> str:
        """Return the name of the token's user. Raises Refused with 401 or 403."""
        given = digest(credentials(scope, "bearer", CHALLENGE_BEARER))
        found = None
        for known, name, permissions in self._known:
            if hmac.compare_digest(known, given):
                found = (name, permissions)
        if found is None:
            raise Refused(401, "unauthorized", "unknown token", challenge=CHALLENGE_BEARER)
        name, permissions = found
        if permissions and permission not in permissions:
            raise Refused(403, "forbidden", f"the token lacks the `{permission}` permission")
        return name


def credentials(scope: Scope, scheme: str, challenge: str) -> str:
    """The credentials after the scheme in `Authorization`. Raises Refused with 401."""
    given = header(scope, b"authorization").decode("utf-8", "surrogateescape")
    name, _, secret = given.strip().partition(" ")
    secret = secret.strip()
    if not given:
        raise Refused(401, "unauthorized", "the Authorization header is missing", challenge=challenge)
    if name.lower() != scheme or not secret:
        raise Refused(401, "unauthorized", f"the Authorization header must be `{scheme} ...`", challenge=challenge)
    return secret
