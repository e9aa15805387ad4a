"""Debian's rspamd with redis: its statistics learn, and nothing asks the network."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.testing import free_port
from tests.requirements import find, need
from tests.rspamd_kit import QUICK_START
from tests.server_program import ServerProgram

PASSWORD = "open-sesame"
OFF = "enabled = false;"
SETTINGS = {
    "worker-normal.inc": 'bind_socket = "127.0.0.1:NORMAL"; count = 1;',
    "worker-controller.inc": f'bind_socket = "127.0.0.1:CONTROLLER"; count = 1; secure_ip = []; '
    f'password = "{PASSWORD}"; enable_password = "{PASSWORD}";',
    "worker-proxy.inc": OFF,
    **QUICK_START,
    "classifier-bayes.conf": "min_learns = MINIMUM;",
    "redis.conf": 'servers = "127.0.0.1:REDIS";',
    "logging.inc": 'type = "console"; level = "notice";',
    **{
        f"{name}.conf": OFF
        for name in ("rbl", "fuzzy_check", "surbl", "greylist", "ratelimit", "hfilter", "history_redis", "replies")
    },
}
MIN_LEARNS = 30  # with fewer spam or ham mails, its statistics say nothing; rspamd's default is 200
_WORDS = {
    "spam": "casino lottery jackpot roulette poker slots bonus voucher winnings prize claim discount million dollars",
    "ham": "meeting agenda minutes project budget review schedule colleague invoice department quarterly report",
}


@dataclass(frozen=True, slots=True)
class LearningRspamd:
    normal: int
    controller: int
    redis: int
    controller_program: ServerProgram

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.controller}"

    def learned(self, kind: str) -> int:
        """How many mails of this kind rspamd has learned, by its own statistics."""
        program = find("redis-cli") or ""
        command = [program, "-p", str(self.redis), "HGET", "RS", f"learns_{kind}"]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() or 0)

    def judge(self, mail: bytes) -> dict[str, Any]:
        headers = {"From": "news@shop.example", "Rcpt": "anna@example.org"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.normal}/checkv2", mail, headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            found: dict[str, Any] = json.load(response)
            return found


def mail_of(kind: str, number: int, sender: str = "news@shop.example") -> bytes:
    """A mail with the words of its kind, and another one for each number; of any other kind, with unheard words."""
    dice = random.Random(f"{kind} {number}")
    words = _WORDS[kind].split() if kind in _WORDS else [f"w{dice.randrange(10**9)}" for _ in range(20)]
    lines = "\r\n".join(" ".join(dice.choices(words, k=12)) for _ in range(8))
    head = f"From: {sender}\r\nTo: anna@example.org\r\nSubject: {' '.join(dice.choices(words, k=4))}\r\n"
    head += f"Date: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <{kind}.{number}@shop.example>\r\n"
    return f"{head}\r\n{lines}\r\n".encode()


@contextmanager
def learning_rspamd() -> Iterator[LearningRspamd]:
    need("rspamd", "redis-server")
    directory = Path(tempfile.mkdtemp(prefix="rspamd-"))
    normal, controller, redis = free_port(), free_port(), free_port()
    (directory / "local.d").mkdir()
    for name, settings in SETTINGS.items():
        text = settings.replace("NORMAL", str(normal)).replace("CONTROLLER", str(controller))
        text = text.replace("MINIMUM", str(MIN_LEARNS))
        (directory / "local.d" / name).write_text(text.replace("REDIS", str(redis)))
    command = [find("redis-server") or "", "--port", str(redis), "--bind", "127.0.0.1", "--dir", str(directory)]
    server = ServerProgram([*command, "--save", "", "--appendonly", "no"], directory / "redis.log", redis)
    command = [find("rspamd") or "", "-f", *(f"--var={n}={directory}" for n in ("LOCAL_CONFDIR", "DBDIR", "RUNDIR"))]
    if os.geteuid() == 0:
        command += ["-u", "_rspamd", "-g", "_rspamd"]
        for path in (directory, *directory.rglob("*")):
            shutil.chown(path, "_rspamd")
    try:
        program = ServerProgram(command, directory / "log", controller)
        try:
            yield LearningRspamd(normal, controller, redis, program)
        finally:
            program.kill()
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
