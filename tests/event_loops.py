"""The event loops on which the tests of protocols run."""

from __future__ import annotations

import pytest

# Our programs use uvloop; Python's own loop, which calls a protocol in another order, is for `make test-long`.
EACH_LOOP = [
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio", marks=pytest.mark.long),
]
