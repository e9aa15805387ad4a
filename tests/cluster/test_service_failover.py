"""PostgreSQL fails over under API nodes and workers: scans go on, and no change of a list is confirmed in vain."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.service.keys import KeyRing
from bridge.service.store import Store
from bridge.testing import until
from tests.nats_kit import nats_server
from tests.postgresql_pair import Pair
from tests.service.cluster_kit import Worker, worker
from tests.service.service_kit import Lists, Running, mail, make_key, service, wait_for
from tests.service.test_service_learning import metric, report
from tests.service.test_service_queue_outages import GREEN, configuration

LIST, EVIL, KEY = "blocked-senders", "evil@bad.example", "editors"


@dataclass
class Site:
    """Two API nodes, a worker, and a key of the List API."""

    nodes: list[Running]
    worker: Worker
    key: str

    def decisions(self, sender: str) -> set[str]:
        """Each node's, or the status of its refusal. The worker is the one that decides."""
        answers = [node.submit(mail(), sender=sender) for node in self.nodes]
        return {answer.json["decision"] if answer.status == 200 else str(answer.status) for answer in answers}


@pytest.fixture
def site(pair: Pair, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        nats = stack.enter_context(nats_server(tmp_path, "-js", "-sd", str(tmp_path / "store")))
        # With the detection, which learns; without it a report is refused.
        text = configuration([nats.url], analyzers="{phishing: {learn: true}}")
        text = text.replace("sqlite:///service.sqlite", pair.url)
        nodes = [stack.enter_context(service(tmp_path, text)) for _ in range(2)]
        made = Site(nodes, stack.enter_context(worker(tmp_path, text)), make_key(nodes[0].config, KEY))
        for node in made.nodes:
            wait_for(lambda node=node: node.status().json == GREEN)
        yield made


class Editor(threading.Thread):
    """Adds one entry after the other to a list, and remembers the answers."""

    def __init__(self, lists: Lists, name: str) -> None:
        super().__init__()
        self._lists, self._name = lists, name
        self._is_over = threading.Event()
        self.answers: list[tuple[str, int]] = []

    def run(self) -> None:
        while not self._is_over.is_set():
            entry = f"{self._name}{len(self.answers)}@example.org"
            self.answers.append((entry, self._lists.add(LIST, entry).status))

    def more(self, count: int = 5) -> list[int]:
        """The next answers."""
        have = len(self.answers)
        until(lambda: len(self.answers) >= have + count or not self.is_alive(), "more changes")
        return [status for _, status in self.answers[have:]]

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    @property
    def confirmed(self) -> set[str]:
        return {entry for entry, status in self.answers if status == 200}


def test_lists_learning_and_keys_go_on_after_a_failover(pair: Pair, site: Site) -> None:
    """While there is no primary, scans use what the nodes know, and each change is refused with 503, none is lost."""
    lists = [Lists(node, site.key) for node in site.nodes]
    assert lists[0].add(LIST, EVIL).status == 200
    wait_for(lambda: site.decisions(EVIL) == {"bounce"})
    assert report(site.nodes[0], mail(b"one\r\n")).json == {"learned": True}
    editors = [Editor(each, name) for each, name in zip(lists, "ab", strict=True)]
    for editor in editors:
        editor.start()
    try:
        assert set(editors[0].more()) == {200}
        pair.lose_the_primary()
        for editor in editors:
            until(lambda editor=editor: 503 in editor.more(1), "a change to be refused")
            assert set(editor.more()) == {503}
        assert site.decisions(EVIL) == {"bounce"} and site.decisions("a@example.org") == {"deliver"}
        assert report(site.nodes[0], mail(b"two\r\n")).status == 503
        assert [each.call("getLists", {}).status for each in lists] == [200, 200], "the key is known"
        assert Lists(site.nodes[0], "f" * 64).call("getLists", {}).status == 401
        pair.promote_the_standby()
        for editor in editors:
            until(lambda editor=editor: 200 in editor.more(1), "changes to be accepted again")
            assert set(editor.more()) <= {200, 503}
    finally:
        for editor in editors:
            editor.stop()
    assert {status for editor in editors for _, status in editor.answers} == {200, 503}
    kept = {entry["entry"] for entry in lists[1].entries(LIST)}
    assert {EVIL} | editors[0].confirmed | editors[1].confirmed <= kept, "a confirmed change is gone"
    _changes_reach_all(site, lists)


def _changes_reach_all(site: Site, lists: list[Lists]) -> None:
    """At the new primary: entries, reports and keys of one node, at the other one and at the worker."""
    assert lists[1].add(LIST, "late@bad.example").status == 200
    wait_for(lambda: site.decisions("late@bad.example") == {"bounce"})
    assert lists[0].delete(LIST, EVIL).status == 200
    wait_for(lambda: site.decisions(EVIL) == {"deliver"})
    wait_for(lambda: report(site.nodes[1], mail(b"three\r\n")).status == 200)
    assert report(site.nodes[0], mail(b"one\r\n")).json == {"learned": False}, "the first report was kept"
    wait_for(lambda: [metric(node, "votes") for node in site.nodes] == [2, 2])
    newer = make_key(site.nodes[0].config)
    wait_for(lambda: [Lists(node, newer).call("getLists", {}).status for node in site.nodes] == [200, 200])
    store = Store(site.nodes[0].config.database_url)
    store.open()
    try:
        KeyRing(store).revoke(KEY)
    finally:
        store.close()
    wait_for(lambda: [each.call("getLists", {}).status for each in lists] == [401, 401])
