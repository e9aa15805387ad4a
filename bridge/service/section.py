"""What all sections of the service's configuration have in common, and where the files they name are."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationInfo


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def abby_directory(info: ValidationInfo) -> Path:
    """The directory that file names in the section `abby` are relative to."""
    context = info.context or {}
    return Path(context.get("abby_directory") or context.get("directory") or "")


def token_path(name: str, directory: Path) -> Path:
    """In $CREDENTIALS_DIRECTORY if it exists there, else next to the configuration."""
    beside_config = directory / name
    credential = Path(os.environ.get("CREDENTIALS_DIRECTORY") or beside_config.parent) / name
    return credential if os.path.exists(credential) else beside_config  # noqa: PTH110 (Path.exists may raise)
