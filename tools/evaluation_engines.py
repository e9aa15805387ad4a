"""The engines that `make evaluate` compares: private instances of rspamd and spamd, without network tests.

`ask` returns the part of an answer that is kept (with the rules that matched, to see why), `read` the score in it and
what the service makes of that; `worth` is the setting that says how much the engine counts. What is not installed is
left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bridge.service import engine_settings
from bridge.service.analysis.rspamd import read_answer as rspamd_answer
from bridge.service.analysis.spamassassin import read_answer as spamd_answer

START_S = 300.0
ANSWER_S = 60.0
_RSPAMD = {
    "worker-normal.inc": 'bind_socket = "127.0.0.1:PORT"; count = 1;',
    "worker-controller.inc": "enabled = false;",
    "worker-proxy.inc": "enabled = false;",
    "options.inc": 'dns { nameserver = ["127.0.0.1:1"]; timeout = 0.2s; retransmits = 1; }',
    "rbl.conf": "enabled = false;",
    "fuzzy_check.conf": "enabled = false;",
    "surbl.conf": "enabled = false;",
    "logging.inc": 'type = "console"; level = "notice";',
}
# What it says of every mail of an archive when it has no DNS and the client is unknown: not evidence of anything.
_NO_NETWORK = {"groups_disabled": ["hfilter"], "symbols_disabled": ["RDNS_NONE", "RDNS_DNSFAIL", "DATE_IN_PAST"]}
_SPAMD_SCORE = re.compile(rb"^Spam: (\S+ ; -?[0-9.]+ / [0-9.]+)", re.MULTILINE)

Said = dict[str, Any]  # what is kept of an answer


class Answer(NamedTuple):
    score: float  # its own
    opinion: float  # what the service makes of it


class Rspamd:
    name = "rspamd"
    spam_score = 6.0  # `add header`, in its default configuration
    worth = engine_settings.Rspamd(url="http://127.0.0.1").spam_score
    at_once = 16  # it mostly waits for answers from DNS, which never come

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/checkv2"

    def ask(self, content: bytes, sender: str) -> Said:
        headers = {"Settings": json.dumps(_NO_NETWORK)}
        if sender.isascii() and sender.isprintable():
            headers["From"] = sender
        request = urllib.request.Request(self._url, content, headers)  # noqa: S310 (our own address)
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
            said = json.load(answer)
        kept = {name: said[name] for name in ("action", "score", "required_score")}
        return {**kept, "symbols": {name: symbol["score"] for name, symbol in said.get("symbols", {}).items()}}

    @classmethod
    def read(cls, said: Said, worth: float | None = None) -> Answer:
        found = rspamd_answer(json.dumps(said).encode(), cls.worth if worth is None else worth)
        return Answer(float(said["score"]), found.opinion)


class SpamAssassin:
    name = "SpamAssassin"
    spam_score = 5.0  # by default
    worth = engine_settings.SpamAssassin.model_validate({"address": "127.0.0.1:783"}).spam_score
    at_once = 2

    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, content: bytes, _sender: str) -> Said:
        with socket.create_connection(("127.0.0.1", self._port), ANSWER_S) as link:
            link.sendall(b"SYMBOLS SPAMC/1.5\r\nContent-length: %d\r\n\r\n" % len(content) + content)
            link.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        found = _SPAMD_SCORE.search(answer)
        if found is None:
            raise OSError("spamd gave no score")
        rules = answer.partition(b"\r\n\r\n")[2].decode("ascii", "replace")
        return {"spam": found[1].decode(), "rules": rules.strip()}

    @classmethod
    def read(cls, said: Said, worth: float | None = None) -> Answer:
        found = spamd_answer({"spam": said["spam"]}, b"", cls.worth if worth is None else worth)
        return Answer(float(said["spam"].partition(";")[2].partition("/")[0]), found.opinion)


Engine = Rspamd | SpamAssassin


def installed() -> list[type[Engine]]:
    return [kind for kind in (Rspamd, SpamAssassin) if _program(kind) is not None]


def _program(kind: type[Engine]) -> str | None:
    name = "rspamd" if kind is Rspamd else "spamd"
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")


@cache
def version_of(kind: type[Engine]) -> str:
    """As in `rspamd 3.4`."""
    said = subprocess.run([_program(kind) or "", "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    number = re.search(r"\d+(?:\.\d+)+", said.stdout)
    return f"{kind.name} {number[0]}" if number else kind.name


def running(kind: type[Engine]) -> AbstractContextManager[Engine]:
    program = _program(kind) or ""
    return _rspamd(program) if kind is Rspamd else _spamassassin(program)


@contextmanager
def _rspamd(program: str) -> Iterator[Engine]:
    with _directory() as directory, _started(program, directory) as port:
        yield Rspamd(port)


@contextmanager
def _spamassassin(program: str) -> Iterator[Engine]:
    with _directory() as directory:
        port = _free_port()
        # -L: local tests only. No user preferences, no learning.
        children = [f"--{bound}-children={SpamAssassin.at_once}" for bound in ("min", "max")]
        options = ["-L", "-x", *children, f"--listen=127.0.0.1:{port}", f"--helper-home-dir={directory}"]
        with _process([program, *options], port, directory / "log"):
            yield SpamAssassin(port)


@contextmanager
def _started(program: str, directory: Path) -> Iterator[int]:
    port = _free_port()
    with _process(rspamd_command(program, directory, port), port, directory / "log"):
        yield port


def rspamd_command(program: str, directory: Path, port: int) -> list[str]:
    """Starts an rspamd of its own, without DNS, on this port; its files are in the directory."""
    (directory / "local.d").mkdir()
    for name, settings in _RSPAMD.items():
        (directory / "local.d" / name).write_text(settings.replace("PORT", str(port)))
    command = [program, "-f", *(f"--var={name}={directory}" for name in ("LOCAL_CONFDIR", "DBDIR", "RUNDIR"))]
    if os.geteuid() == 0:
        command += ["-u", "_rspamd", "-g", "_rspamd"]
        for path in (directory, *directory.rglob("*")):
            shutil.chown(path, "_rspamd")
    return command


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="evaluate-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _process(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"{command[0]} does not start")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
