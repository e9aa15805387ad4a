"""Text that is translated later, into the user's language, which is not known where the text is written."""

from __future__ import annotations


def N_(text: str) -> str:  # noqa: N802  the custom of gettext
    return text
