"""A URL of the configuration as people may see it: without what may be a secret.

Some receivers have their token in the URL, as a password, a parameter or a part of the path. It can be read in
the configuration file; logs, pages and commands show the rest. If this is wrong, a token is in a log or on
a screen.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

HIDDEN = "…"  # in no real URL, so a sink refuses a URL that was copied from what was shown
_PASSWORD = re.compile(r"(?i)([?&][^=&?]*password=)[^&#]*")
_QUERY = re.compile(r"\?\S+")


def shown_url(url: str, *, has_secret_path: bool = False) -> str:
    """Scheme, host, port and, unless it may be secret, the path."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL at all
        return HIDDEN
    who, at, place = parts.netloc.rpartition("@")
    path = f"/{HIDDEN}" if has_secret_path and parts.path not in ("", "/") else parts.path
    query = f"?{HIDDEN}" if parts.query else ""
    return f"{parts.scheme}://{HIDDEN + at if who else ''}{place}{path}{query}"


def shown_database(url: str) -> str:
    """Its user and its options are no secrets, except for a password among them."""
    return _PASSWORD.sub(rf"\1{HIDDEN}", url)


def without_queries(text: str) -> str:
    """A library's message, in which a URL's path may be followed by its parameters."""
    return _QUERY.sub("?...", text)
