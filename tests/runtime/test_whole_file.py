"""A file of the configuration that never ends, or never begins, stopped the program without a word."""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.config.listener import Tls
from bridge.daemon import certificate_expiry, named_files
from bridge.digests.people import People
from bridge.errors import ConfigError
from bridge.runtime import tls, whole_file, yaml_file
from bridge.service import token_files
from bridge.service.analysis.tls_connection import tls_opening
from bridge.service.detection import model

LOADERS: dict[str, Callable[[Path], Any]] = {  # a library reads these
    "certificates": lambda path: named_files.read_certificates(str(path), path.parent, "scanner.ca_file"),
    "certificate": lambda path: named_files.listener_tls(
        Tls(cert_file=str(path), key_file=str(path)), path.parent, "listeners[0].tls"
    ),
    "authorities of an engine": lambda path: tls_opening(str(path), "engine.example"),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "configuration": yaml_file.read_text,
    "secret": lambda path: named_files.read_secret(path, "scanner.token_file"),
    "token of the service": lambda path: token_files.password_in(str(path), path.parent),
    "aliases": lambda path: People((), aliases=path).read_aliases(),
    "model": model.load,
}


@pytest.fixture(params=["device", "huge"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    if request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(10 * 1024**3)  # no disk space is used
    return path


@pytest.mark.parametrize("reader", (READERS | LOADERS).values(), ids=READERS | LOADERS)
def test_a_file_that_never_ends_is_named(reader: Callable[[Path], Any], endless: Path) -> None:
    with pytest.raises((ConfigError, OSError, ValueError)) as caught:
        reader(endless)
    assert str(endless) in str(caught.value)
    assert "larger than 64 MiB" in str(caught.value) or "not a regular file" in str(caught.value)


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_a_library_waited_for_a_pipe_that_nobody_writes_to(loader: Callable[[Path], Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((ConfigError, OSError), match="not a regular file"):
        loader(tmp_path / "pipe")


def test_a_pipe_that_nobody_writes_to_is_read_for_some_seconds(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"gave nothing for 0\.05 s"):
        whole_file.read_bytes(tmp_path / "pipe", silent_s=0.05)


def test_a_certificate_that_never_ends_has_no_date(endless: Path) -> None:
    assert certificate_expiry.earliest_expiry(endless) is None
    assert "chain" not in tls.chain_problem(ssl.SSLError(), endless, endless)


def test_a_pipe_of_a_shell_is_read() -> None:
    """`scanbridge check -c <(command)`"""
    with subprocess.Popen(["printf", "a: 1\\r\\nb: 2\\n"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert whole_file.read_text(Path(f"/dev/fd/{process.stdout.fileno()}")) == "a: 1\nb: 2\n"
