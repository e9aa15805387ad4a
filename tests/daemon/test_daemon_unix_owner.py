"""The owner of a unix socket."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from bridge.daemon.sockets import open_listening
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint
from tests.requirements import need


def test_unix_socket_gets_its_mode_and_owner(tmp_path: Path) -> None:
    """The mail server's user can own the socket."""
    need(root=True)
    (sock,) = open_listening(Endpoint(path=str(tmp_path / "s")), "0600", "nobody")
    sock.close()
    stat = (tmp_path / "s").stat()
    assert (stat.st_mode & 0o777, stat.st_uid) == (0o600, pwd.getpwnam("nobody").pw_uid)
    assert stat.st_gid == os.getgid()


def test_unknown_owner_is_refused_with_its_name(tmp_path: Path) -> None:
    """The error names the user that does not exist."""
    with pytest.raises(ConfigError, match=r"cannot change the owner of .* to no-such-user: no such user"):
        open_listening(Endpoint(path=str(tmp_path / "s")), "0600", "no-such-user")
