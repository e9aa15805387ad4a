"""The client side of the List API: a client, files of entries, and synchronisation of lists with files.

`client` speaks HTTP, `files` and `tree` read lists from files and directories, `sync` compares the
two. Knows nothing about the command line, so that the daemon can keep local copies with the same code.
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
