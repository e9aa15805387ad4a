"""The short form of `make test-cluster`: a small cluster, of which a bridge is killed, or nodes of several kinds."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest

from bridge.service.cluster.queue import INLINE_BYTES
from tests.cluster import rig
from tests.cluster.world import SMALL
from tests.requirements import need

_MANY = [("killed", "worker"), ("killed", "bridge"), ("killed", "postgresql"), ("filled", "api"), ("filled", "worker")]


# `make test` has a test for each of these failures, with only the servers that it needs: test_postgresql_failover.py,
# test_service_failover.py and tests/faults/test_restart_under_load.py.
@pytest.mark.long
@pytest.mark.parametrize("troubles", [[("killed", "bridge")], _MANY], ids=["one", "many"])
def test_a_small_cluster_loses_no_mail_when_its_nodes_fail(troubles: list[tuple[str, str]]) -> None:
    """Each accepted mail arrives, no mail is released twice, and each has its row in the history."""
    need("postfix", "haproxy", "initdb", "mount", "setpriv", root=True)
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"FAULT_SEED={seed}")
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))  # pytest's own are private: PostgreSQL has its own user
    result = rig.run(
        directory, seed, 0.0, rate=15.0, counts=SMALL, namespaces=False, longest_s=2.0, late_s=1.0, troubles=troubles
    )
    print(rig.table(result))
    rig.check(result)
    assert result.account.mails and result.account.released
    huge = [mail for mail in result.account.mails if mail.kind == "huge"]
    assert huge and all(len(mail.body()) > INLINE_BYTES and mail.accepted for mail in huge), "large mail must be tried"
