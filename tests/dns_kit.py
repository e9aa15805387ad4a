"""A real name server (dnsmasq) on loopback, and one that misbehaves as it is told to."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
from dns.rdtypes.IN.SRV import SRV

from bridge.testing import free_port, until
from tests.requirements import find, need
from tests.rewriting import rewrite


class NameServer:
    """dnsmasq with the addresses of a hosts file, and SRV records."""

    def __init__(self, directory: Path, services: list[str]) -> None:
        need("dnsmasq")
        self.port = free_port()
        self._hosts = directory / "hosts"
        self._hosts.touch()
        self._command = [
            str(find("dnsmasq")), "--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null",
            f"--port={self.port}", "--listen-address=127.0.0.1", "--bind-interfaces", "--local=/example/", "--user=",
            f"--pid-file={directory}/dnsmasq.pid", f"--addn-hosts={self._hosts}", "--local-ttl=1",
            *(f"--srv-host={service}" for service in services),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        until(self._answers, "dnsmasq to answer")

    def _answers(self) -> bool:
        import dns.query

        try:
            dns.query.udp(dns.message.make_query("here.example", "A"), "127.0.0.1", timeout=0.2, port=self.port)
        except (OSError, dns.exception.DNSException):
            return False
        return True

    def write(self, **addresses: list[str]) -> None:
        """Each name in .example and its addresses, from now on."""
        lines = [f"{address} {name}.example\n" for name, all_ in addresses.items() for address in all_]
        rewrite(self._hosts, "".join(lines))
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)
            until(lambda: all(self._has(*one) for one in addresses.items()), "dnsmasq to have read its file")

    def _has(self, name: str, addresses: list[str]) -> bool:
        import dns.query

        found = set()
        for kind in ("A", "AAAA"):
            query = dns.message.make_query(f"{name}.example", kind)
            with suppress(OSError, dns.exception.DNSException):
                answer = dns.query.udp(query, "127.0.0.1", timeout=1.0, port=self.port)
                found |= {record.address for records in answer.answer for record in records}
        return found == set(addresses)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None


@contextmanager
def name_server(directory: Path, *services: str) -> Iterator[NameServer]:
    server = NameServer(directory, list(services))
    server.start()
    try:
        yield server
    finally:
        server.stop()


Answering = Callable[[dns.message.Message], bytes | None]


class BadServer(asyncio.DatagramProtocol):
    """Answers each question with what `answer` makes of it; with nothing if that is None."""

    def __init__(self) -> None:
        self.answer: Answering = servfail
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, client: tuple[str, int]) -> None:
        said = self.answer(dns.message.from_wire(data))
        if said is not None and self._transport is not None:
            self._transport.sendto(said, client)


@asynccontextmanager
async def bad_server() -> AsyncIterator[BadServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(BadServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()


def servfail(question: dns.message.Message) -> bytes:
    return _coded(question, dns.rcode.SERVFAIL)


def nxdomain(question: dns.message.Message) -> bytes:
    return _coded(question, dns.rcode.NXDOMAIN)


def nothing(question: dns.message.Message) -> bytes:
    return dns.message.make_response(question).to_wire()


def silence(_question: dns.message.Message) -> None:
    return None


def garbage(question: dns.message.Message) -> bytes:
    """A head that fits the question, and then nonsense."""
    return dns.message.make_response(question).to_wire()[:10] + b"\xff" * 90


def addresses(*texts: str, ttl: int = 1) -> Answering:
    def answer(question: dns.message.Message) -> bytes:
        response = dns.message.make_response(question)
        (asked,) = question.question
        if dns.rdatatype.to_text(asked.rdtype) == "A" and texts:
            response.answer.append(dns.rrset.from_text(asked.name, ttl, "IN", "A", *texts))
        return response.to_wire(max_size=65535)

    return answer


def services(*targets: tuple[bytes, ...], port: int) -> Answering:
    """An SRV record for each target, given as labels of any bytes; each target is at 127.0.0.1."""

    def answer(question: dns.message.Message) -> bytes:
        (asked,) = question.question
        if asked.rdtype != dns.rdatatype.SRV:
            return addresses("127.0.0.1")(question)
        response = dns.message.make_response(question)
        names = (dns.name.Name((*labels, b"")) for labels in targets)
        records = [SRV(dns.rdataclass.IN, dns.rdatatype.SRV, 0, 1, port, name) for name in names]
        response.answer.append(dns.rrset.from_rdata(asked.name, 1, *records))
        return response.to_wire(max_size=65535)

    return answer


def _coded(question: dns.message.Message, code: int) -> bytes:
    response = dns.message.make_response(question)
    response.set_rcode(dns.rcode.Rcode(code))
    return response.to_wire()
