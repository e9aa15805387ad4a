"""What the status says of next hops: probed, down, back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.daemon.health_kit import bridge_with, dead_hop, says, silent_server, state, status
from tests.daemon.process_kit import get, until
from tests.recipients.recipients_kit import next_hop


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_a_next_hop_that_hangs_is_down(tmp_path: Path, protocol: str) -> None:
    """It accepts the connection and does not greet."""
    with silent_server() as port, bridge_with(tmp_path, next_hop=f"{protocol}://127.0.0.1:{port}") as bridge:
        until(says(bridge, f"NOT DELIVERING: next hop {protocol}://127.0.0.1:{port} "), "the problem")
        code, lines = status(bridge)
        assert code == 1 and lines[0].endswith("; all mail is being deferred")


def test_a_next_hop_that_refuses_connections_with_554_is_down(tmp_path: Path) -> None:
    with next_hop(CONNECT=b"554 no") as hop, bridge_with(tmp_path, next_hop=hop.url) as bridge:
        until(says(bridge, "NOT DELIVERING: "), "the problem")
        assert "greeting: 554 no" in state(bridge)["problems"][0]


def test_the_next_hop_of_a_route_is_probed_too(tmp_path: Path) -> None:
    """Only the mail of that route is deferred, so the daemon stays ready."""
    hop = dead_hop()
    routes = [{"recipient_domains": ["b.example"], "next_hop": hop}]
    with bridge_with(tmp_path, relay={"routes": routes}) as bridge:
        until(says(bridge, f"NOT DELIVERING: next hop {hop} ", "; mail for b.example is being deferred"), "it")
        until(lambda: get(bridge.admin, "/readyz")[0] == 200, "ready")
        assert get(bridge.admin, "/readyz")[1].startswith("NOT DELIVERING: ")
        assert status(bridge)[0] == 1


def test_one_of_two_next_hops_is_a_warning(tmp_path: Path) -> None:
    dead = dead_hop()
    with next_hop() as good:
        config = {"next_hop": good.url, "next_hops": [good.url, dead]}
        with bridge_with(tmp_path, next_hop=good.url, relay=config) as bridge:
            until(lambda: state(bridge)["warnings"], "the warning")
            found = state(bridge)
            assert found["problems"] == [] and f"next hop {dead} cannot be used" in found["warnings"][0]


def test_a_next_hop_is_not_probed_while_it_takes_mail(tmp_path: Path) -> None:
    """One connection at the start; then the mails say enough, and they share a connection."""
    with next_hop() as hop, bridge_with(tmp_path, next_hop=hop.url, relay={"probe_interval": "1h"}) as bridge:
        until(lambda: state(bridge)["next_hops"][0]["up"], "the probe")
        for _ in range(5):
            assert bridge.send().startswith("250 ")
        assert len(hop.mails) == 5
        assert state(bridge)["next_hops"][0]["up"] is True


def test_without_probes_an_untried_next_hop_is_not_called_up(tmp_path: Path) -> None:
    with bridge_with(tmp_path, next_hop=dead_hop(), relay={"probe_interval": "0s"}) as bridge:
        assert state(bridge)["next_hops"][0]["up"] is None
        code, lines = status(bridge)
        assert code == 0 and any(line.endswith(": not tried yet") for line in lines)
        assert bridge.send().startswith("451 4.4.1 ")
        assert state(bridge)["next_hops"][0]["up"] is False


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_next_hop_that_is_back_is_seen_within_seconds(tmp_path: Path, workers: int) -> None:
    """Although one that is up would be tested only once an hour; and the age of the knowledge is shown."""
    hop = dead_hop()
    with bridge_with(tmp_path, next_hop=hop, relay={"probe_interval": "1h"}, workers=workers) as bridge:
        until(says(bridge, "NOT DELIVERING: "), "the problem")
        for _ in range(2):  # with one more, the deferred mails would be a problem of their own
            assert bridge.send().startswith("451 ")
        with next_hop(port=int(hop.rpartition(":")[2])):
            until(lambda: not state(bridge)["problems"], "the recovery")
            assert re.search(rf"(?m)^next hop       {hop}: up, as of [0-9] s ago$", "\n".join(status(bridge)[1]))
