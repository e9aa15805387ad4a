"""The List API from the caller's side: client, files of entries, and lists made equal to files.

`client` speaks HTTP, `files` and `tree` know how people keep lists, `sync` compares the two. Knows
nothing of the command line, so that a daemon can keep a local copy with the same stream.
"""

from __future__ import annotations

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.lists.batches import Tally
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.errors import (
    EntryRefused,
    ListFull,
    ListNotFound,
    ListsError,
    ListsForbidden,
    ListsMalformed,
    ListsRefused,
    ListsUnavailable,
)
from bridge.lists.retry import RetrySettings
from bridge.lists.sync import Applied, Difference, apply, difference

__all__ = [
    "Applied",
    "Difference",
    "EntryRefused",
    "ListClient",
    "ListEntry",
    "ListFileInfo",
    "ListFull",
    "ListNotFound",
    "ListSettings",
    "ListsError",
    "ListsForbidden",
    "ListsMalformed",
    "ListsRefused",
    "ListsUnavailable",
    "RetrySettings",
    "Tally",
    "apply",
    "difference",
]
