"""What all sections of the service's configuration have in common."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationInfo


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def abby_directory(info: ValidationInfo) -> Path:
    """The directory that file names in the section `abby` are relative to."""
    context = info.context or {}
    return Path(context.get("abby_directory") or context.get("directory") or "")
