"""How quickly the console's pages answer with a full history, and what they weigh: `make bench-console`.

    python bench/console.py [--rows 1000000] [--out docs/evidence/console.md]

Fills a history, starts a console, and asks for each page as somebody who has signed in does. Server time is the time
from the request to the last byte on loopback, with one request at a time.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.history import BATCH, DAYS, mail
from bridge.console.database import FILE, ConsoleStore
from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Person, Role
from bridge.console.sessions import SessionLimits, Sessions
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.runtime.database import Database
from bridge.testing import free_port, until

ROOT = Path(__file__).parents[1]
REQUESTS = 100
LIMIT_MS, LIMIT_BYTES = 150, 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--place", type=Path, help="a directory whose history was filled before, or is to be kept")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scanbridge-bench-") as directory:
        place = wanted.place or Path(directory)
        history = SqliteHistory(place / "state" / "history")
        if history.oldest() is None:
            fill(history, wanted.rows)
            history.maintain(0.0, None)
        pages = paths(history)
        history.close()
        lines = measure(place, pages)
    text = REPORT.format(rows=wanted.rows, requests=REQUESTS, table="\n".join(lines))
    print(text)
    if wanted.out:
        wanted.out.write_text(text)


def fill(history: SqliteHistory, rows: int) -> None:
    """Mails of 30 days, with ids as ours are: they begin with the time."""
    now, step = time.time(), DAYS * 86400 / rows
    for first in range(0, rows, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, rows)):
            at = now - (rows - number) * step
            kind, row = mail(number, at)
            batch.append((kind, row._replace(id=f"{int(at * 1000):011X}{number:08X}")))
        history.append(batch)


def paths(history: SqliteHistory) -> dict[str, str]:
    """What is asked for, by name."""
    newest = history.find(HistoryQuery(limit=60))
    middle = history.find(HistoryQuery(limit=1, until=time.time() - 15 * 86400))[0]
    return {
        "overview": "/",
        "mail, newest": "/mail",
        "mail, second page": f"/mail?before={newest[49].cursor}",
        "mail, a page in the middle": f"/mail?before={middle.cursor}",
        "mail by queue id": f"/mail?what={middle.row.queue_id}",
        "mail by recipient": f"/mail?recipient={middle.row.recipients}",
        "mail by sender's domain": f"/mail?sender={middle.row.sender.partition('@')[2]}",
        "mail by words of the subject": f"/mail?subject={middle.row.subject.split()[0]}",
        "mail by action, last week": "/mail?action=reject&since=7d",
        "mail by tag": "/mail?tag=malware:*",
        "mail by client network": f"/mail?client={middle.row.client.rpartition('.')[0]}.0/24",
        "one mail's story": f"/mail/{middle.row.id}",
        "sessions": "/sessions",
        "audit": "/audit",
        "settings": "/settings",
    }


def measure(place: Path, pages: dict[str, str]) -> list[str]:
    port = free_port()
    (place / "token").write_text(64 * "0")
    (place / "bridge.yml").write_text(CONFIG.format(port=port, other=free_port(), admin=free_port(), place=place))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "bridge", "console", "-c", str(place / "bridge.yml")]
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)  # noqa: S603
    try:
        until(lambda: "console at" in (place / "log").read_text(), "the console")
        store = ConsoleStore(Database.file(place / "state" / FILE))
        token = Sessions(store, SessionLimits(3600, 43200)).begin(Person("ann", Role.ADMIN), "127.0.0.1", "bench")
        store.close()
        lines = []
        for name, path in pages.items():
            before = cpu_s(process.pid)
            times, body = asked(port, token, path)
            lines.append(line(name, times, (cpu_s(process.pid) - before) / REQUESTS, body))
        return lines
    finally:
        process.terminate()
        process.wait(20)


def asked(port: int, token: str, path: str) -> tuple[list[float], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times, body = [], b""
    for _ in range(REQUESTS):
        began = time.perf_counter()
        connection.request("GET", path, headers={"Cookie": f"{SESSION_COOKIE}={token}"})
        answer = connection.getresponse()
        body = answer.read()
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200, (path, answer.status)
    connection.close()
    return sorted(times), body


def cpu_s(pid: int) -> float:
    """What the process has used since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def line(name: str, times: list[float], cpu: float, body: bytes) -> str:
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    mark = "" if p95 <= LIMIT_MS and len(body) <= LIMIT_BYTES else " (over the limit)"
    size, packed = len(body) / 1000, len(gzip.compress(body)) / 1000
    return f"| {name} | {p50:.0f} ms | {p95:.0f} ms{mark} | {cpu * 1000:.0f} ms | {size:.0f} kB | {packed:.0f} kB |"


CONFIG = """\
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:{other}"}}]
relay: {{next_hop: "smtp://127.0.0.1:3"}}
admin: {{address: "127.0.0.1:{admin}"}}
console: {{address: "127.0.0.1:{port}"}}
state_directory: {place}/state
"""

REPORT = """\
# How quickly the console answers

With {rows:,} mails of 30 days in the history (SQLite), each page was asked for {requests} times, one after the other.
Made with `make bench-console`.
A page must answer within 150 ms (95 of 100 requests) and weigh less than 200 kB.
The daemon was not running, so that its answer is not part of the time.
The CPU time is that of the console's process, for one request; it does not depend on what else the machine does.

| page | median | 95 of 100 | CPU | size | compressed |
|---|---|---|---|---|---|
{table}
"""

if __name__ == "__main__":
    main()
