"""Stopping: mail in processing is finished, idle clients get 421, and no mail is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bridge.testing import answer, result
from tests.daemon.process_kit import MAIL, Gate, get, running, until
from tests.postgresql import cluster, fresh_database


def test_sigterm_finishes_mail_in_processing_and_disconnects_idle_clients(tmp_path: Path) -> None:
    """Idle clients get 421 immediately, /readyz 503, new connections none, mail in processing 250; exit 0."""
    with running(tmp_path) as (bridge, scanner, next_hop):
        gate = Gate(scanner)
        with (
            bridge.client() as idle,
            bridge.client() as at_rcpt,
            bridge.client() as sending,
            bridge.client() as scanned,
        ):
            at_rcpt.say(b"MAIL FROM:<a@b>", b"RCPT TO:<c@d>")
            sending.begin()
            sending.send(b"Subject: slow\r\n\r\nhalf of it, ")
            scanned.begin()
            scanned.send(MAIL + b".\r\n")
            gate.arrived()
            bridge.signal()
            assert idle.reply().startswith(b"421 4.3.2 ")
            assert at_rcpt.reply().startswith(b"421 4.3.2 ")
            until(lambda: get(bridge.admin, "/readyz") == (503, "stopping\n"), "/readyz to report the stop")
            assert get(bridge.admin, "/livez")[0] == 200
            with pytest.raises(OSError, match="refused"):
                bridge.client()
            sending.send(b"and the rest\r\n.\r\n")  # a mail being received counts as mail in processing
            gate.arrived()
            assert bridge.process.poll() is None
            gate.let_go = True
            assert scanned.reply() == sending.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert bridge.wait() == 0
        assert len(next_hop.mails) == 2
        assert len(bridge.mail_lines(2)) == 2 and bridge.log.endswith("msg=stopped\n")


def test_a_second_signal_shortens_the_drain(tmp_path: Path) -> None:
    """Mail in processing gets two more seconds, then 421; the client keeps it, so nothing is lost."""
    with running(tmp_path, drain_timeout="60s") as (bridge, scanner, next_hop):
        gate = Gate(scanner)
        with bridge.client() as client:
            client.begin()
            client.send(MAIL + b".\r\n")
            gate.arrived()
            bridge.signal(signal.SIGINT)
            until(lambda: get(bridge.admin, "/readyz")[0] == 503, "the first signal to take effect")
            bridge.signal(signal.SIGTERM)
            assert client.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait() == 0
        gate.let_go = True
        assert not next_hop.mails
        assert "second stop signal" in bridge.log and "action=cancelled" in bridge.log


def test_the_drain_time_limits_the_stop(tmp_path: Path) -> None:
    """A scanner that hangs cannot keep the daemon from stopping."""
    with running(tmp_path, drain_timeout="500ms") as (bridge, scanner, _):
        gate = Gate(scanner)
        with bridge.client() as client:
            client.begin()
            client.send(MAIL + b".\r\n")
            gate.arrived()
            bridge.signal()
            assert client.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait(30) == 0
        gate.let_go = True
        assert "cut off by the drain timeout: 1" in bridge.log


def test_sighup_does_not_stop_the_daemon(tmp_path: Path) -> None:
    """The configuration is reloaded, and mail is still accepted."""
    with running(tmp_path) as (bridge, _, _):
        bridge.signal(signal.SIGHUP)
        until(lambda: "reload succeeded" in bridge.log, "a log line about the reload")
        assert bridge.send().startswith("250 ")
        bridge.signal()
        assert bridge.wait() == 0


@pytest.mark.long
def test_a_frozen_database_server_kept_a_stopped_daemon_from_exiting(tmp_path: Path) -> None:
    """It had stopped in time, and then waited for threads that nobody could end."""
    with cluster() as server, running(tmp_path, state_database=fresh_database(server.url)) as (bridge, scanner, _):
        assert bridge.send().startswith("250 ")
        scanner.reply = answer(200, result("quarantine"))
        assert bridge.send().startswith("250 ")
        with server.frozen():
            assert bridge.send().startswith("250 ")
            bridge.signal()
            assert bridge.wait() == 0
    assert "msg=stopped" in bridge.log
