"""What an operator does while the monkey is at work: restart NATS servers that do not come back by themselves.

A NATS server whose disk was full has shut down its JetStream, and enables it again only when it is restarted. Another
server that was killed at that time stayed "not current", also after a restart, until the first one was restarted
(2.15.1; probably because its copy of the queue was in memory, and the third one alone has no majority). So the server
whose JetStream is not enabled comes first, as in docs/operate/runbooks.md. All other nodes come back by themselves.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from deploy.cluster.node import Node

NOT_ENABLED = "JetStream not enabled"  # in NATS's answer at /healthz
NOT_CURRENT = "is not current"  # likewise: its JetStream, one of its streams or consumers
PATIENCE_S = 60.0
_LOOK_EVERY_S = 1.0


class Operator:
    def __init__(self, servers: Callable[[], list[Node]], patience_s: float = PATIENCE_S) -> None:
        self._servers, self._patience_s = servers, patience_s
        self._every_s = min(_LOOK_EVERY_S, patience_s / 4)
        self._looked = 0.0
        self._since: dict[str, tuple[str, float]] = {}  # what a server has been saying, and since when
        self.restarts: Counter[str] = Counter()  # by what the server said

    def await_ready(self, node: Node, limit_s: float) -> None:
        """Raises TimeoutError."""
        self._since.clear()
        node.await_ready(limit_s, on_trouble=lambda said: self._look())

    def _look(self) -> None:
        """Restart at most one server: another one may be well again afterwards."""
        if time.monotonic() - self._looked < self._every_s:
            return
        for node in self._servers():
            self._note(node.name, node.trouble())
        self._looked = now = time.monotonic()
        said = {what for what, _ in self._since.values()}
        first = NOT_ENABLED if NOT_ENABLED in said else NOT_CURRENT
        for node in self._servers():
            what, since = self._since.get(node.name, ("", now))
            if what == first and now - since >= self._patience_s:
                self.restarts[what] += 1
                node.stop()
                node.start()
                self._since.clear()
                return

    def _note(self, name: str, said: str) -> None:
        what = next((words for words in (NOT_ENABLED, NOT_CURRENT) if words in said), "")
        if not what:
            self._since.pop(name, None)
        elif self._since.get(name, ("", 0.0))[0] != what:
            self._since[name] = (what, time.monotonic())
