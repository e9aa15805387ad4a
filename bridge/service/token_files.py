"""Files with secrets: where they are, and what is in them."""

from __future__ import annotations

import os
from pathlib import Path


def token_path(name: str, directory: Path) -> Path:
    """In $CREDENTIALS_DIRECTORY if it exists there, else next to the configuration."""
    beside_config = directory / name
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY") or beside_config.parent) / name
    return credential if os.path.exists(credential) else beside_config  # noqa: PTH110 (Path.exists may raise)


def tokens_in(name: str, directory: Path) -> list[str]:
    """One per line. Raises ValueError."""
    try:
        text = token_path(name, directory).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise ValueError(
            f"cannot read token_file {name}: {reason}; create one with `scanbridge service token > {name}`"
        ) from exc
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise ValueError(f"token_file {name} is empty; create a token with `scanbridge service token`")
    return found
