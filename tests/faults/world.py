"""The parts of a fault run: Postfix in front and behind, the bridge, its scanner, its disk.

Each can be killed, frozen and restarted while the others run. Everything is real except the final destination, which
only records what arrives.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bridge.testing import TOKEN
from tests.chain import Destination, Postfix, free_port, is_listening, until
from tests.daemon.process_kit import ROOT, accepts_mail, environment, get, scanbridge
from tests.processes import children, is_running
from tests.requirements import unavailable

DEADLINE_S = 3.0  # of the bridge's listeners
ANSWER_S = 1.5  # how long the bridge waits for the next hop's answers
DISK = 48 << 20
HERE = Path(__file__).parent

HURRIED = """
minimal_backoff_time = 1s
maximal_backoff_time = 2s
queue_run_delay = 1s
in_flow_delay = 0s
notify_classes =
smtp_connect_timeout = 2s
"""
FRONT = """\
127.0.0.1:{ports[front_queue]} inet n - n - 50 smtpd -o content_filter=scan:[127.0.0.1]:{ports[queue]}
127.0.0.1:{ports[front_proxy]} inet n - n - 50 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports[proxy]}
    -o smtpd_proxy_timeout=20s
scan unix - - n - 10 smtp -o smtp_send_xforward_command=yes -o disable_mime_output_conversion=yes
"""
BEHIND = """\
127.0.0.1:{ports[behind]} inet n - n - 50 smtpd
    -o smtpd_authorized_xforward_hosts=127.0.0.0/8
    -o smtpd_relay_restrictions=permit_mynetworks,reject
"""
# After the queue, `bounce` would be quarantined; here Postfix sends a notice, so that it can be counted.
BRIDGE = """\
scanner: {{urls: ["http://127.0.0.1:{ports[scanner]}"], token_file: token, status_interval: 500ms}}
listeners:
  - {{name: queue, address: "127.0.0.1:{ports[queue]}", profile: postfix-content-filter, deadline: {deadline}s,
      policy: {{bounce: reject}}}}
  - {{name: proxy, address: "127.0.0.1:{ports[proxy]}", profile: postfix-proxy, deadline: {deadline}s}}
  - {{name: raw, address: "127.0.0.1:{ports[raw]}", deadline: {deadline}s}}
relay: {{next_hop: "smtp://127.0.0.1:{ports[behind]}", connect_timeout: 2s, timeout: {answer}s}}
admin: {{address: "127.0.0.1:{ports[admin]}"}}
state_directory: {directory}/state
spool: {{memory_per_mail: 64KiB, directory: {directory}/state}}
drain_timeout: 8s
hostname: bridge.example
log: {{format: json}}
workers: {workers}
"""
PORTS = ("front_queue", "front_proxy", "behind", "scanner", "queue", "proxy", "raw", "admin")


class Bridge:
    """`scanbridge run`, with as many workers as each start says."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self.directory, self.ports = directory, ports
        self.config, self.log = directory / "bridge.yml", directory / "bridge.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.exit_codes: list[int] = []  # of processes that were stopped by a signal
        self._orphans: list[int] = []
        self.highest = 0  # resident memory of one process, in bytes
        (directory / "token").write_text(TOKEN)

    def configure(self, workers: int) -> None:
        self.workers = workers
        text = BRIDGE.format(
            ports=self.ports, directory=self.directory, workers=workers, deadline=DEADLINE_S, answer=ANSWER_S
        )
        self.config.write_text(text)

    def start(self, workers: int) -> None:
        """Retries until it runs, as a service manager does."""
        self.configure(workers)
        end = time.monotonic() + 60
        while not self._start():
            assert time.monotonic() < end, f"the bridge does not start\n{self.log.read_text()[-3000:]}"

    def _start(self) -> bool:
        command = [sys.executable, "-m", "bridge", "run", "-c", str(self.config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(PYTHONPATH=str(ROOT)), start_new_session=True
            )
        self.starts += 1
        until(lambda: not self.is_alive() or accepts_mail(self.ports["admin"]), "the bridge to accept mail")
        return self.is_alive()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pids(self) -> list[int]:
        """Of all processes that accept mail."""
        with suppress(OSError):
            found = [self.pid, *children(self.pid)]
            self.highest = max([self.highest, *map(resident, found)])
            return found if self.workers == 1 else found[1:]
        return []

    def kill(self) -> None:
        """kill -9 of the first process only; its workers notice and exit, perhaps while new ones start."""
        self._orphans += self.pids()
        self._signal(signal.SIGKILL)
        self._reap()

    def kill_all(self) -> None:
        """All processes at the same moment, as when the machine crashes."""
        self.pids()
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self, again_after_s: float | None = None) -> None:
        """SIGTERM, perhaps twice."""
        self.pids()
        self._signal(signal.SIGTERM)
        if again_after_s is not None:
            time.sleep(again_after_s)
            self._signal(signal.SIGTERM)
        self.exit_codes.append(self._reap())

    def reload(self) -> None:
        self._signal(signal.SIGHUP)

    def _signal(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)  # has no effect on an ended process

    def _reap(self) -> int:
        assert self.process is not None
        return self.process.wait(60)

    def await_orphans(self) -> None:
        until(lambda: not any(map(is_running, self._orphans)), "the workers of killed supervisors to end")

    def status(self) -> dict[str, Any]:
        return dict(json.loads(get(self.ports["admin"], "/status")[1]))

    def kept(self) -> list[dict[str, Any]]:
        """The ids in the quarantine's index."""
        done = scanbridge("quarantine", "list", "--json", "--limit", "0", "-c", self.config, timeout=120)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


class Scanner:
    """The process of `deciding_scanner`."""

    def __init__(self, directory: Path, port: int) -> None:
        self.port, self.seen, self._log = port, directory / "seen", directory / "scanner.log"
        self.seen.touch()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, str(HERE / "deciding_scanner.py"), str(self.port), str(self.seen)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment(PYTHONPATH=str(ROOT)))
        until(lambda: is_listening(self.port), "the scanner to listen")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)


class Behind(Postfix):
    """The next hop: can be killed with all its processes, and frozen."""

    def pids(self) -> list[int]:
        """The master first, so that it starts no more processes."""
        master = int((self.directory / "spool/pid/master.pid").read_text())
        with suppress(OSError):
            return [master, *children(master)]
        return []

    def kill(self) -> None:
        """Until none is left: a process may fork during the search."""
        pids = self.pids()
        signal_all(pids[:1], signal.SIGSTOP)
        signal_all([*pids, *self.pids()], signal.SIGKILL)


class Disk:
    """A small disk, such as the bridge's state directory, that is filled on demand."""

    def __init__(self, place: Path, size: int = DISK) -> None:
        self.place, self._size, self._filler = place, size, place / "filler"

    def __enter__(self) -> Disk:
        self.place.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size},mode=0700", "none", str(self.place)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            unavailable("a small disk cannot be mounted here")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.place)], check=False)

    def fill(self) -> None:
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for size in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while True:
                        os.write(fd, b"x" * size)
        finally:
            os.close(fd)

    def heal(self) -> None:
        self._filler.unlink(missing_ok=True)


class World:
    """All of them. A context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {name: free_port() for name in PORTS}
        doors = {"queue": "front_queue", "proxy": "front_proxy", "raw": "raw"}
        self.doors = {way: [("127.0.0.1", self.ports[name])] for way, name in doors.items()}
        self._stack = ExitStack()

    def __enter__(self) -> World:
        with ExitStack() as stack:
            self.disk = stack.enter_context(Disk(self.directory / "state"))
            self.destination = stack.enter_context(Destination())
            sink = self.destination.port
            front, behind = (text.format(ports=self.ports) for text in (FRONT, BEHIND))
            self.front = Postfix(front, sink, HURRIED)
            self.behind = Behind(behind, sink, HURRIED + "myhostname = behind.example\n")
            self.scanner = Scanner(self.directory, self.ports["scanner"])
            self.bridge = Bridge(self.directory, self.ports)
            for postfix in (self.front, self.behind):
                stack.callback(_end, postfix)
            stack.callback(self.scanner.kill)
            stack.callback(self._end_bridge)
            with ThreadPoolExecutor() as pool:  # in parallel: mostly waiting
                list(pool.map(lambda start: start(), (self.front.start, self.behind.start, self.scanner.start)))
            self._stack = stack.pop_all()
        return self

    def _end_bridge(self) -> None:
        if self.bridge.is_alive():
            self.bridge.kill_all()

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _end(postfix: Postfix) -> None:
    with suppress(AssertionError):  # not running: the run has failed, which is reported elsewhere
        postfix.stop()
    postfix.remove()


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
