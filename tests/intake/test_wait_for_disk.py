"""Clients that are stopped because the disk of the spool is behind."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from bridge.intake.wait_for_disk import wait_for_disk
from bridge.mail.message import Message, Spool
from bridge.mail.spool import DiskLimits
from bridge.testing import eventually
from tests.mail.test_spool_file import HangingDisk

KiB = 1024
CLIENTS = 40
CONTENT = 512 * KiB  # of each


class SlowDisk(HangingDisk):
    """Once it is told to, it writes slowly."""

    def write(self, descriptor: int, chunk: bytes) -> None:
        super().write(descriptor, chunk)
        time.sleep(0.005)  # the part of a slow disk


class Receiver(asyncio.Protocol):
    """Puts what it receives into a mail."""

    def __init__(self, spool: Spool) -> None:
        self.message = Message(spool)
        self.error: OSError | None = None
        self.may_be_read = True
        self.stops_ended = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.message.write(b"x" * 11)

    def data_received(self, data: bytes) -> None:
        try:
            self.message.write(data)
        except OSError as exc:
            self.error = exc
            self.transport.abort()
        wait_for_disk(self.message, self.transport, self)

    def end_stop(self) -> bool:
        self.stops_ended += 1
        return self.may_be_read


@pytest.mark.parametrize("blocks", [9, 7], ids=["half of the room is taken", "less than half"])
async def test_clients_that_were_stopped_are_not_let_go_all_at_once(tmp_path: Path, blocks: int) -> None:
    """All of them sent a block at the same moment, for which there was no room, though the disk worked.

    While less than half of the room was taken, none of them was stopped, however many there were.
    """
    disk = SlowDisk(DiskLimits(max_unwritten=4096 * KiB, hangs_after_s=60.0))
    spool = Spool(1 << 28, memory_per_mail=10, directory=str(tmp_path), disk=disk)
    loop = asyncio.get_running_loop()
    first, receivers = Message(spool), [Receiver(spool) for _ in range(CLIENTS)]
    with ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        for _ in range(blocks):
            first.write(b"x" * 256 * KiB)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CONTENT)
        clients = []
        for receiver in receivers:
            client = stack.enter_context(socket.create_connection(listening.getsockname()))
            accepted, _ = listening.accept()
            await loop.connect_accepted_socket(lambda receiver=receiver: receiver, accepted)
            wait_for_disk(receiver.message, receiver.transport, receiver)
            client.setblocking(False)
            clients.append(asyncio.create_task(loop.sock_sendall(client, b"x" * CONTENT)))
        assert disk.is_behind()
        disk.goes_on.set()
        whole = 11 + CONTENT
        await eventually(lambda: all(each.error or each.message.size == whole for each in receivers), "all content")
        assert [each.error for each in receivers if each.error] == []
        await asyncio.gather(*clients)
        for receiver in receivers:
            receiver.transport.abort()
            receiver.message.close()
        first.close()


async def test_a_client_that_was_stopped_for_two_reasons_was_read_when_one_of_them_was_gone(tmp_path: Path) -> None:
    """It did not read our answers, or had sent too many commands; what it sent then was kept without a limit."""
    disk = HangingDisk(DiskLimits(max_unwritten=1024 * KiB, hangs_after_s=60.0))
    receiver = Receiver(Spool(1 << 28, memory_per_mail=10, directory=str(tmp_path), disk=disk))
    with ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        ours, theirs = map(stack.enter_context, socket.socketpair())
        await asyncio.get_running_loop().connect_accepted_socket(lambda: receiver, ours)
        receiver.message.write(b"x" * 600 * KiB)
        theirs.send(b"y")
        await eventually(lambda: not receiver.transport.is_reading(), "the client to be stopped")
        receiver.may_be_read = False
        disk.goes_on.set()
        await eventually(lambda: receiver.stops_ended > 0, "the disk to keep up")
        assert not receiver.transport.is_reading()
        receiver.transport.abort()
        receiver.message.close()
    assert disk.growing == 0
