"""Several workers: shared limits, combined metrics, and no harm when one dies."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

from bridge.testing import SmtpClient, free_port
from tests.daemon.process_kit import Gate, get, parts, running, scanbridge, start, until, write_config
from tests.daemon.workers.workers_kit import clients_of_all, number, owner, send, state, workers
from tests.processes import children, is_running


def test_the_limit_holds_for_all_workers_together(tmp_path: Path) -> None:
    """With three slots the fourth mail is refused at MAIL by whichever worker gets it, and one scrape shows it."""
    admission = {"max_in_processing": 3, "throttle_threshold": 3}
    with running(tmp_path, workers=2, admission=admission) as (bridge, scanner, _), ExitStack() as stack:
        gate = Gate(scanner)
        first, second = clients_of_all(bridge, stack, each=3).values()
        for client in (first[0], second[0], first[1]):
            send(client)
        gate.arrived(3)
        for client in (first[2], second[1], second[2]):
            (refusal,) = client.say(b"MAIL FROM:<a@b>")
            assert refusal.startswith(b"451 4.3.2 ")
        assert number(bridge, "scanbridge_in_processing") == state(bridge)["in_processing"] == 3
        assert number(bridge, "scanbridge_bytes_in_processing") > 0
        assert number(bridge, "scanbridge_saturated_replies_total", stage="mail") == 3
        assert scanner.max_in_flight == 3
        gate.let_go = True
        for client in (first[0], second[0], first[1]):
            assert client.reply().startswith(b"250 ")
        until(lambda: number(bridge, "scanbridge_in_processing") == 0, "free slots")
        assert number(bridge, "scanbridge_mails_total", action="relay") == 3
        assert number(bridge, "scanbridge_scan_seconds_count") == 3
        assert number(bridge, "scanbridge_workers") == 2 and number(bridge, "scanbridge_workers_silent") == 0


def test_lasting_connections_are_balanced_among_the_workers(tmp_path: Path) -> None:
    """The worker that wakes up first does not accept them all, and no client waits long."""
    with running(tmp_path, workers=2) as (bridge, _, _), ExitStack() as stack:
        pids = workers(bridge)
        clients = [stack.enter_context(bridge.client()) for _ in range(60)]
        owners = [owner(client, pids) for client in clients]
        assert min(map(owners.count, pids)) > 15
        assert all(client.mail().startswith(b"250 ") for client in clients)


def test_a_killed_worker_gives_its_slots_back_and_is_replaced(tmp_path: Path) -> None:
    """Its clients lose their connection and keep their mail; others are unaffected; no counter goes backwards."""
    admission = {"max_in_processing": 2, "throttle_threshold": 2}
    with running(tmp_path, workers=2, admission=admission) as (bridge, scanner, _), ExitStack() as stack:
        for _ in range(10):
            assert bridge.send().startswith("250 ")
        assert number(bridge, "scanbridge_mails_total") == 10  # so both have published their numbers
        gate = Gate(scanner)
        found = clients_of_all(bridge, stack, each=2)
        (victim, doomed), (other, kept) = found.items()
        for client in doomed:
            send(client)
        gate.arrived(12)
        assert kept[0].say(b"MAIL FROM:<a@b>")[0].startswith(b"451 4.3.2 ")
        os.kill(victim, signal.SIGKILL)
        assert all(client.is_cut() for client in doomed)
        until(lambda: kept[0].say(b"MAIL FROM:<a@b>")[0].startswith(b"250 "), "the slots of the killed worker")
        gate.let_go = True
        assert kept[1].mail().startswith(b"250 ")
        until(lambda: len(workers(bridge)) == 2, "another worker")
        assert victim not in workers(bridge) and other in workers(bridge)
        assert number(bridge, "scanbridge_mails_total") == 11
        assert number(bridge, "scanbridge_worker_restarts_total") == 1
        assert number(bridge, "scanbridge_in_processing") == number(bridge, "scanbridge_bytes_in_processing") == 0
        assert bridge.has_logged(f"worker {victim} was killed by signal 9")


def test_what_a_killed_worker_had_not_written_was_called_recorded(tmp_path: Path) -> None:
    """Rows wait for a third of a second: `explain` did not find a mail, and said that all had been recorded."""
    with running(tmp_path, workers=2) as (bridge, _, _):
        os.kill(min(workers(bridge)), signal.SIGKILL)
        until(lambda: number(bridge, "scanbridge_worker_restarts_total") == 1, "another worker")
        done = scanbridge("explain", "never@seen.example", "-c", tmp_path / "bridge.yml")
        assert "Since the daemon started, 1 worker had to be replaced: mails from the last second" in done.stdout
        assert "every mail has been recorded" not in done.stdout


def test_a_connection_waiting_in_the_queue_survives_the_workers(tmp_path: Path) -> None:
    """All workers hang and are killed: a client that connected meanwhile is served by the next ones."""
    with running(tmp_path, workers=2) as (bridge, _, _):
        pids = workers(bridge)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with SmtpClient(bridge.port) as client:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            client.open()
            assert client.mail().startswith(b"250 ")


def test_a_silent_worker_is_counted_and_its_numbers_are_kept(tmp_path: Path) -> None:
    """A stopped process cannot answer; its last published numbers are still part of the sums."""
    with running(tmp_path, workers=2) as (bridge, _, _), ExitStack() as stack:
        for clients in clients_of_all(bridge, stack).values():
            assert clients[0].mail().startswith(b"250 ")
        assert number(bridge, "scanbridge_mails_total") == 2
        frozen = workers(bridge)[0]

        def seen_workers() -> list[dict[str, int]]:
            code, text = get(bridge.admin, "/status")
            return list(json.loads(text)["workers"]) if code == 200 else []

        os.kill(frozen, signal.SIGSTOP)
        # A connection that the stopped worker had accepted gets no answer, so a scrape may need a second try.
        until(lambda: number(bridge, "scanbridge_workers_silent") == 1, "a scrape without the silent worker", 30)
        assert number(bridge, "scanbridge_mails_total") == 2
        until(
            lambda: any(seen["pid"] == frozen and seen["silent_s"] for seen in seen_workers()),
            "the silent worker in /status",
            30,
        )
        os.kill(frozen, signal.SIGCONT)
        until(lambda: number(bridge, "scanbridge_workers_silent") == 0, "the worker to answer again")


def test_the_embedded_service_survives_workers_and_is_restarted_itself(tmp_path: Path) -> None:
    """It is a separate process."""
    url = f"http://127.0.0.1:{free_port()}"
    with parts() as (_, _, next_hop), ExitStack() as stack:
        config, port, admin = write_config(tmp_path, url, next_hop.url, workers=2, embedded_service=True)
        bridge = start(config, port, admin)
        stack.callback(bridge.end)
        pids = workers(bridge)
        (scanning,) = children(bridge.process.pid) - set(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(workers(bridge)) - set(pids)) == 2, "the new workers")
        assert scanning in children(bridge.process.pid)
        assert bridge.send().startswith("250 ")
        os.kill(scanning, signal.SIGKILL)
        until(
            lambda: len(children(bridge.process.pid)) == 3 and scanning not in children(bridge.process.pid),
            "the service to be restarted",
        )
        until(lambda: bridge.send().startswith("250 "), "a scan by the new service")
        bridge.signal()
        assert bridge.wait() == 0


def test_without_a_supervisor_the_workers_exit(tmp_path: Path) -> None:
    """If it is killed, they finish their mail and free the ports, so the next supervisor can start."""
    with running(tmp_path, workers=2) as (bridge, _, _):
        pids = workers(bridge)
        bridge.end()
        until(lambda: not any(map(is_running, pids)), "the workers to exit")
        assert "the supervisor has exited" in bridge.log
        again = start(tmp_path / "bridge.yml", bridge.port, bridge.admin)
        try:
            assert again.send().startswith("250 ")
            again.signal()
            assert again.wait() == 0
        finally:
            again.end()


def test_a_problem_is_reported_once(tmp_path: Path) -> None:
    """A missing token and an unreadable certificate exit with 78, a taken port with 1."""
    config, port, _ = write_config(tmp_path, "http://127.0.0.1:9", "127.0.0.1:9", workers=2)
    with socket.create_server(("127.0.0.1", port)):
        done = scanbridge("run", "-c", config)
    assert done.returncode == 1 and done.stderr.count("Address already in use by process") == 1
    (tmp_path / "cert.pem").write_text("nonsense")
    tls = {"cert_file": "cert.pem", "key_file": "cert.pem"}
    listeners = [{"name": "mx", "address": f"127.0.0.1:{port}", "tls": tls}]
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:9", "127.0.0.1:9", workers=2, listeners=listeners)
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78 and done.stderr.count("cannot be used together") == 1, done.stderr
    (tmp_path / "token").unlink()
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78 and done.stderr.count("it must contain the secret on one line") == 1
    assert "Traceback" not in done.stderr


def test_the_supervisor_exits_when_no_worker_can_be_restarted(tmp_path: Path) -> None:
    """While one worker accepts mail, others are retried with growing pauses; when none is left, exit 78."""
    with running(tmp_path, workers=2) as (bridge, _, _):
        first, second = workers(bridge)
        (tmp_path / "token").unlink()
        os.kill(first, signal.SIGKILL)
        until(lambda: bridge.log.count("exited with code 78") >= 2, "the second attempt")
        assert bridge.send().startswith("250 ") and bridge.has_logged("exited soon after starting; pausing for 0.5 s")
        os.kill(second, signal.SIGKILL)
        assert bridge.wait() == 78


def test_one_cpu_needs_no_supervisor(tmp_path: Path) -> None:
    """`auto` on one cpu is a single process, as by default."""
    cpu = {min(os.sched_getaffinity(0))}
    with running(tmp_path, {"preexec_fn": lambda: os.sched_setaffinity(0, cpu)}, workers="auto") as (
        bridge,
        _,
        _,
    ):
        assert workers(bridge) == [bridge.process.pid] and not children(bridge.process.pid)
        with bridge.client() as client:
            assert owner(client, workers(bridge)) == bridge.process.pid
