"""No mail is lost when the client disconnects or the bridge stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import ssl
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.filter.outcome import Record
from bridge.intake.smtp.connection import SmtpConnection
from bridge.intake.smtp.data import DataReader
from bridge.intake.smtp.session import SmtpSession
from bridge.mail.message import Message
from bridge.mail.transaction import Transaction
from bridge.scanner.http import ScannerConnection
from bridge.testing import RunningBridge, SmtpClient, running_bridge, until
from tests.hostile.hostile_kit import Hanging, bridge_process


def close(client: SmtpClient) -> None:
    client.close()


def reset(client: SmtpClient) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: SmtpClient) -> None:
    client.sock.shutdown(socket.SHUT_WR)


Way = Callable[[SmtpClient], None]
Certificate = tuple[dict[str, Any], ssl.SSLContext]
WAYS: list[Way] = [close, reset, half_close]
IN_DATA = b"MAIL FROM:<>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nSubject: x\r\n\r\nx"


def is_idle(bridge: RunningBridge) -> bool:
    """No session, slot or spooled byte is left."""
    server = bridge.daemon.servers[0]
    left = (
        server.listener.open,
        server.listener.per_client,
        bridge.daemon.admission.in_processing,
        bridge.daemon.spool.in_use,
    )
    return not any(left)


@pytest.mark.parametrize("leave", WAYS)
def test_client_that_disconnects_during_the_scan_cancels_it(shared: RunningBridge, leave: Way) -> None:
    """The scan is cancelled, the slot is free, nothing is relayed, and the log has one line about it."""
    shared.scanner.reply = hang = Hanging()
    client = shared.client()
    client.open()
    client.begin()
    client.send(b"x\r\n.\r\n")
    assert shared.scanner.arrived.acquire(timeout=60)
    leave(client)
    assert hang.ended.wait(60), "the scan was not cancelled"
    until(lambda: is_idle(shared), "the bridge to be idle")
    assert shared.next_hop.mails == []
    client.close()


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("said", [b"", b"MAIL FROM:<a@cl", IN_DATA])
def test_client_that_disconnects_midway_leaves_nothing_behind(
    shared: RunningBridge, leave: Way, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Between commands, in a command, in the content: the session ends without a warning in the log."""
    with caplog.at_level(logging.WARNING):
        client = shared.client()
        client.open()
        client.send(said)
        leave(client)
        until(lambda: is_idle(shared), "the bridge to be idle")
        client.close()
    assert caplog.records == [] and shared.scanner.submissions == []


@pytest.mark.parametrize("leave", WAYS)
def test_client_that_disconnects_with_the_final_dot_leaves_nothing_behind(shared: RunningBridge, leave: Way) -> None:
    """The dot and the disconnect may arrive in one loop iteration, before the mail is processed."""
    shared.scanner.reply = Hanging()
    for _ in range(20):
        client = shared.client()
        client.open()
        client.send(IN_DATA + b"\r\n.\r\n")
        leave(client)
        client.close()
    until(lambda: is_idle(shared), "the bridge to be idle")
    assert shared.next_hop.mails == []


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*kinds: type) -> int:
    """Objects of these classes and their subclasses; a shared bridge has some, too."""
    return sum(issubclass(type(item), kinds) for item in gc.get_objects())


def scanner_connections(bridge: RunningBridge) -> int:
    """Those of this bridge alone: a shared one opens and closes its own at any time."""
    found = [item for item in gc.get_objects() if type(item) is ScannerConnection]
    return sum(connection._loop is bridge.background.loop for connection in found)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("in_the_scan", [False, True], ids=["in data", "in the scan"])
def test_disconnected_client_is_freed_without_the_garbage_collector(
    tmp_path: Path, certificate: Certificate, leave: Way, in_the_scan: bool
) -> None:
    """The collector rarely examines old objects, and a TLS connection has buffers of hundreds of KiB."""
    with running_bridge(tmp_path, tls=certificate[0]) as bridge:
        bridge.scanner.reply = Hanging()
        kinds = (SmtpConnection, SmtpSession, DataReader, Message)
        before = alive(*kinds)
        for _ in range(3):
            client = bridge.client()
            client.open()
            client.say(b"STARTTLS")
            client.sock = certificate[1].wrap_socket(client.sock, server_hostname="bridge.example")
            client.say(b"EHLO client.example")
            client.begin()
            client.send(b"x" * 300_000 + (b"\r\n.\r\n" if in_the_scan else b""))
            if in_the_scan:
                assert bridge.scanner.arrived.acquire(timeout=60)
            leave(client)
            client.close()
        until(lambda: is_idle(bridge), "the bridge to be idle")
        until(lambda: alive(*kinds) <= before, "the mail's objects to be freed")
        until(
            lambda: scanner_connections(bridge) <= 1,
            "all scanner connections but the polling one to be freed",
        )


async def reset_the_bridge(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fault", ["reset", "nonsense", "silence"])
def test_failed_scan_is_freed_without_the_garbage_collector(tmp_path: Path, fault: str) -> None:
    """A faulty scanner fails mail after mail; leftovers of each failure must not add up."""
    replies = {"reset": reset_the_bridge, "nonsense": b"220 smtp.example\r\n\r\n", "silence": Hanging()}
    with running_bridge(tmp_path, {"late_decisions": {"store": "off"}}, deadline="1s") as bridge:
        bridge.scanner.reply = replies[fault]
        before = alive(Message, Transaction, Record)
        with bridge.client() as client:
            client.open()
            assert [client.mail()[:4] for _ in range(2)] == [b"451 "] * 2
        until(lambda: is_idle(bridge), "the bridge to be idle")
        until(
            lambda: alive(Message, Transaction, Record) <= before,
            "the mail's objects to be freed",
        )
        until(
            lambda: scanner_connections(bridge) <= 1,
            "all scanner connections but the polling one to be freed",
        )


def test_half_closed_client_still_gets_its_replies(shared: RunningBridge) -> None:
    """`printf ... | nc` reads its replies."""
    with shared.client() as client:
        client.send(b"EHLO client.example\r\nNOOP\r\nFROB\r\n")
        half_close(client)
        client.reply()
        assert client.reply().startswith(b"250-")
        assert client.reply() == b"250 2.0.0 OK"
        assert client.reply() == b"500 5.5.2 Error: command not recognized"
        assert client.is_cut()
    until(lambda: is_idle(shared), "the bridge to be idle")


@pytest.mark.parametrize("quit_", [b"QUIT\r\n", b"quit\r\n"])
def test_client_that_pipelines_quit_after_its_mail_gets_its_reply(shared: RunningBridge, quit_: bytes) -> None:
    """Exim does this with its last mail: it sends the dot and QUIT, closes its half, then reads."""
    with shared.client() as client:
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\n" + quit_)
        half_close(client)
        assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert client.reply() == b"221 2.0.0 Bye"
        assert client.is_cut()
    until(lambda: is_idle(shared), "the bridge to be idle")
    assert len(shared.next_hop.mails) == 1


def test_mail_of_a_disconnected_client_is_not_processed(shared: RunningBridge) -> None:
    """A whole mail and the disconnect arrive together: the client gets no reply, so it will send the mail again."""
    for _ in range(5):
        with shared.client() as client:
            client.send(b"EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<b@example.org>\r\nDATA\r\nx\r\n.\r\n")
            half_close(client)
            said = b""
            with contextlib.suppress(OSError):
                while block := client.sock.recv(65536):
                    said += block
        until(lambda: is_idle(shared), "the bridge to be idle")
        assert (b"queued as" in said) <= (len(shared.next_hop.mails) > 0)


def test_hundreds_of_sessions_leave_no_trace(shared: RunningBridge) -> None:
    """However sessions end, even before they were set up, their counts are reset and their sockets closed."""
    before = sockets_of(shared.port)
    assert before, "the listener has one"
    for number in range(300):
        client = shared.client()
        if number % 3:
            client.open()
        if number % 5 == 0:
            client.begin()
        WAYS[number % 2](client)
    until(lambda: is_idle(shared), "the bridge to be idle")
    until(lambda: sockets_of(shared.port) <= before, "the sockets to be closed")


def sockets_of(port: int) -> int:
    """How many sockets of this process have the port as their own, including those whose connection is over."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    address = copy.getsockname()
                    found += isinstance(address, tuple) and address[1] == port
    return found


# Shutdown


def stop(bridge: RunningBridge) -> threading.Thread:
    """Starts the shutdown, and returns once no connection is accepted any more."""
    server = bridge.daemon.servers[0]
    thread = threading.Thread(target=lambda: bridge.background.run(server.drain(10.0)))
    thread.start()
    until(lambda: server.listener.draining, "the drain to begin")
    return thread


def test_idle_sessions_get_421_at_shutdown(tmp_path: Path) -> None:
    """A client between two mails gets 421 immediately; no new client is accepted."""
    with running_bridge(tmp_path) as bridge, bridge.client() as first, bridge.client() as second:
        first.open()
        second.open()
        second.say(b"MAIL FROM:<a@client.example>")
        thread = stop(bridge)
        for client in (first, second):
            assert client.reply() == b"421 4.3.2 Service shutting down"
            assert client.is_cut()
        thread.join(60)
        with pytest.raises(OSError):
            bridge.client()


def test_mail_being_scanned_is_finished_before_shutdown(tmp_path: Path) -> None:
    """The mail in progress gets its reply, then its client gets 421."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        bridge.scanner.reply = hang = Hanging()
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\nNOOP\r\n")
        assert bridge.scanner.arrived.acquire(timeout=60)
        thread = stop(bridge)
        bridge.background.loop.call_soon_threadsafe(hang.release.set)
        assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert client.reply() == b"421 4.3.2 Service shutting down"
        assert client.is_cut()
        thread.join(60)
        assert len(bridge.next_hop.mails) == 1


def test_mail_in_data_is_finished_before_shutdown(tmp_path: Path) -> None:
    """A client in the middle of its content may finish it, gets the reply, and then 421."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        client.open()
        client.begin()
        client.send(b"Subject: x\r\n")
        until(lambda: any(session.in_mail for session in bridge.daemon.servers[0].listener.open), "the mail to arrive")
        thread = stop(bridge)
        client.send(b"\r\nx\r\n.\r\n")
        assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
        assert client.reply() == b"421 4.3.2 Service shutting down"
        thread.join(60)
        assert len(bridge.next_hop.mails) == 1


def test_mail_that_outlasts_the_drain_is_cut_with_421(tmp_path: Path) -> None:
    """Shutdown time is bounded: at the limit the client is told to retry, and nothing is relayed."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        bridge.scanner.reply = Hanging()
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\n")
        assert bridge.scanner.arrived.acquire(timeout=60)
        bridge.background.run(bridge.daemon.servers[0].drain(0.2))
        assert client.reply() == b"421 4.3.2 Service shutting down"
        assert client.is_cut()
        until(lambda: is_idle(bridge), "the bridge to be idle")
        assert bridge.next_hop.mails == []


def test_sigterm_in_the_middle_of_data_ends_in_time(tmp_path: Path) -> None:
    """The daemon waits for a mail in DATA, answers it, and exits."""
    with bridge_process(tmp_path, is_program=False) as bridge, bridge.client() as client:
        client.open()
        client.begin()
        client.send(b"Subject: x\r\n\r\n")
        bridge.terminate()
        until(lambda: not_listening(bridge.port), "the listener to close")
        assert client.say(b"x\r\n.")[0].startswith(b"250 ")
        assert client.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait(60) == 0


def not_listening(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


# Exceptions


@pytest.mark.parametrize(("protocol", "recipients"), [("smtp", 1), ("lmtp", 3)])
def test_internal_error_is_451_and_reveals_nothing(
    tmp_path: Path, protocol: str, recipients: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected exception gives a temporary error, its text appears only in the log, and the session continues."""
    with running_bridge(tmp_path, protocol=protocol) as bridge, bridge.client() as client:

        async def broken(transaction: object) -> None:
            raise RuntimeError("internal detail")

        bridge.daemon.servers[0]._filter.process = broken  # type: ignore[method-assign, union-attr]
        client.open(b"LHLO x" if protocol == "lmtp" else b"EHLO x")
        client.say(b"MAIL FROM:<>", *[b"RCPT TO:<b@example.org>"] * recipients, b"DATA")
        client.send(b"x\r\n.\r\n")
        for _ in range(recipients):
            assert client.reply() == b"451 4.3.0 Error: internal problem, try again later"
        assert client.say(b"RCPT TO:<b@example.org>") == [b"503 5.5.1 Error: need MAIL command"]
    assert "internal detail" in caplog.text


def test_internal_error_in_a_command_is_451(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command fails, the open transaction is reset, the next command works."""
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        early = bridge.daemon.servers[0]._filter.early  # type: ignore[union-attr]
        closed = early.closed_at_mail

        def broken() -> None:
            raise ConnectionRefusedError("internal detail")

        early.closed_at_mail = broken  # type: ignore[method-assign]
        client.open()
        assert client.say(b"MAIL FROM:<>") == [b"451 4.3.0 Error: internal problem, try again later"]
        early.closed_at_mail = closed  # type: ignore[method-assign]
        assert client.mail().startswith(b"250 ")
    assert "internal detail" in caplog.text


def test_cancelled_sessions_are_not_logged_as_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Tasks that end with their clients cause no complaint from the event loop and none in the log."""
    complaints: list[str] = []
    with running_bridge(tmp_path) as bridge:
        loop = bridge.background.loop
        loop.call_soon_threadsafe(
            loop.set_exception_handler, lambda _, context: complaints.append(str(context["message"]))
        )
        for leave in WAYS * 3:
            client = bridge.client()
            client.open()
            leave(client)
            client.close()
        until(lambda: is_idle(bridge), "the bridge to be idle")
        bridge.background.run(collect())
    assert complaints == [] and not [record for record in caplog.records if record.levelno > logging.INFO]


async def collect() -> None:
    gc.collect()
    await asyncio.sleep(0)
