"""The rig uses what the tests of the daemon, of workers and of real mail servers have."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), *(str(TESTS / name) for name in ("daemon", "workers", "interop", "delivery"))]
