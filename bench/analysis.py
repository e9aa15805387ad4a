"""Measures what the analysis of real mail costs: `make bench-analysis CORPUS=...` (layout: `tools/mail_corpus.py`).

The service and rspamd (`/checkv2`) scan the same random sample of mails in the same run, one mail at a time, in several
rounds. The CPU time includes all processes of each program, and HTTP. For each mail, the median of the rounds counts,
because other work on the machine disturbs single rounds. rspamd runs without network tests.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.service import CONFIG, TOKEN, Service
from bridge.testing import until
from tests.service.service_kit import BOUNDARY, multipart, parameters_json
from tools.evaluation_engines import Rspamd, rspamd_command, version_of
from tools.mail_corpus import CorpusMail, mails
from tools.marked_parts import with_part

WARM_UP = 30  # mails: the service starts its processes, and rspamd compiles its rules
FULL_READING = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nno end\r\n"  # needs a process


class Scanner(NamedTuple):
    name: str
    process: int
    scan: Callable[[bytes], None]


class Row(NamedTuple):
    is_phishing: bool
    cpu_ms: tuple[float, ...]  # of each scanner


def cpu_ns(process: int) -> int:
    """Of the process and its children, in nanoseconds: ticks of 10 ms are longer than most scans."""
    found = 0
    for task in Path(f"/proc/{process}/task").iterdir():
        found += int((task / "schedstat").read_text().split()[0])
        found += sum(cpu_ns(int(child)) for child in (task / "children").read_text().split())
    return found


@contextmanager
def our_service() -> Iterator[Scanner]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "service.yml").write_text(CONFIG)
        service = Service(Path(directory))
        link = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}

        def scan(mail: bytes) -> None:
            body = multipart(parameters_json(), mail)
            link.request("POST", "/v1/messageQueue/submitEmail", body, headers)
            _read(link)

        try:
            yield Scanner("scanbridge", service.process.pid, scan)
        finally:
            link.close()
            service.stop()


@contextmanager
def rspamd() -> Iterator[Scanner]:
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        command = rspamd_command(shutil.which("rspamd") or "", Path(directory), port)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

        def scan(mail: bytes) -> None:
            link.request("POST", "/checkv2", mail, {"From": "a@example.org", "Rcpt": "b@example.net"})
            _read(link)

        try:
            until(lambda: _is_open(port), "the port of rspamd")
            yield Scanner(version_of(Rspamd), process.pid, scan)
        finally:
            link.close()
            process.terminate()
            process.wait(30)


def _read(link: http.client.HTTPConnection) -> None:
    answer = link.getresponse()
    answer.read()
    if answer.status != 200:
        sys.exit(f"unexpected answer: {answer.status}")


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def sample(corpus: Path, size: int) -> list[CorpusMail]:
    """Random, but the same each time."""
    every = [mail for kind in ("ham", "phishing") for mail in mails(corpus, kind)]
    return sorted(every, key=lambda mail: hashlib.sha256(str(mail.path.relative_to(corpus)).encode()).digest())[:size]


def content_of(mail: CorpusMail) -> bytes:
    content = mail.content()
    return content if b"\r" in content else content.replace(b"\n", b"\r\n")


def measure(chosen: list[CorpusMail], scanners: list[Scanner], rounds: int) -> list[Row]:
    for scanner in scanners:
        for content in (FULL_READING, *map(content_of, chosen[:WARM_UP])):
            scanner.scan(content)
    found = []
    for mail in chosen:
        content = content_of(mail)
        taken = [[_cpu_ms(scanner, content) for scanner in scanners] for _ in range(rounds)]
        found.append(Row(mail.is_phishing, tuple(map(statistics.median, zip(*taken, strict=True)))))
    return found


def _cpu_ms(scanner: Scanner, content: bytes) -> float:
    before = cpu_ns(scanner.process)
    scanner.scan(content)
    return (cpu_ns(scanner.process) - before) / 1e6


def report(rows: list[Row], names: list[str], rounds: int) -> str:
    lines = [
        f"{len(rows)} mails, {sum(row.is_phishing for row in rows)} of them phishing; rounds: {rounds}, "
        "of which the median counts for each mail; "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[1]:.1f}.",
        "",
        "| CPU time, ms | mean | median | p99 | highest | mean, phishing | mean, legitimate |",
        "|---|---|---|---|---|---|---|",
    ]
    means = []
    for number, name in enumerate(names):
        times = sorted(row.cpu_ms[number] for row in rows)
        means.append(statistics.mean(times))
        groups = [[row.cpu_ms[number] for row in rows if row.is_phishing is kind] for kind in (True, False)]
        cells = [means[-1], statistics.median(times), times[len(times) * 99 // 100], times[-1]]
        cells += [statistics.mean(group) if group else 0.0 for group in groups]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    if len(means) > 1:
        lines += ["", f"Mean, {names[0]} : {names[1]} = {means[0] / means[1]:.2f}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--sample", type=int, default=1500, help="number of mails to scan (default: 1500)")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--out", type=Path, help="page to write the result to; it must contain the `measured` markers")
    given = parser.parse_args()
    with ExitStack() as stack:
        scanners = [stack.enter_context(our_service())]
        if shutil.which("rspamd"):
            scanners.append(stack.enter_context(rspamd()))
        rows = measure(sample(given.corpus, given.sample), scanners, given.rounds)
        text = report(rows, [scanner.name for scanner in scanners], given.rounds)
    print(text)
    if given.out is not None:
        given.out.write_text(with_part(given.out.read_text(encoding="utf-8"), "measured", text), encoding="utf-8")


if __name__ == "__main__":
    main()
