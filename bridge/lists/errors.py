"""The errors of the List API, as its callers need to distinguish them.

    ListsError
    ├── ListsUnavailable       unreachable, cut off, 408, 425, 429, 5xx   temporary: run it again
    │   └── ListsUnreachable   no connection at all
    ├── ListsForbidden         401, 403: the key is wrong or not allowed  permanent
    ├── ListNotFound           404: no list of this name in the scope     permanent
    ├── ListFull               409 list_full: over the list's maxSize     permanent
    ├── EntryRefused           400, 409, ...: the service names an entry  permanent
    ├── ListsRefused           any other refusal, redirect, bad TLS cert  permanent
    └── ListsMalformed         the answer is not valid                    permanent
        └── ListsUncertain     200 to a change, but not valid             it may have been made: look, or run it again

The texts are for the operator and are shown unchanged. They quote the service, with the key and
control characters removed: a server that echoes our headers must not make us leak them.
"""

from __future__ import annotations

import re

from bridge.api.failure import Failure
from bridge.errors import BridgeError
from bridge.runtime.visible_text import visible

TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_TEXT = 300


class ListsError(BridgeError):
    """The List API did not do what was asked."""


class ListsUnavailable(ListsError):
    """Temporary. `retry_after_s` is what the service asked for, `received` the entries before a stream broke off."""

    def __init__(self, text: str, retry_after_s: float | None = None, received: int = 0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.received = received


class ListsUnreachable(ListsUnavailable):
    """No connection could be made, so nothing was sent."""


class ListsForbidden(ListsError):
    """The API key is unknown, or not allowed to do this. `key_file`: where it is, if that is known."""

    key_file = ""


class ListNotFound(ListsError):
    """There is no list of this name in the scope."""


class ListFull(ListsError):
    """The addition would exceed the list's maxSize."""


class EntryRefused(ListsError):
    """The service refuses one of the entries; `position` is its index in the request, if known, as is `entry`."""

    def __init__(self, text: str, position: int | None = None, entry: str | None = None) -> None:
        super().__init__(text)
        self.position = position
        self.entry = entry


class ListsRefused(ListsError):
    """The service refuses the request for another reason."""


class ListsMalformed(ListsError):
    """The answer does not conform to the List API."""


class ListsUncertain(ListsMalformed):
    """The service answered a change with 200 and an unreadable body: the change may or may not have been made."""


def refusal(status: int, failure: Failure, retry_after_s: float | None, secret: str) -> ListsError:
    """The error for an answer other than 200."""
    text = f"the service answered {status}{_quoted(failure, secret)}"
    if status in TEMPORARY:
        return ListsUnavailable(text, retry_after_s)
    if status in (401, 403):
        return ListsForbidden(f"the service refuses the API key: {text}")
    if 300 <= status < 400:
        return ListsRefused(f"the service answered {status}, a redirect, which is never followed; check the URL")
    if status == 404:
        known = failure.error == "list_not_found"
        return ListNotFound(text if known else f"{text}; there is no such list, or no List API at this URL")
    if failure.error == "list_full":
        return ListFull(text)
    if named := re.search(r"entries\[(\d{1,4})\]", failure.message):
        return EntryRefused(text, int(named.group(1)))
    return ListsRefused(text)


def clean(text: str, secret: str = "") -> str:
    """Text from outside, made safe to show: one line, limited in length, without the secret."""
    if secret:
        text = text.replace(secret, "***")
    text = visible(text)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


def _quoted(failure: Failure, secret: str) -> str:
    text = ": ".join(part for part in (failure.error, failure.message) if part)
    return f" ({clean(text, secret)})" if text else ""
