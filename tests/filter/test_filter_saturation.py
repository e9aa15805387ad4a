"""Saturation: mail is refused as early as possible, at almost no cost."""

from __future__ import annotations

from pathlib import Path

from bridge.api.scanning import QueueStatus
from bridge.testing import answer, result, running_bridge
from tests.filter.smtp_kit import Client, Gate, counted, mail_lines, send, until

ONE_SLOT = {"admission": {"max_in_processing": 1, "throttle_threshold": 1}}


def test_saturation_is_reported_at_mail_before_354_and_at_the_dot(tmp_path: Path) -> None:
    """One slot: later clients receive 451 4.3.2 at their next command; the mail in the slot is processed."""
    with running_bridge(tmp_path, ONE_SLOT) as bridge, mail_lines() as lines:
        gate = Gate(bridge, answer(200, result()))
        first, at_mail, at_data, at_dot = (Client(bridge) for _ in range(4))
        first.begin()
        assert first.say("DATA").startswith("354")
        at_dot.begin()
        assert at_dot.say("DATA").startswith("354")
        at_data.begin()
        first.content()
        gate.arrived()
        at_mail.say("EHLO x")
        assert at_mail.say("MAIL FROM:<a@b>").startswith("451 4.3.2 ")
        assert at_data.say("DATA").startswith("451 4.3.2 ")
        at_dot.content()
        assert at_dot.read().startswith("451 4.3.2 ")
        assert counted(bridge, "saturated_replies_total", listener="test", stage="mail") == 1
        assert counted(bridge, "saturated_replies_total", listener="test", stage="data") == 1
        assert counted(bridge, "failures_total", reason="saturated") == 1
        gate.open()
        assert first.read().startswith("250 ")
        assert at_mail.say("MAIL FROM:<a@b>").startswith("250 ")  # the slot is free again
        for client in (first, at_mail, at_data, at_dot):
            client.close()
        assert [line.get("error") for line in lines] == ["saturated", None]
        assert bridge.scanner.max_in_flight == 1


def test_mail_that_is_refused_by_the_rate_takes_no_other_mails_place(tmp_path: Path) -> None:
    """After saturation, two mails are let in for each free slot. Those over their client's rate are not among them."""
    with running_bridge(tmp_path, {**ONE_SLOT, "limits": {"max_mails_per_client_per_minute": 1}}) as bridge:
        gate = Gate(bridge, answer(200, result()))
        first, busy, honest = (Client(bridge) for _ in range(3))
        for client, address in ((busy, "192.0.2.1"), (honest, "192.0.2.2")):
            client.say("EHLO x")
            assert client.say(f"XFORWARD ADDR={address}").startswith("250 ")
        assert busy.say("MAIL FROM:<a@b>").startswith("250 ")
        assert busy.say("RSET").startswith("250 ")
        first.begin()
        assert first.say("DATA").startswith("354")
        first.content()
        gate.arrived()
        assert honest.say("MAIL FROM:<a@b>").startswith("451 4.3.2 ")
        gate.open()
        assert first.read().startswith("250 ")
        for _ in range(5):
            assert busy.say("MAIL FROM:<a@b>").startswith("451 4.7.1 ")
        assert honest.say("MAIL FROM:<a@b>").startswith("250 ")
        for client in (first, busy, honest):
            client.close()


def test_a_red_scanner_refuses_mail(tmp_path: Path) -> None:
    """RED refuses the next client, and GREEN accepts mail again."""
    with running_bridge(tmp_path, {"scanner": {"status_interval": "100ms"}}) as bridge:
        host = bridge.daemon.scanner.hosts[0]
        client = Client(bridge)
        client.begin()
        assert client.say("DATA").startswith("354")
        bridge.scanner.status = answer(200, b'{"messageQueueStatus": "RED"}')
        until(lambda: host.status is QueueStatus.RED, "the status RED")
        client.content()
        assert client.read().startswith("451 4.3.2 ")  # the status is known by now, so nothing is submitted
        assert client.say("MAIL FROM:<a@b>").startswith("451 4.3.2 ")
        client.close()
        bridge.scanner.status = answer(200, b'{"messageQueueStatus": "GREEN"}')
        until(lambda: host.status is QueueStatus.GREEN, "the status GREEN")
        assert send(bridge).startswith("250 ")
        assert len(bridge.scanner.submissions) == 1


def test_a_yellow_scanner_delays_mail(tmp_path: Path) -> None:
    """Every mail is delayed a little, and all are delivered."""
    admission = {"max_in_processing": 3, "throttle_threshold": 2, "throttle_max_delay": "50ms"}
    config = {"scanner": {"status_interval": "100ms"}, "admission": admission}
    with running_bridge(tmp_path, config) as bridge, mail_lines() as lines:
        bridge.scanner.status = answer(200, b'{"messageQueueStatus": "YELLOW"}')
        until(lambda: bridge.daemon.scanner.hosts[0].status is QueueStatus.YELLOW, "the status YELLOW")
        assert send(bridge).startswith("250 ")
    assert lines[0]["wait_ms"] >= 40


def test_an_unknown_status_does_not_stop_mail(tmp_path: Path) -> None:
    """Mail is submitted anyway; its result decides."""
    with running_bridge(tmp_path, {"scanner": {"status_interval": "100ms"}}) as bridge:
        bridge.scanner.status = None
        host = bridge.daemon.scanner.hosts[0]
        until(lambda: host.status is None, "the status to be unknown")
        assert send(bridge).startswith("250 ")


def test_retry_after_of_the_scanner_stops_mail(tmp_path: Path) -> None:
    """After a 429, for a mail and for the bridge's own, no mail is accepted until the time has passed."""
    with running_bridge(tmp_path) as bridge:
        bridge.scanner.reply = answer(429, b"", "Retry-After: 2")
        assert send(bridge).startswith("451 4.3.2 ")
        check = bridge.daemon.scanner.hosts[0].check
        until(lambda: check is not None and check.done(), "the bridge's own mail to be answered")
        bridge.scanner.reply = answer(200, result())
        with Client(bridge) as client:
            client.say("EHLO x")
            assert client.say("MAIL FROM:<a@b>").startswith("451 4.3.2 ")
            until(lambda: client.say("MAIL FROM:<a@b>").startswith("250"), "mail to be accepted again")
        assert len(bridge.scanner.submissions) == 1


def test_bytes_in_processing_are_limited(tmp_path: Path) -> None:
    """A mail that would go over the common limit is refused for now, and its bytes are given back."""
    config = {"admission": {"max_bytes_in_processing": "100KiB"}}
    with running_bridge(tmp_path, config) as bridge:
        assert send(bridge, b"Subject: x\r\n\r\n" + b"y" * 70 + b"\r\n").startswith("250 ")
        assert send(bridge, b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * 3000).startswith("451 4.3.2 ")
        assert bridge.daemon.spool.in_use == 0


def test_mail_over_the_threshold_waits_and_is_delivered(tmp_path: Path) -> None:
    """The log shows the delay separately from the time of the scan."""
    config = {"admission": {"max_in_processing": 3, "throttle_threshold": 1, "throttle_max_delay": "400ms"}}
    with running_bridge(tmp_path, config) as bridge, mail_lines() as lines:
        gate = Gate(bridge, answer(200, result()))
        clients = [Client(bridge) for _ in range(3)]
        for client in clients:
            client.begin()
            client.say("DATA")
        for client in clients:
            client.content()
        for _ in clients:
            gate.arrived()
        gate.open()
        assert all(client.read().startswith("250 ") for client in clients)
        for client in clients:
            client.close()
    first, second, third = sorted(line["wait_ms"] for line in lines)
    assert first == 0 and 195 <= second < 30_000 and 395 <= third < 30_000


def test_the_throttle_ends_at_the_deadline(tmp_path: Path) -> None:
    """A delay beyond the deadline is shortened, and the reply is in time."""
    admission = {"max_in_processing": 2, "throttle_threshold": 1, "throttle_max_delay": "1h"}
    with running_bridge(tmp_path, {"admission": admission}, deadline="1s") as bridge, mail_lines() as lines:
        gate = Gate(bridge, answer(200, result()))
        with Client(bridge) as first, Client(bridge) as second:
            for client in (first, second):
                client.begin()
                client.say("DATA")
            first.content()
            gate.arrived()
            second.content()
            assert second.read().startswith("451 4.4.7 ")
            assert first.read().startswith("451 4.4.7 ")
        assert max(line["wait_ms"] for line in lines) < 30_000  # and not an hour
        assert bridge.daemon.admission.in_processing == 1  # the scan of the first mail continues
        gate.open()
        until(lambda: bridge.daemon.admission.in_processing == 0, "the scan to end")


def test_a_client_that_goes_away_in_the_throttle_frees_its_slot(tmp_path: Path) -> None:
    """Nothing was scanned, so no time of a scan is logged."""
    admission = {"max_in_processing": 2, "throttle_threshold": 1, "throttle_max_delay": "1h"}
    with running_bridge(tmp_path, {"admission": admission}) as bridge, mail_lines() as lines:
        gate = Gate(bridge, answer(200, result()))
        with Client(bridge) as first, Client(bridge) as second:
            for client in (first, second):
                client.begin()
                client.say("DATA")
            first.content()
            gate.arrived()
            second.content()
            until(lambda: bridge.daemon.admission.in_processing == 2, "the second mail to wait")
            second.close()
            until(lambda: lines, "the line of the mail")
            assert (lines[0]["action"], lines[0]["scan_ms"]) == ("cancelled", 0)
            assert bridge.daemon.admission.in_processing == 1
            gate.open()
            assert first.read().startswith("250 ")
