"""Files that a running program may read at any moment."""

from __future__ import annotations

from pathlib import Path


def rewrite(path: Path, text: str) -> None:
    """Replace the text in one step: a reader gets the old one or the new one, never an empty file or a part.

    `write_text` empties the file first, and a reload that was asked for earlier once read it then.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    if path.exists():
        new.chmod(path.stat().st_mode)
    new.rename(path)
