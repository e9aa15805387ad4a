"""Files with secrets: where they are, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path

from bridge.runtime import whole_file


def token_path(name: str, directory: Path) -> Path:
    """In $CREDENTIALS_DIRECTORY if it exists there, else next to the configuration."""
    beside_config = directory / name
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY") or beside_config.parent) / name
    return credential if os.path.exists(credential) else beside_config  # noqa: PTH110 (Path.exists may raise)


def tokens_in(name: str, directory: Path) -> list[str]:
    """One per line. Raises ValueError."""
    try:
        text = _text(name, directory)
    except ValueError as exc:
        raise ValueError(
            f"cannot read token_file {name}: {exc}; create one with `scanbridge service token > {name}`"
        ) from exc
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise ValueError(f"token_file {name} is empty; create a token with `scanbridge service token`")
    return found


def password_in(name: str, directory: Path) -> str:
    """The first line. Raises ValueError."""
    try:
        lines = _text(name, directory).splitlines()
    except ValueError as exc:
        raise ValueError(f"cannot read database_password_file {name}: {exc}") from exc
    if not lines or not lines[0].strip():
        raise ValueError(f"database_password_file {name} is empty")
    return lines[0].strip()


def _text(name: str, directory: Path) -> str:
    try:
        return whole_file.read_text(token_path(name, directory), "utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError((exc.strerror or "") if isinstance(exc, OSError) else "not UTF-8 text") from exc
