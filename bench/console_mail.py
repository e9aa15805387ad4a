"""What mail notices of the console: while it idles, is killed, is stopped, and is attacked.

A daemon with a scanner and a next hop gets 4 KiB mails at a fixed rate, whatever it answers (`openload`), and relays
them. The daemon, the load, the console and its attackers share the cores of this machine; in production, attackers
have their own. So a row has the same CPU time taken by a program that has nothing to do with us, for comparison, and
rows are measured in turn, several times, because the machine has other work. The lowest median of the rounds counts.
"""

# ruff: noqa: S603 - it starts its own programs
from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import cpu_s, free_ports, process, wait_port
from peers import BUILD, build_tools

from bench import console_data
from bridge.console.database import FILE, ConsoleStore
from bridge.console.guard import FORM_COOKIE, SESSION_COOKIE
from bridge.console.roles import Person, Role
from bridge.console.sessions import SessionLimits, Sessions
from bridge.console.tokens import form_token
from bridge.console.users import Users
from bridge.runtime.database import Database
from bridge.testing import until

RATE, SECONDS, ROUNDS = 150, 6.0, 3
LATER = 5  # the console sets itself this nice value; attackers get it, too, because in reality they use other machines
MAILS, HELD = 40_000, 5_000
CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:{scanner}"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:{smtp}"}}]
limits: {{max_connections: 20000, max_connections_per_client: 20000}}
relay: {{next_hop: "smtp://127.0.0.1:{sink}"}}
admin: {{address: "127.0.0.1:{admin}"}}
console: {{address: "127.0.0.1:{console}"}}
state_directory: {place}/state
"""


@dataclass
class World:
    place: Path
    ports: dict[str, int]
    daemon: int  # process id
    token: str = ""
    console: subprocess.Popen[bytes] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    requests: int = 0  # that were answered

    def start(self) -> None:
        command = [sys.executable, "-m", "bridge", "console", "-c", str(self.place / "bridge.yml")]
        log = self.place / "console.log"
        log.write_bytes(b"")
        with log.open("ab") as out:
            self.console = subprocess.Popen(command, stdout=out, stderr=out, env=console_data.environment())
        until(lambda: "console at" in log.read_text(), "the console")

    def end(self) -> None:
        if self.console is not None:
            self.console.kill()
            self.console.wait(20)
            self.console = None

    def ask(
        self, method: str, path: str, body: bytes = b"", cookie: str = "", kind: str = "", wait_s: float = 30
    ) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["console"], timeout=wait_s)
        headers = {"Origin": f"http://127.0.0.1:{self.ports['console']}", "Sec-Fetch-Site": "same-origin"}
        headers["Content-Type"] = kind or "application/x-www-form-urlencoded"
        headers |= {"Cookie": cookie} if cookie else {}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            self.requests += 1
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()


@dataclass(frozen=True)
class Row:
    name: str
    load: dict[str, Any]
    cpu_ms: float  # of the daemon, for each mail
    console_share: float  # of a core
    requests: int

    @property
    def p50(self) -> float:
        return float(self.load["accepted"]["p50"])

    @property
    def p99(self) -> float:
        return float(self.load["accepted"]["p99"])

    @property
    def deferred(self) -> int:
        """Told to come back: there was no room in time."""
        return sum(int(stage["n"]) for stage in self.load["refused"].values())

    @property
    def lost(self) -> int:
        """Without an answer."""
        return sum(self.load["errors"].values())


# Attacks: each runs in threads of this process until `world.stop`


def sign_ins(world: World) -> None:
    """Wrong passwords, for ever new names, from ever new forms."""
    number = 0
    while not world.stop.is_set():
        number += 1
        secret = f"{os.getpid()}{threading.get_ident()}{number}"
        form = f"name=user{number}&password=wrong{number}&form_token={form_token(secret)}".encode()
        world.ask("POST", "/sign-in", form, f"{FORM_COOKIE}={secret}")


def slow_requests(world: World) -> None:
    """Connections that send a byte now and then, as many as are accepted."""
    held: list[socket.socket] = []
    while not world.stop.wait(0.01):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", world.ports["console"]), 2))
            held[-1].sendall(b"POST /sign-in HTTP/1.1\r\nHost: ")
        for one in held[-20:]:
            with suppress(OSError):
                one.sendall(b"x")
    for one in held:
        one.close()


def huge_forms(world: World) -> None:
    """A signed-in user sends forms of 64 MiB to every page that takes one."""
    block, cookie = b"a" * (64 << 20), f"{SESSION_COOKIE}={world.token}"
    kind = "multipart/form-data; boundary=x"
    while not world.stop.is_set():
        for path in ("/scan", "/lists/actions/upload", "/quarantine/actions/release", "/sign-in"):
            head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            world.ask("POST", path, head + block, cookie, kind)


def streams(world: World) -> None:
    """Event streams that are begun and never read."""
    held: list[socket.socket] = []
    while not world.stop.wait(0.005):
        with suppress(OSError):
            held.append(stream(world))
        while len(held) > 400:
            held.pop(0).close()
    for one in held:
        one.close()


def stream(world: World) -> socket.socket:
    """The connection of a browser that watches the overview."""
    head = f"Host: 127.0.0.1:{world.ports['console']}\r\nCookie: {SESSION_COOKIE}={world.token}"
    made = socket.create_connection(("127.0.0.1", world.ports["console"]), 2)
    made.sendall(f"GET /live HTTP/1.1\r\n{head}\r\n\r\n".encode())
    return made


def searches(world: World) -> None:
    """Pages that take the most, one after the other."""
    cookie = f"{SESSION_COOKIE}={world.token}"
    paths = (
        *("/mail?client=0.0.0.0/0", "/mail?what=nothing.like.it", "/mail?subject=never", "/quarantine?subject=never"),
        *("/statistics?period=month", "/statistics/export?by=recipient&as=csv&period=month", "/audit", "/"),
    )
    while not world.stop.is_set():
        for path in paths:
            world.ask("GET", path, cookie=cookie)


def nothing(world: World) -> None: ...


def watched(world: World) -> None:
    """One browser with the overview, one that looks through mail every second."""
    with stream(world):
        while not world.stop.wait(1.0):
            world.ask("GET", "/mail", cookie=f"{SESSION_COOKIE}={world.token}")


def busy_program(world: World) -> None:
    """As many busy processes as the console has been under attack: two threads that compute, with its priority."""
    command = [sys.executable, "-c", "import time\nend = time.time() + 60\nwhile time.time() < end: pass"]
    busy = [subprocess.Popen(["nice", "-n", str(LATER), *command]) for _ in range(2)]  # noqa: S607
    world.stop.wait()
    for one in busy:
        one.kill()
        one.wait()


def kill(world: World) -> None:
    """In the middle of the measurement, while pages are requested."""
    threads = [threading.Thread(target=searches, args=(world,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    world.stop.wait(SECONDS / 3)
    world.end()
    for thread in threads:
        thread.join()


def stop(world: World) -> None:
    """SIGSTOP in the middle, while pages are requested."""
    assert world.console is not None
    asking = threading.Thread(target=searches, args=(world,), daemon=True)
    asking.start()
    world.stop.wait(SECONDS / 4)
    world.console.send_signal(signal.SIGSTOP)
    world.stop.wait()
    world.console.send_signal(signal.SIGCONT)
    asking.join(60)


def behind(attack: Callable[[World], None], world: World) -> None:
    """With a lower priority than mail has."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + LATER)
    attack(world)


SCENES: dict[str, tuple[bool, Callable[[World], None], int]] = {
    "no console": (False, nothing, 1),
    "console without visitors": (True, nothing, 1),
    "two people look at pages": (True, watched, 1),
    "killed (SIGKILL) while pages are requested": (True, kill, 1),
    "stopped (SIGSTOP) while pages are requested": (True, stop, 1),
    "wrong passwords, 16 clients": (True, sign_ins, 16),
    "slow requests, hundreds of connections": (True, slow_requests, 4),
    "forms of 64 MiB, 4 clients": (True, huge_forms, 4),
    "event streams, hundreds of connections": (True, streams, 4),
    "the most expensive searches, 8 clients": (True, searches, 8),
    "no console, two other busy programs": (False, busy_program, 1),
}


def measure_all() -> dict[str, list[Row]]:
    build_tools()
    found: dict[str, list[Row]] = {name: [] for name in SCENES}
    with world() as made:
        for number in range(ROUNDS):
            for name in SCENES:
                found[name].append(measure(made, name))
                row = found[name][-1]
                print(f"{number} {name}: p50 {row.p50} p99 {row.p99} lost {row.lost}, {row.requests} requests, "
                      f"console {row.console_share:.2f}", file=sys.stderr, flush=True)  # fmt: skip
    return found


def measure(world: World, name: str) -> Row:
    has_console, attack, clients = SCENES[name]
    world.stop.clear()
    world.requests = 0
    if has_console:
        world.start()
    pid = world.console.pid if world.console is not None else 0
    command = [str(BUILD / "openload"), str(world.ports["smtp"]), str(RATE), str(SECONDS), "kept"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        assert load.stdout.readline() == "measuring\n"
        threads = [threading.Thread(target=behind, args=(attack, world)) for _ in range(clients)]
        before, console_before = cpu_s(world.daemon), cpu_s(pid) if pid else 0.0
        for thread in threads:
            thread.start()
        time.sleep(SECONDS)
        used = cpu_s(world.daemon) - before
        share = (cpu_s(pid) - console_before) / SECONDS if pid else 0.0
        result = json.loads(load.stdout.readline())
    world.stop.set()
    for thread in threads:
        thread.join(90)
    world.end()
    return Row(name, result, used / max(result["offered"], 1) * 1000, max(share, 0.0), world.requests)


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="scanbridge-bench-") as name, ExitStack() as stack:
        place = Path(name)
        names = ("smtp", "scanner", "sink", "admin", "console")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        state = place / "state"
        console_data.fill_history(state / "history", MAILS)
        console_data.fill_quarantine(state, HELD)
        (place / "token").write_text(64 * "0")
        (place / "token").chmod(0o600)
        (place / "bridge.yml").write_text(CONFIG.format(place=place, **ports))
        for program, port in (([str(BUILD / "scanner"), str(ports["scanner"]), "5"], ports["scanner"]),
                              ([str(BUILD / "sink"), str(ports["sink"])], ports["sink"])):  # fmt: skip
            wait_port(port, stack.enter_context(process(program, -1, {}, place / "log")), place / "log")
        command = [sys.executable, "-m", "bridge", "run", "-c", str(place / "bridge.yml")]
        daemon = stack.enter_context(process(command, -1, console_data.environment(), place / "log"))
        wait_port(ports["smtp"], daemon, place / "log")
        store = ConsoleStore(Database.file(state / FILE))
        Users(store).add("ann", "correct horse battery", Role.ADMIN, None)
        token = Sessions(store, SessionLimits(3600, 43200)).begin(Person("ann", Role.ADMIN), "127.0.0.1", "bench")
        store.close()
        yield World(place, ports, daemon.pid, token)


def report() -> str:
    found = measure_all()
    lines = []
    for name, rows in found.items():
        best = min(rows, key=lambda row: row.p50)
        lost, deferred = sum(row.lost for row in rows), sum(row.deferred for row in rows)
        p99 = sorted(row.p99 for row in rows)[len(rows) // 2]
        times = f"{best.p50:.1f} | {p99:.1f} | {best.cpu_ms:.2f}"
        lines.append(f"| {name} | {times} | {deferred} | {lost} | {best.console_share:.2f} | {best.requests:,} |")
    total = int(RATE * SECONDS * ROUNDS)
    return MAIL.format(rate=RATE, seconds=SECONDS, rounds=ROUNDS, total=total, table="\n".join(lines))


MAIL = """\
## The mail

A daemon relays {rate} mails of 4 KiB per second, open loop, for {seconds:.0f} seconds in each of {rounds} rounds.
Meanwhile the console on the same machine does what the first column says.
The scanner answers after 5 ms.
Daemon, load generator, scanner, next hop, console and attackers share the same two cores.
The last row has no console at all, but two programs that only compute: it shows the effect of competition for the
processor alone.

*p50* and *p99* are the times in milliseconds from the arrival of a mail to the reply `250`: the best median of the
rounds, and the median of their 99th percentiles.
*CPU* is what the daemon needs for one mail, in milliseconds.
*Deferred* are mails that got a `451` because there was no room for them in time, and *lost* those without an answer,
out of {total:,}.
*Console* is the share of a core that the console used.
*Answered* are the attackers' requests that the console answered in the best round.

| console | p50 | p99 | CPU | deferred | lost | console | answered |
|---|---|---|---|---|---|---|---|
{table}
"""
