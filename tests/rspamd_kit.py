"""A real rspamd on its own port, which gives each mail the action that the mail asks for.

A rule in Lua reads the field `X-Wanted` of a mail: JSON with `action`, `message` (`messages.smtp_message`) and `milter`
(the `milter` part of the answer). `BODIES` are the actions that certain bodies get, for mail without that field.
Without DNS and without network; the machine's own rspamd is not touched.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError

from bridge.testing import free_port, until
from tests.requirements import find, need, unavailable

# Files below local.d. Compiling the names of all top-level domains took 25 s of CPU at each start.
QUICK_START = {
    "options.inc": 'dns { nameserver = ["127.0.0.1:1"]; timeout = 0.1s; retransmits = 1; } disable_hyperscan = true; '
    'url_tld = "${LOCAL_CONFDIR}/top_level_domains";',
    "../top_level_domains": "com\nnet\norg\nexample",
}
_LOCAL_D = {
    "worker-controller.inc": "enabled = false;",
    "worker-proxy.inc": "enabled = false;",
    **QUICK_START,
    "actions.conf": "discard { flags = [no_threshold]; } quarantine { flags = [no_threshold]; } "
    "reject = 100; add_header = 90; greylist = 80;",
    "logging.inc": 'type = "console"; level = "info";',
    **dict.fromkeys(
        (f"{name}.conf" for name in ("rbl", "fuzzy_check", "surbl", "greylist", "ratelimit", "phishing", "hfilter")),
        "enabled = false;",
    ),
}

BODIES = {"drop.example": "discard", "EICAR-STANDARD": "quarantine", "192.0.2.1/": "soft reject"}

_RULE = """\
local ucl = require 'ucl'
local bodies = { %s }
local function wanted(task)
  local field = task:get_header('X-Wanted')
  if field then
    local parser = ucl.parser()
    parser:parse_string(field)
    return parser:get_object()
  end
  local content = tostring(task:get_content())
  for text, action in pairs(bodies) do
    if content:find(text, 1, true) then return {action = action} end
  end
  return {}
end
rspamd_config:register_symbol({
  name = 'WANTED_ACTION', type = 'prefilter', priority = 10,
  callback = function(task)
    local found = wanted(task)
    if found.busy then local stop = os.clock() + found.busy; while os.clock() < stop do end end
    if found.milter then task:set_milter_reply(found.milter) end
    if found.action then task:set_pre_result({action = found.action, message = found.message, module = 'wanted'}) end
  end
})
rspamd_config:register_symbol({
  name = 'SEEN_BY_TEST', type = 'prefilter', priority = 9, score = 0.0, group = 'test', flags = 'nostat',
  callback = function(task) return true, 1.0 end
})
"""


class RealRspamd:
    """`kill`, `freeze` and `thaw` are the faults; `start` brings it back on the same port."""

    def __init__(self, **worker: Any) -> None:
        need("rspamd")
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="rspamd-"))
        self._process: subprocess.Popen[bytes] | None = None
        local = self.directory / "local.d"
        local.mkdir()
        options = {"bind_socket": f'"127.0.0.1:{self.port}"', "count": 1, **worker}
        normal = " ".join(f"{name} = {value};" for name, value in options.items())
        for name, text in {**_LOCAL_D, "worker-normal.inc": normal}.items():
            (local / name).write_text(text + "\n")
        bodies = ", ".join(f"['{text}'] = '{action}'" for text, action in BODIES.items())
        (self.directory / "rspamd.local.lua").write_text(_RULE % bodies)
        self._command = [str(find("rspamd")), "-f"]
        self._command += [f"--var={name}={self.directory}" for name in ("LOCAL_CONFDIR", "DBDIR", "RUNDIR")]
        if os.geteuid() == 0:
            self._command += ["-u", "_rspamd", "-g", "_rspamd"]
            for path in (self.directory, *self.directory.rglob("*")):
                shutil.chown(path, "_rspamd")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        until(lambda: self._is_over() or self.answers_ping(), "rspamd to answer", 180.0)
        if self._is_over():
            unavailable(f"rspamd does not start: {self.log()[-500:]}")

    def _is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def answers_ping(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=2) as answer:
                return bool(answer.read().strip() == b"pong")
        except HTTPError as refusal:
            refusal.close()
            return False
        except OSError:
            return False

    def _signal(self, number: int) -> None:
        """To all its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    @contextmanager
    def full(self, bridge_port: int) -> Iterator[None]:
        """Occupy all slots of the bridge: rspamd itself reports no load."""
        clients: list[socket.socket] = []
        with self.frozen():
            try:
                for number in range(40):
                    clients.append(_waiting_mail(bridge_port, number))
                yield
            finally:
                for client in clients:
                    client.close()

    def is_full(self, status: str) -> bool:
        return bool(json.loads(status)["saturated"])


def _waiting_mail(port: int, number: int) -> socket.socket:
    """A client that has sent a mail, and does not read the answer."""
    client = socket.create_connection(("127.0.0.1", port), 10)
    lines = f"EHLO x\r\nMAIL FROM:<full{number}@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n"
    client.sendall(lines.encode())
    client.sendall(f"Subject: full {number}\r\n\r\nx\r\n.\r\n".encode())
    return client


def wanting(content: bytes, **wanted: Any) -> bytes:
    """The mail, with the field that the rule reads."""
    return f"X-Wanted: {json.dumps(wanted)}\r\n".encode() + content
