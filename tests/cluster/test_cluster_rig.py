"""The short form of `make test-cluster`: a small cluster, of which a bridge is killed, or a node of each kind."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.cluster import rig
from tests.cluster.world import SMALL
from tests.requirements import need


@pytest.mark.parametrize(
    "kinds", [["bridge"], pytest.param(["worker", "bridge", "postgresql"], marks=pytest.mark.long)], ids=",".join
)
def test_a_small_cluster_loses_no_mail_when_its_nodes_are_killed(kinds: list[str]) -> None:
    """Each accepted mail arrives, no mail is released twice, and each has its row in the history."""
    need("postfix", "haproxy", "initdb", "mount", "setpriv", root=True)
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"FAULT_SEED={seed}")
    troubles = [("killed", kind) for kind in kinds]
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))  # pytest's own are private: PostgreSQL has its own user
    result = rig.run(
        directory, seed, 0.0, rate=15.0, counts=SMALL, namespaces=False, longest_s=2.0, late_s=1.0, troubles=troubles
    )
    print(rig.table(result))
    rig.check(result)
    assert result.account.mails and result.account.released
