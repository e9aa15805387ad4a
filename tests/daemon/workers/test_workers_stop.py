"""Stopping several workers, and what is reported to systemd."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.testing import free_port
from tests.daemon.process_kit import ROOT, Gate, environment, get, parts, running, start, until, write_config
from tests.daemon.workers.workers_kit import clients_of_all, send, workers
from tests.processes import children, is_running


def test_sigterm_drains_all_workers_together(tmp_path: Path) -> None:
    """Idle clients of each get 421, mail in processing 250, new connections none; exit 0."""
    with running(tmp_path, workers=2) as (bridge, scanner, next_hop), ExitStack() as stack:
        gate = Gate(scanner)
        found = clients_of_all(bridge, stack, each=2)
        for sending, _ in found.values():
            send(sending)
        gate.arrived(2)
        bridge.signal()
        for _, idle in found.values():
            assert idle.reply().startswith(b"421 4.3.2 ")
        assert get(bridge.admin, "/readyz") == (503, "stopping\n")
        with pytest.raises(OSError, match="refused"):
            bridge.client()
        gate.let_go = True
        for sending, _ in found.values():
            assert sending.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert bridge.wait() == 0
        assert len(next_hop.mails) == 2 and not any(map(is_running, found))


def test_only_a_second_signal_shortens_the_drain(tmp_path: Path) -> None:
    """Even if a service manager sends the first one to every process, and a terminal the second."""
    with running(tmp_path, workers=2, drain_timeout="60s") as (bridge, scanner, next_hop), ExitStack() as stack:
        gate = Gate(scanner)
        found = clients_of_all(bridge, stack)
        for (sending,) in found.values():
            send(sending)
        gate.arrived(2)
        for pid in (bridge.process.pid, *found):
            os.kill(pid, signal.SIGTERM)
        until(lambda: get(bridge.admin, "/readyz")[0] == 503, "the first signal to take effect")
        assert "second stop signal" not in bridge.log
        for pid in (bridge.process.pid, *found):
            os.kill(pid, signal.SIGINT)
        for (sending,) in found.values():
            assert sending.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait() == 0
        gate.let_go = True
        assert not next_hop.mails and "second stop signal" in bridge.log


@pytest.mark.long
def test_the_supervisor_notifies_systemd_and_replaces_a_hung_worker(tmp_path: Path) -> None:
    """READY once all workers accept mail, WATCHDOG regularly; a worker or service that hangs is killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices, parts() as (_, _, next_hop):
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(60)
        url = f"http://127.0.0.1:{free_port()}"
        config, port, admin = write_config(tmp_path, url, next_hop.url, workers=2, embedded_service=True)
        # long enough for a worker to start on a machine with little CPU time left
        env = environment(PYTHONPATH=str(ROOT), NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="6000000")
        bridge = start(config, port, admin, env)
        try:
            heard: list[str] = []

            def hear(word: str) -> bool:
                heard.append(notices.recv(1000).decode())
                return heard[-1].startswith(word)

            until(lambda: hear("READY=1"), "READY=1")
            assert len(workers(bridge)) == 2
            until(lambda: hear("WATCHDOG=1"), "WATCHDOG=1")
            hung = workers(bridge)[0]
            (service,) = children(bridge.process.pid) - set(workers(bridge))
            for pid in (hung, service):
                os.kill(pid, signal.SIGSTOP)
            until(lambda: f"worker {hung} is not responding" in bridge.log, "the worker to be reported")
            until(lambda: "the scanning service is not responding" in bridge.log, "the service to be reported")
            until(lambda: not is_running(service), "the service to be killed")
            until(lambda: len(set(workers(bridge)) - {hung}) == 2, "another worker")
            bridge.signal(signal.SIGHUP)
            until(lambda: hear("RELOADING=1\nMONOTONIC_USEC="), "RELOADING=1")
            until(lambda: hear("READY=1"), "READY=1 again")
            bridge.signal()
            until(lambda: hear("STOPPING=1"), "STOPPING=1")
            assert bridge.wait() == 0
        finally:
            bridge.end()
