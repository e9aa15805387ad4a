"""Exhaustion: memory, connections and time are bounded, and well-behaved clients are not affected."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import RunningBridge, SmtpClient, answer, result, running_bridge, until
from tests.hostile.hostile_kit import Hanging, MiB, Process, bridge_process, receives

Certificate = tuple[dict[str, Any], ssl.SSLContext]

# Memory


def test_content_without_line_end_stays_within_the_size_limit(tmp_path: Path) -> None:
    """A mail without a line end gets 552 at its end; memory does not grow with it."""
    with bridge_process(tmp_path, {"limits": {"max_message_size": "4MiB"}}) as bridge, bridge.client() as client:
        client.open()
        client.begin()
        with bridge.growing_at_most(6 * MiB):
            for _ in range(640):
                client.send(b"x" * 65536)  # 40 MiB
            assert client.say(b"\r\n.")[0].startswith(b"552 5.3.4 ")


def test_49_megabytes_of_empty_lines_cost_neither_memory_nor_time(tmp_path: Path) -> None:
    """Stock aiosmtpd takes 4.3 GB and 82 s for this."""
    with bridge_process(tmp_path) as bridge, bridge.client() as client:
        client.sock.settimeout(60)
        client.open()
        client.begin()
        began = time.monotonic()
        with bridge.growing_at_most(3 * 49 * MiB):
            for _ in range(49 * 16):
                client.send(b"\r\n" * 32768)
            assert client.say(b".")[0].startswith(b"250 ")
        assert time.monotonic() - began < 60
        assert len(bridge.scanner.submissions[0].email) == 49 * MiB


def test_header_one_byte_per_segment_costs_no_extra_work(tmp_path: Path) -> None:
    """Small blocks are joined, so neither memory nor the search for the end of the header explodes."""
    config = {"spool": {"memory_per_mail": "1MiB"}, "limits": {"max_message_size": "2MiB"}}
    with bridge_process(tmp_path, config) as bridge, bridge.client() as client:
        client.open()
        client.begin()
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with bridge.growing_at_most(8 * MiB):
            for _ in range(30_000):
                client.send(b"x")
            assert client.say(b"\r\n.")[0].startswith(b"250 ")


@pytest.mark.long
def test_deferred_mails_with_huge_message_ids_filled_the_memory(tmp_path: Path) -> None:
    """The history kept the whole Message-ID of each deferred mail for days: 900 KB each, and 10,000 of them."""
    with bridge_process(tmp_path) as bridge, bridge.client() as client:
        bridge.scanner.reply = answer(200, result("undecided"))
        client.open()
        assert client.mail(b"Message-ID: <0@example.org>\r\n\r\nx\r\n").startswith(b"451 ")
        with bridge.growing_at_most(30 * MiB):
            for number in range(60):
                head = b"Message-ID: <%d" % number + b"x" * 900_000 + b"@example.org>\r\n"
                assert client.mail(head + b"\r\nx\r\n").startswith(b"451 ")


def test_many_large_mails_at_once_stay_on_disk(tmp_path: Path) -> None:
    """Twenty mails in processing, far larger than the memory they may use."""
    with bridge_process(tmp_path) as bridge, ExitStack() as stack:
        bridge.scanner.reply = hang = Hanging()
        clients = [stack.enter_context(bridge.client()) for _ in range(20)]
        block = (b"x" * 1022 + b"\r\n") * 64
        with bridge.growing_at_most(30 * MiB):
            for client in clients:
                client.open()
                client.begin()
                for _ in range(32):  # 2 MiB
                    client.send(block)
                client.send(b".\r\n")
                assert bridge.scanner.arrived.acquire(timeout=60)  # by then it is on disk, however slow that is
        bridge.background.loop.call_soon_threadsafe(hang.release.set)
        assert [client.reply()[:3] for client in clients] == [b"250"] * 20


def test_bytes_in_processing_over_the_limit_are_451(tmp_path: Path) -> None:
    """The mail that would exceed the shared limit gets 451; the others are unaffected; later it passes."""
    hang = Hanging()
    with running_bridge(tmp_path, {"admission": {"max_bytes_in_processing": "300KiB"}}) as bridge, ExitStack() as stack:
        bridge.scanner.reply = hang
        clients = [stack.enter_context(bridge.client()) for _ in range(3)]
        for client in clients:
            client.open()
            client.begin()
            client.send((b"x" * 1022 + b"\r\n") * 120 + b".\r\n")
            if client is not clients[2]:
                assert bridge.scanner.arrived.acquire(timeout=60)
        assert clients[2].reply().startswith(b"451 4.3.2 ")
        bridge.background.loop.call_soon_threadsafe(hang.release.set)
        assert [client.reply()[:3] for client in clients[:2]] == [b"250", b"250"]
        assert clients[2].mail((b"x" * 1022 + b"\r\n") * 120).startswith(b"250")
        assert bridge.daemon.spool.in_use == 0


def test_client_that_never_reads_is_stopped_and_dropped(tmp_path: Path) -> None:
    """A client sends commands without reading the replies: we stop reading, then hang up; memory stays flat."""
    with bridge_process(tmp_path, {"limits": {"command_timeout": "1s"}}) as bridge:
        with SmtpClient(bridge.port) as client, bridge.growing_at_most(12 * MiB):
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.reply()
            client.sock.settimeout(60)
            block = b"EHLO x\r\nMAIL FROM:<a@client.example>\r\n" * 2000
            with pytest.raises(OSError) as stopped:
                for _ in range(2000):  # 150 MB
                    client.send(block)
            assert not isinstance(stopped.value, TimeoutError), "was never dropped"
        with bridge.client() as other:
            other.open()
            assert other.mail().startswith(b"250")


def test_pipelined_flood_while_a_mail_is_scanned_is_not_read(tmp_path: Path) -> None:
    """Data that a client sends while its mail is scanned waits in the client's kernel, not in our memory."""
    with bridge_process(tmp_path) as bridge, bridge.client() as client:
        bridge.scanner.reply = hang = Hanging()
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\n")
        assert bridge.scanner.arrived.acquire(timeout=60)
        with bridge.growing_at_most(6 * MiB):
            client.sock.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 64 * MiB:
                    sent += client.sock.send(b"RSET\r\n" * 10_000)
        client.sock.settimeout(60)
        bridge.background.loop.call_soon_threadsafe(hang.release.set)
        assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert client.reply() == b"250 2.0.0 OK"


@pytest.mark.parametrize("encrypted", [False, True])
def test_large_content_sent_without_waiting_arrives(tmp_path: Path, certificate: Certificate, encrypted: bool) -> None:
    """Content sent before the 354, more than we buffer, is read once DATA is processed."""
    content = (b"x" * 1022 + b"\r\n") * 2048
    wire = b"MAIL FROM:<>\r\nRCPT TO:<b@example.org>\r\nDATA\r\n" + content + b".\r\nNOOP\r\n"
    with running_bridge(tmp_path, tls=certificate[0]) as bridge, bridge.client() as client:
        client.open()
        if encrypted:
            client.say(b"STARTTLS")
            client.sock = certificate[1].wrap_socket(client.sock, server_hostname="bridge.example")
            client.say(b"EHLO client.example")
        for _ in range(2):
            client.send(wire)
            codes = [client.reply()[:3] for _ in range(5)]
            assert codes == [b"250", b"250", b"354", b"250", b"250"]
        assert [submission.email for submission in bridge.scanner.submissions] == [content, content]


# Time


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that waits one second for a command, and checks the data rate every second."""
    limits = {"limits": {"command_timeout": "1s", "data_timeout": "1s"}}
    with running_bridge(tmp_path_factory.mktemp("hasty"), limits) as bridge:
        yield bridge


TIMEOUT = b"421 4.4.2 Error: timeout exceeded"


def test_silent_client_gets_421(hasty: RunningBridge) -> None:
    """Silence between commands ends with a 421, before and after the greeting."""
    with hasty.client() as silent, hasty.client() as greeted:
        greeted.open()
        assert silent.reply().startswith(b"220 ")
        assert [silent.reply(), greeted.reply()] == [TIMEOUT, TIMEOUT]
        assert silent.is_cut() and greeted.is_cut()


def test_sending_a_command_byte_by_byte_does_not_extend_its_timeout(hasty: RunningBridge) -> None:
    """Only a whole command restarts the timeout, single bytes do not."""
    with hasty.client() as client:
        client.open()
        received = b""
        for _ in range(40):
            client.send(b"x")
            if received := receives(client, 0.1):
                break
        assert received == TIMEOUT + b"\r\n"


def test_each_command_has_its_own_timeout(hasty: RunningBridge) -> None:
    """A client that sends a command now and then may stay longer than one command timeout."""
    assert any(_may_stay(hasty) for _ in range(5)), "cut off each time, so not because this machine was slow"


def _may_stay(hasty: RunningBridge) -> bool:
    with hasty.client() as client:
        client.open()
        for _ in range(3):
            if receives(client, 0.4) or client.say(b"NOOP") != [b"250 2.0.0 OK"]:
                return False
    return True


def test_silence_in_data_is_421(hasty: RunningBridge) -> None:
    """A client that stops in the middle of its mail gets 421 and is cut, and its spool space is freed."""
    with hasty.client() as client:
        client.open()
        client.begin()
        client.send(b"Subject: x\r\n")
        assert client.reply() == TIMEOUT
        assert client.is_cut()
    until(lambda: hasty.daemon.spool.in_use == 0, "the spool to be empty")


def test_trickle_in_data_is_cut_by_the_rate(hasty: RunningBridge) -> None:
    """An occasional byte is not silence, but it is too slow."""
    with hasty.client() as client:
        client.open()
        client.begin()
        received = b""
        for _ in range(40):
            client.send(b"x")
            if received := receives(client, 0.1):
                break
        assert received == TIMEOUT + b"\r\n"


def test_slow_senders_of_large_mail_kept_all_others_out(tmp_path: Path) -> None:
    """They sent nearly all of their mail, which took all the room, and then the rest of it as slowly as was allowed."""
    settings = {"limits": {"data_timeout": "1s"}, "admission": {"max_bytes_in_processing": "4MiB"}}
    large = b"Subject: x\r\n\r\n" + (b"x" * 70 + b"\r\n") * 26_000
    with running_bridge(tmp_path, settings) as bridge, bridge.client() as one, bridge.client() as other:
        for client in (one, other):
            client.open()
            client.begin()
            client.send(large)
        received = [b"", b""]
        for _ in range(200):
            for number, client in enumerate((one, other)):
                if not received[number]:
                    client.send(b"x" * 100)
                    received[number] = receives(client, 0.05)
            if any(received):
                break
        assert TIMEOUT + b"\r\n" in received  # the other one may stay if there is room again
        with bridge.client() as honest:
            honest.open()
            assert honest.mail(large).startswith(b"250 ")


def test_honest_slow_sender_passes(hasty: RunningBridge) -> None:
    """64 kbit/s over several rate checks is fast enough."""
    with hasty.client() as client:
        client.open()
        client.begin()
        for _ in range(15):
            client.send(b"x" * 798 + b"\r\n")
            assert receives(client, 0.1) == b""
        assert client.say(b".")[0].startswith(b"250 ")


def test_silence_shorter_than_data_timeout_is_allowed(tmp_path: Path) -> None:
    """The minimum rate applies to clients that trickle; pure silence may last as long as data_timeout."""
    with running_bridge(tmp_path, {"limits": {"data_timeout": "1500ms"}}) as bridge, bridge.client() as client:
        client.open()
        client.begin()
        assert receives(client, 1.0) == b""
        assert client.say(b"x\r\n.")[0].startswith(b"250 ")


def test_long_scan_does_not_count_as_silence(hasty: RunningBridge) -> None:
    """No client timeout runs while the mail is scanned."""
    hasty.scanner.reply = hang = Hanging()
    with hasty.client() as client:
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\n")
        assert receives(client, 1.5) == b""
        hasty.background.loop.call_soon_threadsafe(hang.release.set)
        assert client.reply().startswith(b"250 ")
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]


# Connections


def test_cap_on_connections(tmp_path: Path) -> None:
    """Beyond the cap a connection gets 421; a client that disconnects makes room."""
    with running_bridge(tmp_path, {"limits": {"max_connections": 10}}) as bridge, ExitStack() as stack:
        clients = [stack.enter_context(bridge.client()) for _ in range(10)]
        assert all(client.reply().startswith(b"220 ") for client in clients)
        with bridge.client() as late:
            assert late.reply() == b"421 4.3.2 Too many connections, try again later"
            assert late.is_cut()
        assert clients.pop().say(b"QUIT") == [b"221 2.0.0 Bye"]
        server = bridge.daemon.servers[0]
        until(lambda: len(server.listener.open) == 9, "nine connections")
        with bridge.client() as late:
            assert late.reply().startswith(b"220 ")
        for client in clients:
            client.close()
        until(
            lambda: not server.listener.open and not server.listener.per_client and server.listener.untrusted == 0,
            "all connections to be gone",
        )


def test_cap_per_client(tmp_path: Path) -> None:
    """One address cannot take all connections; another address is still served."""
    with running_bridge(tmp_path, {"limits": {"max_connections_per_client": 3}}) as bridge, ExitStack() as stack:
        clients = [stack.enter_context(bridge.client()) for _ in range(4)]
        assert [client.reply()[:9] for client in clients] == [b"220 bridg"] * 3 + [b"421 4.7.0"]
        with bridge.client("127.0.0.2") as other:
            assert other.reply().startswith(b"220 ")


def test_idle_strangers_do_not_shut_out_the_mail_server(tmp_path: Path) -> None:
    """Strangers get at most a twentieth of the connections, so the mail server is still served."""
    with running_bridge(tmp_path, trusted_clients=["127.0.0.1/32"]) as bridge, ExitStack() as stack:
        strangers = [stack.enter_context(bridge.client(f"127.0.1.{n}")) for n in range(1, 131)]
        codes = [stranger.reply()[:3] for stranger in strangers]
        assert codes == [b"220"] * 100 + [b"421"] * 30
        with bridge.client() as client:
            client.open()
            assert client.mail().startswith(b"250")
        for stranger in strangers:
            stranger.close()
        server = bridge.daemon.servers[0]
        until(lambda: not server.listener.open and server.listener.untrusted == 0, "all connections to be gone")


def test_running_out_of_descriptors_neither_spins_nor_floods_the_log(tmp_path: Path) -> None:
    """`ulimit -n 40` with 60 connections: at most one log line a second, open sessions continue, and it recovers."""
    with bridge_process(tmp_path, open_files=40) as bridge:
        until(lambda: "is GREEN" in bridge.log.read_text(), "the startup log lines")  # startup log lines are complete
        before, began = bridge.log.read_text().count("\n"), time.monotonic()
        with ExitStack() as stack:
            clients = [stack.enter_context(bridge.client()) for _ in range(60)]
            assert clients[0].open().startswith(b"250-")
            assert receives(clients[59], 1.0) == b""
            until(lambda: rests(bridge, clients[0]), "its work at the start to be done: it is in a busy loop")
            assert clients[0].mail()[:4] in (b"250 ", b"451 ")
        lines = bridge.log.read_text().count("\n") - before
        assert lines <= time.monotonic() - began + 2, bridge.log.read_text()[-2000:]
        until(lambda: takes_mail(bridge), "the bridge to recover")


def rests(bridge: Process, client: SmtpClient) -> bool:
    """Whether it used little CPU time for a second."""
    used = cpu_seconds(bridge.pid)
    assert receives(client, 1.0) == b""
    return cpu_seconds(bridge.pid) - used < 0.5


def takes_mail(bridge: Process) -> bool:
    with bridge.client() as client, contextlib.suppress(OSError):
        client.open()
        return client.mail().startswith(b"250 ")
    return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
