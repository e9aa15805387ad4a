"""Random values that browsers keep: sessions, sign-in links, form tokens. The database has their hashes only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

AHEAD_S = 300.0  # by which the clocks of several machines may differ
_SHAPE = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes


def new_token() -> str:
    return secrets.token_urlsafe(32)


def is_token(text: str) -> bool:
    return _SHAPE.fullmatch(text) is not None


def hash_of(token: str) -> str:
    """For the database. A random value of 256 bits needs no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def form_token(secret: str) -> str:
    """What a form must carry; `secret` is in a cookie that other sites can neither read nor set."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()


def is_form_token(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), form_token(secret).encode())


def is_recent(moment: float, now: float, lasts_s: float) -> bool:
    """Not too old, and not in the future (a clock was ahead): nothing may last until that time has come."""
    return -AHEAD_S <= now - moment <= lasts_s
