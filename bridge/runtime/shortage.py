"""Whether a connection failed because something is used up here, which says nothing about the other side."""

from __future__ import annotations

import errno
import os

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN})  # EAGAIN: no thread


def is_ours(error: OSError) -> bool:
    """Descriptors, memory or threads. getaddrinfo hides the reason, so we try to open a descriptor ourselves."""
    return error.errno in _OURS or not _can_open()


def _can_open() -> bool:
    try:
        os.close(os.eventfd(0))
    except OSError:
        return False
    return True
