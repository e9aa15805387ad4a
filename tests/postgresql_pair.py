"""A real PostgreSQL primary and its streaming standby behind one address, which a failover points to the other one."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import text

from bridge.runtime.database import Database
from bridge.testing import until
from tests.postgresql import PostgreSql, fresh_database

_BLOCK = 65536
_CLIENTS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Address:
    """One TCP address for whichever server is the primary now, as a load balancer or a virtual IP has."""

    def __init__(self, target: str) -> None:
        self.target = target  # a UNIX socket; "": nobody answers
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def point_to(self, target: str) -> None:
        """Connections to the old server end."""
        with self._lock:
            self.target = target
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.point_to("")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            with self._lock:
                if not self.target:
                    return
                server.connect(self.target)
                self._open |= {client, server}
            try:
                _copy_both_ways(client, server)
            finally:
                with self._lock:
                    self._open -= {client, server}


def _copy_both_ways(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select():
                data = key.fileobj.recv(_BLOCK)  # type: ignore[union-attr]
                if not data:
                    return
                key.data.sendall(data)


class Pair:
    """A primary, its standby, and the address of the one that takes writes."""

    def __init__(self, primary: PostgreSql, standby: PostgreSql) -> None:
        self.primary, self.standby = primary, standby
        self.address = Address(primary.socket)
        name = fresh_database(primary.url).partition("@/")[2].partition("?")[0]
        self.url = f"postgresql://tester@127.0.0.1:{self.address.port}/{name}"
        self._direct = {server: Database(server.url.format(name=name)) for server in (primary, standby)}

    def lose_the_primary(self) -> None:
        """Replication is asynchronous: what the standby does not have yet would be lost, so it gets the time."""
        self.address.point_to("")
        until(lambda: self._ask(self.primary, f"SELECT count(*) = 0 {_CLIENTS}"), "the last transaction to end")
        self._replicate()
        self.primary.stop()

    def promote_the_standby(self) -> None:
        self.standby.promote()
        self.address.point_to(self.standby.socket)

    def split(self) -> tuple[Database, Database]:
        """The standby takes writes, and nobody has stopped the primary: both, for those who still reach them."""
        self._replicate()
        self.standby.promote()
        return self._direct[self.primary], self._direct[self.standby]

    def _replicate(self) -> None:
        written = self._ask(self.primary, "SELECT pg_current_wal_lsn()")
        until(lambda: self._ask(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"), "the standby")

    def _ask(self, server: PostgreSql, question: str) -> object:
        """In a database that the standby has had from the start."""
        engine = Database(server.url.format(name="postgres")).engine(connections=1)
        try:
            with engine.connect() as connection:
                return connection.execute(text(question)).scalar()
        finally:
            engine.dispose()


@contextmanager
def running(server: PostgreSql) -> Iterator[PostgreSql]:
    is_up = False
    try:
        server.start()
        is_up = True
        yield server
    finally:
        if is_up:
            with suppress(AssertionError):  # it was stopped in the test
                server.stop()
        server.remove()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers that a test may part."""
    with running(PostgreSql()) as primary, running(PostgreSql(copy_of=primary)) as standby:
        made = Pair(primary, standby)
        try:
            yield made
        finally:
            made.address.close()
