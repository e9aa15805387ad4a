"""What an operator does while the monkey is at work: restart a NATS server that stays behind the others.

NATS 2.15.1 can stay so for ever: a server that was killed while the disk of another one was full said for 18 minutes
that it was not current, and a restart helped (docs/operate/runbooks.md). All other nodes must come back by themselves.
"""

from __future__ import annotations

import time

from deploy.cluster.node import Node

NOT_CURRENT = "is not current"  # in NATS's answer at /healthz: its JetStream, one of its streams or consumers
PATIENCE_S = 60.0


class Operator:
    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self.restarts: list[tuple[str, float]] = []  # nodes that were restarted, and when

    def await_ready(self, node: Node, limit_s: float) -> None:
        """Raises TimeoutError."""
        since: float | None = None

        def look(said: str) -> None:
            nonlocal since
            now = time.monotonic()
            if node.kind != "nats" or NOT_CURRENT not in said:
                since = None
            elif since is None:
                since = now
            elif now - since >= self._patience_s:
                self.restarts.append((node.name, time.time()))
                node.stop()
                node.start()
                since = None

        node.await_ready(limit_s, on_trouble=look)
