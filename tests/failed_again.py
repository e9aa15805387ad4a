"""The second half of `make test`: run the few tests that failed once more, alone.

Thousands of tests beside each other, on a machine that others use too, delay a test now and then for longer than its
waits allow. A test that also fails alone is wrong, and so is a run in which more than three tests failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    """Its argument is the exit status of the first run."""
    status = int(sys.argv[1])
    failed: list[str] = sorted(json.loads(_FAILED.read_text())) if _FAILED.exists() else []
    if status != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\nOnce more, alone: {' '.join(failed)}", flush=True)
    if subprocess.run([sys.executable, "-m", "pytest", "-q", "--tb=short", *failed]).returncode:
        return 1
    print("Failed beside the other tests and passed alone; each has a wait or a limit to mend:", *failed, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
