"""The short form of `make test-faults`: some 300 mails, real servers, as many faults as fit into the time."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults import rig
from tests.requirements import need


@pytest.mark.long
def test_every_mail_that_was_accepted_has_arrived(tmp_path: Path) -> None:
    """Whatever was killed, frozen, stopped, reloaded or full in the meantime."""
    need("postfix", "strace", "mount", root=True)
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"FAULT_SEED={seed}")
    result = rig.run(tmp_path, seed, seconds=14.0, rate=30.0, calm_s=1.0, pace=0.3, at_least=300)
    print(rig.table(result))
    rig.check(result)
    assert len(result.account.mails) >= 300
