"""Which commit this program was built from, so that two builds of one version can be told apart.

`hatch_build.py` writes the file when a package is built. A checkout has none, and says so instead of naming a commit
that its files may no longer match.
"""

from __future__ import annotations

import logging
from pathlib import Path

from bridge import __version__

COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"


def built_from(path: Path = COMMIT_FILE) -> str:
    """For people: `commit 0123456789ab`, or that there is none."""
    try:
        commit = path.read_text().strip()
    except OSError:
        return "source tree"
    return f"commit {commit}" if commit else "unknown commit"


def version() -> str:
    """`0.1.0 (commit 0123456789ab)`"""
    return f"{__version__} ({built_from()})"


def log_start(name: str) -> None:
    """The first line of a daemon's log: what exactly is running, even if it does not get far."""
    logging.getLogger("bridge").info("starting: %s %s", name, version())
