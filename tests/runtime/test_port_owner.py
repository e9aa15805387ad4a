"""Which process listens on an address."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import CannotListen, address_of, bind
from bridge.testing import free_port
from tests.requirements import need_ipv6


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_the_process_that_listens_is_found(host: str) -> None:
    if host == "::1":
        need_ipv6()
    with bind(Endpoint(host, 0)) as sock:
        port = address_of(sock).port
        assert port_owner.owners(Endpoint(host, port)) == [os.getpid()]
        assert os.getpid() in port_owner.owners(Endpoint("localhost", port))  # others may have it on another address


def test_another_address_with_the_same_port_is_not_in_the_way() -> None:
    """The message would name a program that can go on listening there."""
    with bind(Endpoint("127.0.0.1", 0)) as sock:
        port = address_of(sock).port
        assert os.getpid() not in port_owner.owners(Endpoint("127.0.0.2", port))
        assert os.getpid() in port_owner.owners(Endpoint("0.0.0.0", port))


def test_a_port_that_is_only_connected_to_is_free() -> None:
    assert port_owner.owners(Endpoint("127.0.0.1", free_port())) == []


def test_a_unix_socket_names_its_process(tmp_path: Path) -> None:
    address = Endpoint(path=str(tmp_path / "socket"))
    with bind(address), pytest.raises(CannotListen) as failed:
        bind(address, "listen")
    assert f"listen: cannot listen on {address}: Address already in use by process {os.getpid()} (" in str(failed.value)


def test_a_strange_name_of_another_socket_is_no_error(tmp_path: Path) -> None:
    """Names in the abstract namespace may be any bytes; one of them ended the start of a daemon with a traceback."""
    address = Endpoint(path=str(tmp_path / "socket"))
    with socket.socket(socket.AF_UNIX) as odd, socket.socket(socket.AF_UNIX) as lines, bind(address):
        for sock, name in ((odd, b"\0\xff\xfe%d"), (lines, b"\0a\nb\n%d")):
            sock.bind(name % os.getpid())
            sock.listen()
        assert port_owner.owners(address) == [os.getpid()]


def test_the_same_port_of_another_version_of_ip_is_another_socket() -> None:
    """The process on :: was signalled, or named, instead of the one on 127.0.0.1."""
    with bind(Endpoint("127.0.0.1", 0)) as sock:
        port = address_of(sock).port
        with bind(Endpoint("::", port)) as other:
            exact = set(port_owner._tcp(Endpoint("127.0.0.1", port)))
            assert exact == {str(os.fstat(sock.fileno()).st_ino)} != {str(os.fstat(other.fileno()).st_ino)}


def test_a_process_that_has_ended_has_no_name() -> None:
    """It may end between the two looks."""
    assert (port_owner.name(0), port_owner.parent(0)) == ("", 0)


def test_a_socket_that_does_not_listen_is_not_in_the_way() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert port_owner.owners(Endpoint("127.0.0.1", sock.getsockname()[1])) == []
