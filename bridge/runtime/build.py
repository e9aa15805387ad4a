"""Which commit this program was built from, so that two builds of one version can be told apart.

`hatch_build.py` writes the file when a package is built. A checkout has none, and says so instead of naming a commit
that its files may no longer match.
"""

from __future__ import annotations

from pathlib import Path

COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"


def built_from(path: Path = COMMIT_FILE) -> str:
    """For people: `commit 0123456789ab`, or that there is none."""
    try:
        commit = path.read_text().strip()
    except OSError:
        return "source tree"
    return f"commit {commit}" if commit else "unknown commit"
