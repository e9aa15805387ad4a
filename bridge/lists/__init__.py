"""The client side of the List API: a client, files of entries, and synchronisation of lists with files.

`client` speaks HTTP, `files` and `tree` read lists from files and directories, `sync` compares the
two. Knows nothing about the command line, so that the daemon can keep local copies with the same code.

The names of the Python API (docs/reference/python.md) are imported on first use, so that code
that needs only `files` does not load the HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "bridge.api.lists": ("ListEntry", "ListFileInfo"),
    "bridge.lists.batches": ("Tally",),
    "bridge.lists.client": ("ListClient", "ListSettings"),
    "bridge.lists.retry": ("RetrySettings",),
    "bridge.lists.sync": ("Applied", "Difference", "apply", "difference"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """PEP 562. A name that is not in `_HOME_OF` is one of the errors."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF.get(name, "bridge.lists.errors")), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
