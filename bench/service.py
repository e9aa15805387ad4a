"""Measures the performance of the scanning service: `make bench-service`.

Measures scans per second without external engines, the cost of a lookup in a list with a million entries,
and the memory that 20 concurrent uploads of 50 MiB need. Everything runs on loopback against a service in a
separate process. Exits with 1 if the promised memory limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOKEN = "0123456789abcdef" * 4
BOUNDARY = "bench-boundary"
MIB = 1024 * 1024
MEMORY_PROMISE = 1.3  # RSS growth over the bytes in flight

CONFIG = f"""
listen: 127.0.0.1:0
guard: {{scanSources: {{restApi: {{}}}}, mainWorkerCount: 64}}
abby: {{serviceProviders: {{core: {{hosts: []}}}}, staticApiTokens: [{{name: bench, token: {TOKEN}}}]}}
log_scans: false
"""


class Service:
    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "bridge", "service", "-c", str(directory / "service.yml")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 (our own program)
        line = self.process.stdout.readline()
        if "listening on" not in line:
            sys.exit(f"the service did not start: {line}")
        self.port = int(line.rsplit(":", 1)[1])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_bytes(self) -> int:
        """The memory of the service and its inspection processes; shared memory counts for each."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sum(_rss(pid) for pid in (str(self.process.pid), *children))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def _rss(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def request(mail: bytes) -> bytes:
    parameters = json.dumps(
        {"borderMtaData": {"envelopeFrom": "a@example.org", "envelopeRecipients": ["b@example.net"],
                           "remoteAddress": "192.0.2.1", "senderHelo": "mx.example.org"}}
    ).encode()  # fmt: skip
    body = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="parameters"\r\n'
        "Content-Type: application/json\r\n\r\n".encode() + parameters
        + f'\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name="email"; filename="m.eml"\r\n'
        "Content-Type: message/rfc822\r\n\r\n".encode() + mail + f"\r\n--{BOUNDARY}--\r\n".encode()
    )  # fmt: skip
    head = (
        f"POST /v1/messageQueue/submitEmail HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def small_mail() -> bytes:
    head = "From: a@example.org\r\nTo: b@example.net\r\nSubject: bench\r\nMessage-ID: <1@example.org>\r\n"
    head += "Date: Sun, 15 Nov 2026 03:00:00 +0000\r\n\r\n"
    return (head + "An ordinary line of text, as people write them to each other every day.\r\n" * 54).encode()


def exchange(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    answer = b""
    while b'"tags"' not in answer and b'"error"' not in answer:
        piece = client.recv(65536)
        if not piece:
            break
        answer += piece
    return answer


def load(port: int, seconds: float, latencies: list[float]) -> None:
    data = request(small_mail())
    end = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as client:
        while (start := time.monotonic()) < end:
            answer = exchange(client, data)
            if b'"deliver"' not in answer:
                sys.exit(f"unexpected answer: {answer[:200]!r}")
            latencies.append(time.monotonic() - start)


def bench_scans(service: Service, seconds: float, clients: int) -> None:
    before, latencies = service.cpu_s(), []
    threads = [threading.Thread(target=load, args=(service.port, seconds, latencies)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies.sort()
    count = len(latencies)
    cpu_ms = (service.cpu_s() - before) / count * 1000
    print(
        f"scans of 4 KiB, {clients} connections: {count / seconds:,.0f} per second, {cpu_ms:.2f} ms CPU each,", end=" "
    )
    print(f"p50 {latencies[count // 2] * 1000:.2f} ms, p99 {latencies[count * 99 // 100] * 1000:.2f} ms")


def bench_lists(entries: int) -> None:
    from bridge.service.lists.index import ListIndex, traits_of
    from bridge.service.lists.store import GLOBAL, PREDEFINED

    before, index = _rss(str(os.getpid())), ListIndex(PREDEFINED, frozenset())
    start = time.monotonic()
    for i in range(entries // 2):
        index.add(GLOBAL, "blocked-senders", f"user{i}@domain{i % 50_000}.example")
        index.add(GLOBAL, "blocked-domains", f"domain{i}.example")
    loaded = time.monotonic() - start
    pick, rounds = random.Random(1), 20_000  # noqa: S311 (not used for secrets)
    mails = [
        traits_of(f"user{pick.randrange(10**7)}@host{pick.randrange(10**7)}.example", (), "192.0.2.1", (), ())
        for _ in range(rounds)
    ]
    start = time.monotonic()
    hits = sum(bool(index.match(None, traits)) for traits in mails)
    each = (time.monotonic() - start) / rounds
    grown = (_rss(str(os.getpid())) - before) / MIB
    print(f"lists with {entries:,} entries: {each * 1e6:.1f} us per mail ({hits} hits in {rounds}),", end=" ")
    print(f"{grown:.0f} MiB, filled in {loaded:.1f} s")


def fill(directory: Path, entries: int) -> str:
    """Create a database with one long list and return an API key."""
    from sqlalchemy import insert

    from bridge.service.keys import KeyRing
    from bridge.service.store import Store, list_entry

    store = Store(f"sqlite:///{directory / 'service.sqlite'}")
    store.open()
    with store.writing() as connection:
        for start in range(0, entries, 50_000):
            numbers = range(start, min(start + 50_000, entries))
            rows = [
                {
                    "scope": "",
                    "name": "blocked-senders",
                    "entry": f"user{i:07}@example.org",
                    "comment": "bench",
                    "seq": 0,
                }
                for i in numbers
            ]
            connection.execute(insert(list_entry), rows)
    key = KeyRing(store).create("bench")
    store.close()
    return key


def bench_stream(service: Service, key: str, entries: int) -> None:
    """listEntries of a long list, with concurrent scans."""
    body = b'{"listName":"blocked-senders"}'
    head = (
        "POST /api/public/lists/v1/listEntries HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nAuthorization: apikey {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    latencies: list[float] = []
    scans = threading.Thread(target=load, args=(service.port, 3.0, latencies))
    base, peak, lines = service.rss_bytes(), 0, 0
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", service.port)) as client:
        client.sendall(head.encode() + body)
        scans.start()
        while piece := client.recv(1 << 20):
            lines += piece.count(b'"entry"')
            peak = max(peak, service.rss_bytes())
    seconds = time.monotonic() - start
    scans.join()
    latencies.sort()
    print(f"listEntries of {entries:,}: {seconds:.1f} s, about {lines:,} lines, RSS grows by", end=" ")
    p99_ms = latencies[len(latencies) * 99 // 100] * 1000
    print(f"{(peak - base) / MIB:.0f} MiB, concurrent scans p99 {p99_ms:.1f} ms")


def bench_memory(service: Service, uploads: int) -> bool:
    mail = small_mail()
    data = request(mail + b"x" * (50 * MIB - len(mail)))
    base, peak, done = service.rss_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, service.rss_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    clients = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(uploads)]
    for client in clients:  # first all but the last byte of each, so that all uploads are in flight together
        client.sendall(data[:-1])
    for client in clients:
        client.sendall(data[-1:])
    for client in clients:
        client.settimeout(300)
        exchange(client, b"")
        client.close()
    seconds = time.monotonic() - start
    done.set()
    watcher.join()
    flight = uploads * 50 * MIB
    ratio = (peak - base) / flight
    print(f"{uploads} concurrent uploads of 50 MiB: RSS grows by {(peak - base) / MIB:.0f} MiB,", end=" ")
    print(f"{ratio:.2f} times the bytes in flight (promised: {MEMORY_PROMISE}), {seconds:.1f} s")
    return ratio <= MEMORY_PROMISE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement (default: 5)")
    parser.add_argument("--clients", type=int, default=4, help="number of connections (default: 4)")
    parser.add_argument(
        "--entries", type=int, default=1_000_000, help="number of entries in the list (default: 1000000)"
    )
    parser.add_argument("--uploads", type=int, default=20, help="number of concurrent uploads (default: 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "service.yml").write_text(CONFIG)
        key = fill(Path(directory), options.entries)
        start = time.monotonic()
        service = Service(Path(directory))
        print(f"start with {options.entries:,} entries in the database: {time.monotonic() - start:.1f} s")
        try:
            bench_stream(service, key, options.entries)
            bench_scans(service, options.seconds, options.clients)
            kept = bench_memory(service, options.uploads)
        finally:
            service.stop()
    bench_lists(options.entries)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
