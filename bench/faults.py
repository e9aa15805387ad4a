"""Measures a bridge with three scanner processes, one of which fails while mail flows.

    python bench/faults.py

Prints a table that shows, for each fault, the share of refused mails and the time from the final dot to the reply
(before, during and after the fault), and the time until the host got mail again. For the result of a
run, see docs/evidence/trials.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme

from bridge.testing import answer, free_port, result, running_bridge

RATE, CLIENTS = 160, 16  # mails per second, number of connections
BEFORE_S, DURING_S, AFTER_S = 3.0, 5.0, 5.0
LATENCY_S = 0.01
INTERVAL_S = 1.0
GOOD: dict[str, Any] = {"latency": LATENCY_S, "status": "GREEN", "code": 200}


# The scanner: a process whose control file determines its behaviour


async def scanner(port: int, control: Path, certificate: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    seen = control.with_suffix(".seen").open("ab", buffering=0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0
                )
                await reader.readexactly(length)
                mode = json.loads(control.read_text())  # noqa: ASYNC240 - about 100 bytes
                if b"/admin/status" in head:
                    writer.write(answer(200, json.dumps({"messageQueueStatus": mode["status"]}).encode()))
                    continue
                seen.write(b"%f\n" % time.monotonic())
                await asyncio.sleep(mode["latency"])
                extra = ["Retry-After: 1"] if mode["code"] == 503 else []
                writer.write(answer(mode["code"], result() if mode["code"] == 200 else b"", *extra))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    await server.serve_forever()


class Host:
    """One scanner process."""

    def __init__(self, directory: Path, name: str, certificate: Path) -> None:
        self.port, self.certificate = free_port(), certificate
        self.control = directory / f"{name}.json"
        self.say()
        self.start(certificate)

    def start(self, certificate: Path | None = None) -> None:
        arguments = [str(self.port), str(self.control), str(certificate or self.certificate)]
        self.process = subprocess.Popen([sys.executable, __file__, "--scanner", *arguments])  # noqa: S603

    def say(self, **mode: Any) -> None:
        """Write a new file and rename it, so that the process never reads half of it."""
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(GOOD | mode))
        new.replace(self.control)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def back_after(self, moment: float) -> float:
        """Seconds from `moment` until the next mail reached this host."""
        times = [float(line) for line in self.control.with_suffix(".seen").read_text().split()]
        return min((seen - moment for seen in times if seen > moment), default=float("inf"))


# The load


class Load:
    """Mails at a steady rate, and their results."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.mails: list[tuple[float, float, str]] = []  # time sent, seconds until the reply, its code

    async def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._client(number, end) for number in range(CLIENTS)))

    async def _client(self, number: int, end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await reader.readline()
        writer.write(b"HELO client.example\r\n")
        await reader.readline()
        next_at = time.monotonic() + number / RATE
        while next_at < end:
            await asyncio.sleep(max(next_at - time.monotonic(), 0))
            next_at = max(next_at + CLIENTS / RATE, time.monotonic())
            began = time.monotonic()
            code = await self._mail(reader, writer)
            self.mails.append((began, time.monotonic() - began, code))
        writer.close()

    async def _mail(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        content = b"Subject: %d\r\n\r\nx\r\n." % time.monotonic_ns()  # every mail is different
        for line in (b"MAIL FROM:<a@example.org>", b"RCPT TO:<b@example.org>", b"DATA", content):
            writer.write(line + b"\r\n")
            reply = await reader.readline()
            if reply[:1] not in b"23":
                writer.write(b"RSET\r\n")
                await reader.readline()
                break
        return reply[:3].decode()

    def between(self, begin: float, end: float) -> str:
        """The share of refused mails in percent, p50 and p99 in milliseconds."""
        found = [(seconds, code) for moment, seconds, code in self.mails if begin <= moment < end]
        times = sorted(seconds * 1000 for seconds, _ in found)
        refused = sum(code != "250" for _, code in found) / len(found) * 100
        return f"{refused:.1f}% | {times[len(times) // 2]:.0f} / {times[int(len(times) * 0.99)]:.0f}"


def run(name: str, break_it: Callable[[Host, Path], None], mend: Callable[[Host], None], **scanner_keys: Any) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        ca, wrong = trustme.CA(), trustme.CA()
        ca.cert_pem.write_to_path(directory / "ca.pem")
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "cert.pem")
        wrong.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(directory / "wrong.pem")
        hosts = [Host(directory, f"host{number}", directory / "cert.pem") for number in range(3)]
        try:
            return _run(name, directory, hosts, break_it, mend, scanner_keys)
        finally:
            for host in hosts:
                host.process.send_signal(signal.SIGCONT)
                host.kill()


def _run(
    name: str,
    directory: Path,
    hosts: list[Host],
    break_it: Callable[[Host, Path], None],
    mend: Callable[[Host], None],
    scanner_keys: dict[str, Any],
) -> str:
    urls = [f"https://127.0.0.1:{host.port}" for host in hosts]
    keys = {"urls": urls, "ca_file": str(directory / "ca.pem"), "status_interval": f"{INTERVAL_S:.0f}s", **scanner_keys}
    admission = {"max_in_processing": 60, "throttle_threshold": 60}
    with running_bridge(directory, {"scanner": keys, "admission": admission}, deadline="3s") as bridge:
        while any(host.status is None for host in bridge.daemon.scanner.hosts):
            time.sleep(0.05)
        load, moments = Load(bridge.port), {}

        async def run_phases() -> None:
            mails = asyncio.create_task(load.run(BEFORE_S + DURING_S + AFTER_S))
            moments["begin"] = time.monotonic()
            await asyncio.sleep(BEFORE_S)
            break_it(hosts[0], directory)
            moments["broken"] = time.monotonic()
            await asyncio.sleep(DURING_S)
            mend(hosts[0])
            moments["mended"] = time.monotonic()
            await mails

        asyncio.run(run_phases())
    phases = [("begin", "broken"), ("broken", "mended"), ("mended", "")]
    cells = [load.between(moments[a], moments.get(b, float("inf"))) for a, b in phases]
    return f"| {name} | {' | '.join(cells)} | {hosts[0].back_after(moments['mended']):.1f} s |"


def restart_wrong(host: Host, directory: Path) -> None:
    host.kill()
    host.start(directory / "wrong.pem")


def restart_right(host: Host) -> None:
    host.kill()
    host.start()


RUNS: dict[str, tuple[Callable[[Host, Path], None], Callable[[Host], None]]] = {
    "kill -9": (lambda host, _: host.kill(), Host.start),
    "frozen (SIGSTOP)": (
        lambda host, _: host.process.send_signal(signal.SIGSTOP),
        lambda host: host.process.send_signal(signal.SIGCONT),
    ),
    "100 times the latency": (lambda host, _: host.say(latency=LATENCY_S * 100), Host.say),
    "RED": (lambda host, _: host.say(status="RED"), Host.say),
    "500": (lambda host, _: host.say(code=500), Host.say),
    "503 with Retry-After": (lambda host, _: host.say(code=503), Host.say),
    "wrong certificate": (restart_wrong, restart_right),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scanner", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scanner:
        port, control, certificate = arguments.scanner
        asyncio.run(scanner(int(port), Path(control), Path(certificate)))
        return
    print("| one of three hosts | before | | during | | after | | mail again after |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (break_it, mend) in RUNS.items():
        print(run(name, break_it, mend), flush=True)
    for name in ("500", "kill -9"):
        print(run(f"{name}, `resubmit: true`", *RUNS[name], resubmit=True), flush=True)


if __name__ == "__main__":
    main()
