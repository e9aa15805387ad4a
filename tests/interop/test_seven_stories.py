"""What `scanbridge explain` says about seven mails, with nothing but the sender and "since yesterday".

A real Postfix in front (as proxy filter and with the milter) and behind, the daemon and the service as processes, the
history in SQLite and (`make test-long`) in PostgreSQL. The stories in docs/operate/seven-stories.md come from these
tests (`pytest -rP`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import smtplib
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import TOKEN
from tests.chain import Destination, Postfix, Program, free_port, send, until
from tests.daemon.process_kit import scanbridge
from tests.postgresql import cluster, fresh_database
from tests.requirements import need

GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X\r\n"
EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*\r\n"
TO_DROP = b"See http://bank.example@192.0.2.99/ now\r\n"
CLIENT = {"xclient": "ADDR=192.0.2.7 NAME=mail.example.org", "helo": "mail.example.org"}


@dataclass(frozen=True)
class Ports:
    proxy_front: int
    milter_front: int
    hasty_proxy_front: int
    hasty_milter_front: int
    reinjection: int
    proxy: int
    milter: int
    service: int
    admin: int


SERVICES = """\
127.0.0.1:{ports.proxy_front} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports.proxy}
127.0.0.1:{ports.milter_front} inet n - n - 100 smtpd
    -o smtpd_milters=inet:127.0.0.1:{ports.milter} -o milter_default_action=tempfail
127.0.0.1:{ports.hasty_proxy_front} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports.proxy}
    -o smtpd_proxy_timeout=2s
127.0.0.1:{ports.hasty_milter_front} inet n - n - 100 smtpd
    -o smtpd_milters=inet:127.0.0.1:{ports.milter} -o milter_default_action=tempfail -o milter_content_timeout=2s
127.0.0.1:{ports.reinjection} inet n - n - 100 smtpd -o smtpd_authorized_xforward_hosts=127.0.0.0/8
"""
ACCESS = """\
smtpd_sender_restrictions = check_sender_access inline:{
    {never@proxy.example=550 5.7.1 Not from you}, {never@milter.example=550 5.7.1 Not from you} }
"""
SERVICE = """\
listen: 127.0.0.1:{ports.service}
guard: {{scanSources: {{restApi: {{}}}}}}
abby: {{serviceProviders: {{core: {{hosts: []}}}}, staticApiTokens: [{{name: bridge, token: {token}}}]}}
decisions:
  rules:
    - {{tags: ["malware:*"], verdict: malware, decision: quarantine}}
    - {{tags: ["spam:gtube"], verdict: spam, decision: bounce}}
    - {{tags: ["url:userinfo"], verdict: phishing, decision: drop}}
"""
BRIDGE = """\
scanner: {{urls: ["http://127.0.0.1:{ports.service}"], token_file: token, status_interval: 1s}}
listeners:
  - {{name: proxy, address: "127.0.0.1:{ports.proxy}", profile: postfix-proxy, lists: {lists}}}
  - {{name: milter, protocol: milter, address: "127.0.0.1:{ports.milter}", profile: postfix-milter, lists: {lists},
      policy: {{quarantine: quarantine}}}}
lists: {{url: "http://127.0.0.1:{ports.service}", api_key_file: api-key}}
relay: {{next_hop: "smtp://127.0.0.1:{ports.reinjection}"}}
admin: {{address: "127.0.0.1:{ports.admin}"}}
"""
LISTS = "{block: [blocked-senders], skip_scan: [allowed-networks]}"


class Service(Program):
    """A service that can be made to hang."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@dataclass(frozen=True)
class World:
    directory: Path
    ports: Ports
    postfix: Postfix
    destination: Destination
    service: Service

    def front(self, name: str) -> int:
        port: int = getattr(self.ports, f"{name}_front")
        return port

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "STATE_DIRECTORY": str(self.directory), "TZ": "UTC"}
        environment["SCANBRIDGE_CONFIG"] = str(self.directory / "bridge.yml")
        return scanbridge(*arguments, env=environment)

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports.admin}/status", timeout=30) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def is_scanning(self) -> bool:
        return all(not host["problem"] and host["status"] == "GREEN" for host in self.status()["scanner"])

    def has_lists(self) -> bool:
        return all(copy["entries"] is not None for copy in self.status()["lists"])

    def explain(self, sender: str, expected: str) -> str:
        """Ask until the story has this in it: mails are recorded a moment after they are answered."""
        told = ""

        def is_told() -> bool:
            nonlocal told
            told = self.command("explain", sender, "--since", "yesterday").stdout
            return expected in told

        until(is_told, f"{expected!r} in the story:\n{told}")
        print(told)  # for the docs: pytest -rP
        return told


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def world(request: Any, tmp_path_factory: Any) -> Iterator[World]:
    need("postfix", root=True)
    ports = Ports(*(free_port() for _ in Ports.__dataclass_fields__))
    directory = tmp_path_factory.mktemp("stories")
    (directory / "token").write_text(TOKEN)
    (directory / "service.yml").write_text(SERVICE.format(ports=ports, token=TOKEN))
    bridge_yml = BRIDGE.format(ports=ports, lists=LISTS)
    if request.param == "sqlite":
        yield from _run(directory, ports, bridge_yml)
    else:
        with cluster() as server:
            yield from _run(directory, ports, f'{bridge_yml}state_database: "{fresh_database(server.url)}"\n')


def _run(directory: Path, ports: Ports, bridge_yml: str) -> Iterator[World]:
    (directory / "bridge.yml").write_text(bridge_yml)
    service = Service(directory, [ports.service], "service", "-c", str(directory / "service.yml"))
    bridge = Program(directory, [ports.admin, ports.proxy, ports.milter], "run", "-c", str(directory / "bridge.yml"))
    with Destination() as destination, Postfix(SERVICES.format(ports=ports), destination.port, ACCESS) as postfix:
        world = World(directory, ports, postfix, destination, service)
        try:
            service.start()
            key = world.command("service", "-c", str(directory / "service.yml"), "apikey", "create", "bridge").stdout
            (directory / "api-key").write_text(key)
            for front in ("proxy", "milter"):
                added = world.command("lists", "add", "blocked-senders", f"door@{front}.example")
                assert added.returncode == 0, added.stderr
            bridge.start()
            until(world.is_scanning, "the scanner to be used")
            until(world.has_lists, "the local copies of the lists")
            yield world
            assert bridge.stop() == 0, bridge.log()
            assert "Traceback" not in bridge.log()
        finally:
            bridge.kill()
            service.kill()


def mail(sender: str, body: bytes = b"Hello\r\n") -> bytes:
    fields = (
        f"From: {sender}\r\nTo: b@example.net\r\nSubject: Minutes of our meeting\r\n"
        f"Date: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <{marker(sender)}@mail.example.org>\r\n\r\n"
    )
    return fields.encode() + body


def marker(sender: str) -> str:
    return sender.replace("@", "-").removesuffix(".example")


fronts = pytest.mark.parametrize("front", ["proxy", "milter"])


@fronts
def test_refused(world: World, front: str) -> None:
    """By the policy, because of what the service found."""
    sender = f"refused@{front}.example"
    reply = send(world.front(front), mail(sender, GTUBE), sender=sender, **CLIENT)
    told = world.explain(sender, "was refused")
    assert told.startswith(f"Mail from <{sender}> to <b@example.net> was refused.")
    assert "192.0.2.7 (HELO mail.example.org)" in told
    assert f"http://127.0.0.1:{world.ports.service} scanned it in" in told
    assert "verdict spam, tags spam:gtube, sender:impossible-domain" in told
    assert "Rule policy.bounce applied: the service's decision was `bounce`" in told
    assert reply.startswith("550 5.7.1") and f"The client received: {reply}" in told
    assert "returns it to the sender as undeliverable" in told
    assert "The lists blocked-senders and allowed-networks were checked: no entry matches." in told


@fronts
def test_deferred_then_delivered(world: World, front: str) -> None:
    """The scanner was away; both attempts are one story."""
    sender = f"deferred@{front}.example"
    until(world.is_scanning, "the scanner to be used")
    assert world.service.stop() == 0
    try:
        reply = send(world.front(front), mail(sender), sender=sender, **CLIENT)
    finally:
        world.service.start()
    assert reply.startswith("451 4.3.0")
    until(world.is_scanning, "the scanner to be used again")
    assert send(world.front(front), mail(sender), sender=sender, **CLIENT).startswith("250 ")
    world.destination.arrived(f"{marker(sender)}@")
    told = world.explain(sender, "deferred once, then")
    has_it = "delivered to the next hop." if front == "proxy" else "accepted by the mail server, which delivers it ("
    assert told.startswith(f"Mail from <{sender}> to <b@example.net> was deferred once, then {has_it}")
    first, second = told.index("Attempt 1:"), told.index("Attempt 2:")
    assert first < told.index("gave no decision") < told.index(f"The client received: {reply}") < second
    assert second < told.index("decision deliver") < told.index("Where it is now")
    command = re.search(r"grep -F (\S+) /var/log/mail.log", told)
    assert command is not None
    world.postfix.logged(rf"{command[1]}: to=<b@example.net>.* status=sent")


@fronts
def test_quarantined_then_released(world: World, front: str) -> None:
    """First it says how to release the mail; then that it was released."""
    sender = f"quarantined@{front}.example"
    until(world.is_scanning, "the scanner to be used")
    assert send(world.front(front), mail(sender, EICAR), sender=sender, **CLIENT).startswith("250 ")
    told = world.explain(sender, "was quarantined")
    assert "verdict malware" in told and "it has not been released" in told
    command = next(line for line in told.splitlines() if "quarantine release" in line).split()
    released = world.command(*command[command.index("scanbridge") + 1 :])
    assert released.returncode == 0, released.stderr
    assert "history" not in released.stderr
    world.destination.arrived(f"{marker(sender)}@")
    told = world.explain(sender, "later released")
    assert "It was released from the quarantine by " in told and "to b@example.net: 250 2.0.0 Ok: queued as" in told
    assert "Where it is now      Released to <b@example.net>; it is still in the quarantine until" in told


@fronts
def test_dropped(world: World, front: str) -> None:
    """The sender was told that it was accepted."""
    sender = f"dropped@{front}.example"
    assert send(world.front(front), mail(sender, TO_DROP), sender=sender, **CLIENT).startswith("250 ")
    told = world.explain(sender, "accepted and dropped")
    assert "Rule policy.drop applied" in told
    assert "Where it is now      Nowhere: it was dropped, and the sender was not notified." in told


@fronts
def test_refused_at_the_door(world: World, front: str) -> None:
    """By a list, before the content was sent."""
    sender = f"door@{front}.example"
    reply = send(world.front(front), b"never sent", sender=sender, **CLIENT)
    assert reply.startswith("550 5.7.1")
    told = world.explain(sender, "was refused at")
    assert "before its content was sent" in told
    assert f"The list blocked-senders has a matching entry ({sender})." in told
    assert "Rule lists.blocked-senders applied" in told
    assert f"The client received: {reply}" in told
    assert "scanbridge lists entries blocked-senders" in told


@fronts
def test_cancelled_by_the_client(world: World, front: str) -> None:
    """Our client is Postfix: it gives up when its own timeout has passed."""
    sender = f"cancelled@{front}.example"
    until(world.is_scanning, "the scanner to be used")
    with world.service.frozen():
        reply = send(world.front(f"hasty_{front}"), mail(sender), sender=sender, **CLIENT)
        told = world.explain(sender, "was abandoned by the client before a decision was made")
    assert reply.startswith("451 ")
    assert "was scanning it when the mail server in front of the bridge disconnected" in told
    assert "The mail server in front of the bridge disconnected before it received an answer." in told
    assert "As far as we know, the sending mail server has it and will try again later." in told
    until(world.is_scanning, "the scanner to be used again")


@fronts
def test_never_seen(world: World, front: str) -> None:
    """Postfix refused it by a rule of its own; the absence is proved."""
    sender = f"never@{front}.example"
    assert "Not from you" in send(world.front(front), mail(sender), sender=sender, **CLIENT)
    seen = f"seen@{front}.example"
    until(world.is_scanning, "the scanner to be used")
    assert send(world.front(front), mail(seen), sender=seen, **CLIENT).startswith("250 ")
    world.explain(seen, "was delivered to" if front == "proxy" else "was accepted by")
    done = world.command("explain", sender, "--since", "yesterday", "--client", "192.0.2.7")
    print(done.stdout)
    assert done.returncode == 3
    assert done.stdout.startswith(f"No mail was found for {sender}, client 192.0.2.7 between ")
    assert f"From <{sender}> in the whole history: 0 mails." in done.stdout
    assert f"From the domain {front}.example during that time: " in done.stdout
    assert "From the client 192.0.2.7 during that time: " in done.stdout
    assert "Since the daemon started, every mail has been recorded." in done.stdout
    assert "mail that the mail server in front of the bridge refused" in done.stdout


def test_the_message_id_and_both_queue_ids_lead_to_the_same_story(world: World) -> None:
    """Any key will do, as it is copied out of a log."""
    sender = "keys@proxy.example"
    until(world.is_scanning, "the scanner to be used")
    with smtplib.SMTP("127.0.0.1", world.ports.proxy_front, timeout=60) as client:
        client.sendmail(sender, ["b@example.net"], mail(sender))
    story = world.explain(sender, "was delivered")
    entry = json.loads(world.command("history", "--sender", sender, "--json").stdout)
    for key in (entry["id"], entry["session"], entry["next_id"], entry["ggrid"], entry["message_id"]):
        for spelling in {key, key.strip("<>"), f"id={key},"}:
            assert world.command("explain", spelling).stdout == story, spelling
    assert json.loads(world.command("explain", entry["id"], "--json").stdout)["mails"][0]["attempts"] == [entry]
