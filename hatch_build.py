"""Writes the commit into wheel and source archive, as `bridge/commit.txt`; `bridge/runtime/build.py` reads it.

The commit is the one of this checkout, or of the checkout that made this source archive. Where neither is known (a
container is built without the repository), the variable SCANBRIDGE_COMMIT names it. Without any, the file is empty.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "bridge/commit.txt"
LENGTH = 12  # digits; git's own abbreviation grows with the repository


class CommitHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable" or (root / FILE).exists():  # a checkout that changes; a source archive
            return
        self._directory = tempfile.TemporaryDirectory(prefix="scanbridge-commit-")
        path = Path(self._directory.name) / "commit.txt"
        path.write_text(f"{commit(root)}\n")
        build_data["force_include"][str(path)] = FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def commit(root: Path) -> str:
    """The commit of this checkout, and whether files differ from it; else what the environment says."""
    if Path(_git(root, "rev-parse", "--show-toplevel") or "/").resolve() != root.resolve():  # not another repository
        return os.environ.get("SCANBRIDGE_COMMIT", "")[:LENGTH]
    changes = ", with changes" if _git(root, "status", "--porcelain") else ""
    return _git(root, "rev-parse", "HEAD")[:LENGTH] + changes


def _git(root: Path, *words: str) -> str:
    """What git prints; "" without git or a repository."""
    try:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True).stdout.strip()  # noqa: S603, S607
    except OSError:
        return ""
