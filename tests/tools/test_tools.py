"""The quick public tools find nothing; `make test-tools` runs all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import need

ROOT = Path(__file__).parents[2]
QUICK = 6  # checks


@pytest.mark.long
def test_quick_tools_find_nothing() -> None:
    """nmap from an untrusted address, sslscan, smuggling towards a real Postfix, STARTTLS injection both ways."""
    need("nmap", "sslscan", "postfix", "unshare", "ip", root=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.examine", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "BAD"))]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == QUICK and all(line.startswith("ok ") for line in lines), done.stdout
