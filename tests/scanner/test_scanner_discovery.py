"""Scanner hosts from the DNS: they come, go, and stay when the DNS fails."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest
import trustme

from bridge.errors import ScanUnavailable
from bridge.scanner.client import Scanner
from bridge.scanner.discovery import MAX_HOSTS, Discovery, DiscoverySettings, Place, bounded
from bridge.testing import eventually, free_port
from tests import dns_kit
from tests.dns_kit import addresses, bad_server, name_server
from tests.requirements import need_ipv6
from tests.scanner.fault_server import Call, FaultServer, answer, green, scanner_of, submit


def settings(port: int, records: str = "addresses", **more: float) -> DiscoverySettings:
    bounds = {"min_interval_s": 0.1, "max_interval_s": 60.0, **more}
    return DiscoverySettings(records, (("127.0.0.1", port),), **bounds)


async def honest(call: Call) -> None:
    assert call.request is not None
    call.say(green() if call.request.is_status else answer())


@asynccontextmanager
async def listening(
    *places: str, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[dict[str, FaultServer]]:
    """A scanner at each of these addresses, all with the same port."""
    port = port or free_port()
    found, servers = {}, []
    for place in places:
        found[place] = FaultServer(script=honest, port=port)
        servers.append(await asyncio.start_server(found[place].accept, place, port, ssl=tls))
    try:
        yield found
    finally:
        for server in servers:
            server.close()
        for fault in found.values():
            await fault.stop()


@asynccontextmanager
async def watching(scanner: Scanner) -> AsyncIterator[None]:
    task = asyncio.create_task(scanner.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def hosts_of(scanner: Scanner) -> set[str]:
    return {host.place.addresses[0] for host in scanner.hosts}


def mails(server: FaultServer) -> int:
    return sum(request.is_mail for request in server.requests)


async def test_added_hosts_get_mail_and_removed_ones_finish_theirs(tmp_path) -> None:
    """Nothing is restarted, and a scan in progress at a host that leaves the DNS is not cut off."""
    with name_server(tmp_path) as dns:
        async with listening("127.0.0.1", "127.0.0.2") as servers:
            port, goes_on = servers["127.0.0.1"].port, asyncio.Event()

            async def slow(call: Call) -> None:
                if call.request is not None and call.request.is_mail:
                    await goes_on.wait()
                await honest(call)

            servers["127.0.0.1"].script = slow
            dns.write(scan=["127.0.0.1"])
            url = f"http://scan.example:{port}"
            async with scanner_of(url, discovery=settings(dns.port)) as scanner, watching(scanner):
                await eventually(lambda: hosts_of(scanner) == {"127.0.0.1"}, "the first host")
                begun = asyncio.create_task(submit(scanner, deadline_s=60))
                await servers["127.0.0.1"].arrived.wait()
                await eventually(lambda: scanner.in_flight, "the mail at the first host")
                dns.write(scan=["127.0.0.1", "127.0.0.2"])
                await eventually(lambda: len(scanner.hosts) == 2, "the second host")
                assert (await submit(scanner)).ggrid and mails(servers["127.0.0.2"]) == 1
                dns.write(scan=["127.0.0.2"])
                await eventually(lambda: hosts_of(scanner) == {"127.0.0.2"}, "the first host to leave")
                assert not begun.done() and scanner.in_flight == 1
                goes_on.set()
                assert (await begun).ggrid
                await eventually(lambda: not scanner._retired, "the drained host to be forgotten")
                request = servers["127.0.0.2"].requests[0]
                assert request.fields["host"] == f"scan.example:{port}"


async def test_a_name_server_that_dies_and_returns_stops_no_mail(tmp_path) -> None:
    """The hosts found last stay, and are looked up again as soon as it is back."""
    with name_server(tmp_path) as dns:
        async with listening("127.0.0.1", "127.0.0.2") as servers:
            dns.write(scan=["127.0.0.1"])
            url = f"http://scan.example:{servers['127.0.0.1'].port}"
            async with scanner_of(url, discovery=settings(dns.port)) as scanner:
                await scanner.discover()
                dns.stop()
                (known,) = scanner.discoveries
                await scanner.discover()
                assert known.problem and hosts_of(scanner) == {"127.0.0.1"}
                assert (await submit(scanner)).ggrid
                dns.write(scan=["127.0.0.2"])
                dns.start()
                await scanner.discover()
                assert not known.problem and hosts_of(scanner) == {"127.0.0.2"}


@pytest.mark.parametrize("bad", [dns_kit.servfail, dns_kit.nxdomain, dns_kit.nothing, dns_kit.garbage])
async def test_bad_answers_keep_the_last_hosts(bad) -> None:
    """SERVFAIL, NXDOMAIN, an empty answer and a malformed one."""
    async with bad_server() as dns, scanner_of("http://scan.example:9081", discovery=settings(dns.port)) as scanner:
        dns.answer = addresses("192.0.2.1", "192.0.2.2")
        await scanner.discover()
        before = list(scanner.hosts)
        dns.answer = bad
        assert await scanner.discover() == 0.1
        assert scanner.hosts == before and len(before) == 2
        assert scanner.discoveries[0].problem


async def test_a_thousand_addresses_are_bounded_and_known_hosts_stay() -> None:
    """Mail goes on, and the number of hosts, connections and label values has a limit."""
    async with bad_server() as dns, scanner_of("http://scan.example:9081", discovery=settings(dns.port)) as scanner:
        dns.answer = addresses("192.0.2.99")
        await scanner.discover()
        dns.answer = addresses(*(f"10.0.{i // 250}.{i % 250 + 1}" for i in range(999)), "192.0.2.99")
        await scanner.discover()
        assert len(scanner.hosts) == MAX_HOSTS and "192.0.2.99" in hosts_of(scanner)
        assert "more than 64 hosts" in scanner.discoveries[0].problem


@pytest.mark.parametrize(("ttl", "expected"), [(0, 2.0), (7, 7.0), (86400, 30.0)])
async def test_the_ttl_decides_within_bounds(ttl: int, expected: float) -> None:
    """A TTL of 0 does not flood the name server, and one of a day does not hide a new host for a day."""
    async with bad_server() as dns:
        dns.answer = addresses("192.0.2.1", ttl=ttl)
        found = Discovery("http://scan.example", settings(dns.port, min_interval_s=2.0, max_interval_s=30.0))
        assert await found.look() == expected


async def test_mail_that_comes_before_the_first_answer_waits_for_it() -> None:
    """After a start or a reload; if the DNS does not answer, the mail fails as without a connection."""
    async with bad_server() as dns, listening("127.0.0.1") as servers:
        dns.answer = addresses("127.0.0.1")
        url = f"http://scan.example:{servers['127.0.0.1'].port}"
        async with scanner_of(url, discovery=settings(dns.port)) as scanner:
            assert (await submit(scanner)).ggrid
        dns.answer = dns_kit.silence
        async with scanner_of(url, discovery=settings(dns.port), connect_timeout_s=0.2) as scanner:
            with pytest.raises(ScanUnavailable, match="no scanner host has been found"):
                await submit(scanner)


async def test_srv_records_give_ports_priorities_and_weights(tmp_path) -> None:
    """Mail is spread by weight over the best priority; the next one is used when that fails."""
    ports = [free_port() for _ in range(3)]
    services = [f"_scan._tcp.example,{name}.example,{port},{priority},{weight}" for name, port, priority, weight in
                zip(("a", "b", "c"), ports, (10, 10, 20), (90, 10, 50), strict=True)]  # fmt: skip
    with name_server(tmp_path, *services) as dns:
        dns.write(a=["127.0.0.1"], b=["127.0.0.1"], c=["127.0.0.1"])
        async with (
            listening("127.0.0.1", port=ports[0]) as a,
            listening("127.0.0.1", port=ports[1]) as b,
            listening("127.0.0.1", port=ports[2]) as c,
            scanner_of("http://_scan._tcp.example", discovery=settings(dns.port, "srv")) as scanner,
        ):
            await scanner.discover()
            urls = [f"http://{name}.example:{port}" for name, port in zip("abc", ports, strict=True)]
            assert {host.url for host in scanner.hosts} == set(urls)
            first = Counter(scanner._by_preference()[0].url for _ in range(1000))
            assert set(first) == set(urls[:2]) and 800 < first[urls[0]] < 970
            for host in scanner.hosts:
                if host.place.priority == 10:
                    host.unanswered = 1
            assert (await submit(scanner)).ggrid
            assert [mails(server["127.0.0.1"]) for server in (a, b, c)] == [0, 0, 1]


async def test_tls_asks_for_the_configured_name_or_the_srv_target(tmp_path) -> None:
    """A host with another name's certificate gets neither the mail nor the token."""
    authority, port = trustme.CA(), free_port()
    contexts = []
    for name in ("scan.example", "node.example"):
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        authority.issue_cert(name).configure_cert(contexts[-1])
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    with name_server(tmp_path, f"_scan._tcp.example,node.example,{port},0,1") as dns:
        dns.write(scan=["127.0.0.1"], node=["127.0.0.1"])
        for records, url, names in (
            ("addresses", f"https://scan.example:{port}", ("scan.example", "node.example")),
            ("srv", "https://_scan._tcp.example", ("node.example", "scan.example")),
        ):
            for name, is_trusted in zip(names, (True, False), strict=True):
                tls = contexts[name == "node.example"]
                async with (
                    listening("127.0.0.1", port=port, tls=tls) as servers,
                    scanner_of(url, discovery=settings(dns.port, records), tls=ours) as scanner,
                ):
                    if is_trusted:
                        assert (await submit(scanner)).ggrid
                        continue
                    with pytest.raises(ScanUnavailable, match="certificate"):
                        await submit(scanner)
                    assert not servers["127.0.0.1"].bytes_seen


async def test_addresses_of_both_families_are_hosts(tmp_path) -> None:
    """AAAA records: brackets in the URL and in the Host field, none where the connection is made."""
    need_ipv6()
    with name_server(tmp_path) as dns:
        async with listening("127.0.0.1", "::1") as servers:
            port = servers["::1"].port
            dns.write(scan=["::1"])
            url = f"http://scan.example:{port}"
            async with scanner_of(url, discovery=settings(dns.port)) as scanner:
                await scanner.discover()
                assert [host.url for host in scanner.hosts] == [f"http://[::1]:{port}"]
                assert (await submit(scanner)).ggrid and mails(servers["::1"]) == 1
                assert servers["::1"].requests[0].fields["host"] == f"scan.example:{port}"
                dns.write(scan=["127.0.0.1", "::1"])
                await scanner.discover()
                assert hosts_of(scanner) == {"127.0.0.1", "::1"} and not scanner.discoveries[0].problem
                for host in scanner.hosts:
                    host.unanswered = host.place.addresses[0] == "::1"
                assert (await submit(scanner)).ggrid and mails(servers["127.0.0.1"]) == 1
                dns.write(scan=["127.0.0.1"])
                await scanner.discover()
                assert hosts_of(scanner) == {"127.0.0.1"}


async def test_an_srv_target_may_have_ipv6_addresses_only(tmp_path) -> None:
    """With TLS: the certificate is the target's, at whichever address it is."""
    need_ipv6()
    authority, port = trustme.CA(), free_port()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("node.example").configure_cert(tls)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    with name_server(tmp_path, f"_scan._tcp.example,node.example,{port},0,1") as dns:
        dns.write(node=["::1"])
        async with (
            listening("::1", port=port, tls=tls) as servers,
            scanner_of("https://_scan._tcp.example", discovery=settings(dns.port, "srv"), tls=ours) as scanner,
        ):
            await scanner.discover()
            assert [(host.url, host.place.addresses) for host in scanner.hosts] == [
                (f"https://node.example:{port}", ("::1",))
            ]
            assert (await submit(scanner)).ggrid and mails(servers["::1"]) == 1


async def test_one_family_that_fails_keeps_its_addresses() -> None:
    """Many name servers fail on AAAA alone."""

    def answering(question) -> bytes:
        is_a = question.question[0].rdtype == 1
        return addresses("192.0.2.1")(question) if is_a else dns_kit.servfail(question)

    async with bad_server() as dns:
        dns.answer = answering
        found = Discovery("http://scan.example:1", settings(dns.port))
        await found.look()
        assert [place.addresses for place in found.places] == [("192.0.2.1",)] and "AAAA" in found.problem


@contextmanager
def free_on_both() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else gets meanwhile, and which is hardly ever in use at 127.0.0.2."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


async def test_an_address_that_drops_packets_made_its_host_unreachable() -> None:
    """It used up the time for all addresses of an SRV target, at every mail."""
    with free_on_both() as port, socket.create_server(("127.0.0.2", port), backlog=0):
        waiting = [socket.socket() for _ in range(3)]  # fill the queue: further connections are not answered
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.2", port))
        async with listening("127.0.0.1", port=port), scanner_of(f"http://127.0.0.1:{port}") as scanner:
            (host,) = scanner.hosts
            host.place = replace(host.place, addresses=("127.0.0.2", "127.0.0.1"))
            for _ in range(2):
                (await host.connect(1.0)).close()
                assert host._reached == "127.0.0.1"
        for sock in waiting:
            sock.close()


def test_better_priorities_and_known_hosts_come_first() -> None:
    """When there are more than we use."""
    places = [Place(f"http://h{i:03}", f"http://h{i:03}", "h", 80, ("192.0.2.1",), i % 2) for i in range(100)]
    kept = bounded(places, places[99:])
    assert len(kept) == MAX_HOSTS and places[99] in kept
    assert sum(place.priority == 0 for place in kept) == 50


@pytest.mark.parametrize("label", [b"[x", b"a:b", b"a/b?c#d", b"x@evil", b"a\r\nX: y", b"\xff" * 60])
async def test_a_target_that_is_no_host_name_does_not_end_the_watch(label: bytes) -> None:
    """Its URL could not be read, which ended the task that looks for hosts and asks for their status, for good."""
    async with bad_server() as dns, listening("127.0.0.1") as servers:
        port = servers["127.0.0.1"].port
        dns.answer = dns_kit.services((label, b"example"), port=port)
        found = scanner_of("http://_scan._tcp.example", discovery=settings(dns.port, "srv"))
        async with found as scanner, watching(scanner):
            await eventually(lambda: "not specify a host" in scanner.discoveries[0].problem, "the record to be read")
            assert not scanner.hosts
            dns.answer = dns_kit.services((label, b"example"), (b"good", b"example"), port=port)
            await eventually(lambda: [host.place.name for host in scanner.hosts] == ["good.example"], "the other host")
