"""Behind a real Postfix, as `content_filter` and as `smtpd_proxy_filter`, with a scanner that is too slow."""

from __future__ import annotations

import asyncio
import itertools
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.testing import TOKEN, Background, FakeScanner, answer, result
from tests.chain import Destination, Postfix, Program, free_port, send, until
from tests.requirements import need

_NUMBERS = itertools.count(1)

SERVICES = """\
127.0.0.1:{front} inet n - n - 100 smtpd -o content_filter=scan:[127.0.0.1]:{bridge}
127.0.0.1:{proxy} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{bridge}
scan unix - - n - 10 smtp -o smtp_send_xforward_command=yes -o disable_mime_output_conversion=yes
127.0.0.1:{back} inet n - n - 100 smtpd
    -o smtpd_authorized_xforward_hosts=127.0.0.0/8
    -o smtpd_client_restrictions=
    -o smtpd_relay_restrictions=
    -o {{ smtpd_recipient_restrictions=permit_mynetworks, reject }}
    -o receive_override_options=no_unknown_recipient_checks
"""

BRIDGE = """\
scanner: {{urls: ["{scanner}"], token_file: token, status_interval: 1s}}
listeners:
  - {{name: queue, address: "127.0.0.1:{bridge}", profile: postfix-content-filter, deadline: 1s}}
relay: {{next_hop: "smtp://127.0.0.1:{back}"}}
admin: {{address: "127.0.0.1:{admin}"}}
workers: {workers}
"""


class SlowScanner:
    """Holds every mail until `open`, and counts the mails."""

    def __init__(self) -> None:
        self.background, self.fake = Background(), FakeScanner()
        self._open = asyncio.Event()
        self.fake.reply = self._reply
        self.background.run(self.fake.start())

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        writer.write(answer(200, result()))

    def open(self) -> None:
        self.background.loop.call_soon_threadsafe(self._open.set)

    def shut(self) -> None:
        self.background.loop.call_soon_threadsafe(self._open.clear)

    def seen(self, marker: str) -> int:
        return sum(marker.encode() in submission.email for submission in self.fake.submissions)

    def close(self) -> None:
        self.open()
        self.background.run(self.fake.stop())
        self.background.close()


@dataclass(frozen=True)
class Chain:
    front: int
    proxy: int
    postfix: Postfix
    bridge: Program
    scanner: SlowScanner
    destination: Destination


@pytest.fixture(scope="module", params=[2], ids=["two workers"])
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    need("postfix", root=True)
    ports = {name: free_port() for name in ("front", "proxy", "bridge", "back", "admin")}
    directory, scanner = tmp_path_factory.mktemp("late"), SlowScanner()
    (directory / "token").write_text(TOKEN)
    config = directory / "bridge.yml"
    config.write_text(BRIDGE.format(scanner=scanner.fake.url, workers=request.param, **ports))
    bridge = Program(directory, [ports["admin"], ports["bridge"]], "run", "-c", str(config))
    with Destination() as destination:
        services = SERVICES.format(**ports)
        with Postfix(services, destination.port) as postfix:
            bridge.start()
            try:
                yield Chain(ports["front"], ports["proxy"], postfix, bridge, scanner, destination)
                assert bridge.stop() == 0, bridge.log()
                assert "Traceback" not in bridge.log()
            finally:
                bridge.kill()
                scanner.close()


@pytest.fixture
def marker() -> str:
    return f"late{next(_NUMBERS)}late"


def queue(chain: Chain, marker: str) -> str:
    """Send a mail and wait until Postfix has deferred it; returns its queue id."""
    chain.scanner.shut()
    content = b"From: a@example.org\r\nSubject: " + marker.encode() + b"\r\n\r\nbody\r\n"
    identity = send(chain.front, content).rpartition(" ")[2]
    chain.postfix.logged(rf"{identity}: .*status=deferred .*451 4\.4\.7")
    return identity


def line_of(chain: Chain, identity: str, late: str) -> None:
    chain.bridge.logged(rf"(?m)^id=.* late={late} .*ident={identity}")


def decide(chain: Chain) -> None:
    """Let the scan end, and wait until the slot is free again."""
    chain.scanner.open()
    until(lambda: chain.scanner.fake.in_flight == 0, "the scanner to answer")


def retry(chain: Chain, identity: str) -> None:
    """Retry until it is delivered: storing the decision may take a moment."""

    def is_sent() -> bool:
        if re.search(rf"{identity}: .*status=sent", chain.postfix.log()):
            return True
        chain.postfix.run("postqueue", "-i", identity)
        return False

    until(is_sent, f"{identity} to be sent")


def test_the_retry_is_answered_from_the_late_decision(chain: Chain, marker: str) -> None:
    """Deferred, deferred again while the scan runs, then delivered; the scanner saw it once."""
    identity = queue(chain, marker)
    line_of(chain, identity, "awaited")
    chain.postfix.run("postqueue", "-i", identity)
    line_of(chain, identity, "running")
    decide(chain)
    retry(chain, identity)
    line_of(chain, identity, "hit")
    chain.destination.arrived(marker)
    assert chain.scanner.seen(marker) == 1


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.long), "kill"])
def test_the_retry_after_a_restart_is_answered_too(chain: Chain, marker: str, how: str) -> None:
    """The decision is on disk: it survives SIGTERM and kill -9."""
    identity = queue(chain, marker)
    decide(chain)
    chain.bridge.logged(rf"(?m)^id=.* late=awaited .*ident={identity}")
    until_kept(chain)
    if how == "stop":
        assert chain.bridge.stop() == 0
    else:
        chain.bridge.kill()
    chain.bridge.start()
    retry(chain, identity)
    line_of(chain, identity, "hit")
    chain.destination.arrived(marker)
    assert chain.scanner.seen(marker) == 1


def until_kept(chain: Chain) -> None:
    """Wait until no late scan is running."""
    path = next(Path(chain.bridge._log.parent).glob("**/late.sqlite"))

    def all_decided() -> bool:
        database = sqlite3.connect(path)
        try:
            rows = database.execute("SELECT count(*), count(result) FROM late_decision").fetchone()
        finally:
            database.close()
        return bool(rows[0] and rows[0] == rows[1])

    until(all_decided, "the decision on disk")


def test_before_the_queue_the_retry_has_another_received_field(chain: Chain, marker: str) -> None:
    """Postfix writes it for each attempt of its client, which sends the same mail."""
    content = f"From: a@example.org\r\nSubject: {marker}\r\n\r\nbody\r\n".encode()
    chain.scanner.shut()
    assert send(chain.proxy, content, helo="first.example").startswith("451 ")
    decide(chain)
    until_kept(chain)
    assert send(chain.proxy, content, helo="second.example").startswith("250 ")
    chain.destination.arrived(marker)
    assert chain.scanner.seen(marker) == 1


@pytest.mark.parametrize("line", ["Received", "Received by x", "Received : by x", "Visible text", "X-A: 1\r\n "])
def test_a_header_line_that_is_no_field_hid_another_mail(chain: Chain, marker: str, line: str) -> None:
    """Its continuation was left out of the hash: the second mail was delivered by the first one's decision."""
    content = f"{line}\r\n first {marker}\r\nFrom: a@example.org\r\n\r\nbody\r\n".encode()
    chain.scanner.shut()
    assert send(chain.proxy, content).startswith("451 ")
    decide(chain)
    until_kept(chain)
    assert send(chain.proxy, content.replace(b"first", b"other")).startswith("250 ")
    assert chain.scanner.seen(marker) == chain.scanner.seen(f"first {marker}") + chain.scanner.seen(f"other {marker}")
    assert chain.scanner.seen(f"other {marker}") == 1
