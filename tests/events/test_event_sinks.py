"""Each kind of sink with a real receiver: files, Debian's rsyslog over TCP and TLS, a NATS server."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import trustme
from standardwebhooks import Webhook, WebhookVerificationError

from bridge.events.event import Event, EventType, of_mail
from bridge.events.outbox import Entry
from bridge.events.sinks.file import FileSink
from bridge.events.sinks.nats import NatsSettings, NatsSink
from bridge.events.sinks.sink import Results, Sink
from bridge.events.sinks.syslog import SyslogSettings, SyslogSink, message
from bridge.events.sinks.webhook import WebhookSettings, WebhookSink, read_secrets, signed
from bridge.observe.redaction import FULL
from bridge.runtime.endpoints import Endpoint
from bridge.testing import free_port, until, whole_lines
from tests.daemon.process_kit import busy
from tests.events.events_kit import SECRET, Receiver, lines, mail
from tests.nats_kit import NatsServer, nats_server
from tests.quarantine.small_disk import small_disk
from tests.requirements import find, need, unavailable

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def entries(count: int, first: int = 1, text: str = "") -> list[Entry]:
    """Events of as many mails, numbered."""
    found = []
    for number in range(first, first + count):
        record = mail(mail_id=f"M{number}")
        if text:
            object.__setattr__(record.tx.session.client, "helo", text)
        (event,) = of_mail(record, [EventType.DECIDED], FULL, 1_700_000_000.25)
        body = event.to_json("bridge.example")
        found.append(Entry("s", event.id, event.type, event.about, event.time, body, number))
    return found


def delivered(results: Results) -> int:
    return sum(error is None for error in results.values())


def problem(results: Results) -> str:
    return next(str(error) for error in results.values() if error is not None)


async def deliver(sink: Sink, some: list[Entry]) -> Results:
    try:
        return await sink.deliver(some)
    finally:
        await sink.close()


# A file


async def test_lines_are_appended(tmp_path: Path) -> None:
    """Also after a restart, and readable by the owner and a group only."""
    path = tmp_path / "events.jsonl"
    assert delivered(await deliver(FileSink(path), entries(2))) == 2
    assert delivered(await deliver(FileSink(path), entries(1, 3))) == 1
    assert [event["data"]["id"] for event in lines(path)] == ["M1", "M2", "M3"]
    assert path.stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_rotated_file_is_opened_again(tmp_path: Path, is_removed: bool) -> None:
    """As logrotate does it, without a signal: the next events are in the new file."""
    path, old = tmp_path / "events.jsonl", tmp_path / "events.jsonl.1"
    sink = FileSink(path)
    await sink.deliver(entries(1))
    path.unlink() if is_removed else path.rename(old)
    await sink.deliver(entries(1, 2))
    await sink.close()
    assert [event["data"]["id"] for event in lines(path)] == ["M2"]
    assert is_removed or [event["data"]["id"] for event in lines(old)] == ["M1"]


async def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """The batch is sent again later, in full."""
    with small_disk(tmp_path / "small", 16 * 1024) as disk:
        path = disk / "events.jsonl"
        sink = FileSink(path)
        assert delivered(await sink.deliver(entries(5))) == 5
        failed = await sink.deliver(entries(100, 6))
        assert delivered(failed) == 0 and list(failed) == [6] and str(path) in problem(failed)
        assert len(lines(path)) == 5
        await sink.close()


async def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    """It stays as it is, on a line of its own."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"id": "cut o')
    await deliver(FileSink(path), entries(1))
    cut, whole = path.read_text().splitlines()
    assert cut == '{"id": "cut o' and json.loads(whole)["data"]["id"] == "M1"


@needs_root
async def test_a_file_that_root_had_created_by_a_test_was_closed_to_the_daemon(tmp_path: Path) -> None:
    """`scanbridge events test` runs as root; the daemon's user could never write to the file, and events waited."""
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 4711, 4712)
    path = tmp_path / "events.jsonl"
    await deliver(FileSink(path), entries(1))
    assert (path.stat().st_uid, path.stat().st_gid) == (4711, 4712)


@needs_root
async def test_root_wrote_to_whatever_the_daemons_user_had_put_in_place_of_the_file(tmp_path: Path) -> None:
    """A link to a file of root's got a line of JSON."""
    (tmp_path / "state").mkdir()
    (tmp_path / "precious").write_text("x\n")
    link = tmp_path / "state" / "events.jsonl"
    link.symlink_to(tmp_path / "precious")
    os.chown(link, 4711, 4712, follow_symlinks=False)
    assert "not a regular file" in problem(await deliver(FileSink(link), entries(1)))
    assert (tmp_path / "precious").read_text() == "x\n"
    os.chown(link, 0, 0, follow_symlinks=False)  # the administrator's own link is followed
    assert delivered(await deliver(FileSink(link), entries(1))) == 1


@needs_root
async def test_a_link_that_was_put_there_between_the_look_and_the_opening_was_followed(tmp_path: Path) -> None:
    """The owner of the directory replaced the file at the right moment, and root wrote to the file of its choice."""
    (tmp_path / "state").mkdir()
    (tmp_path / "precious").write_text("x\n")
    path, link = tmp_path / "state" / "events.jsonl", tmp_path / "state" / "link"
    path.write_text("")
    link.symlink_to(tmp_path / "precious")
    os.chown(link, 4711, 4712, follow_symlinks=False)
    waiting = [path]

    def swap(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and waiting and arguments[0] in (path, str(path)) and int(str(arguments[2])) & os.O_APPEND:
            waiting.pop()
            link.rename(path)

    sys.addaudithook(swap)
    assert "not a regular file" in problem(await deliver(FileSink(path), entries(1)))
    assert (tmp_path / "precious").read_text() == "x\n" and not waiting


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A FIFO that nobody reads would hold up all sinks; a missing directory may come back."""
    os.mkfifo(tmp_path / "fifo")
    assert "not a regular file" in problem(await deliver(FileSink(tmp_path / "fifo"), entries(1)))
    assert "No such file" in problem(await deliver(FileSink(tmp_path / "no" / "file"), entries(1)))


# Webhooks; how they are delivered is in test_event_delivery.py


def test_signatures_are_those_of_the_reference_library() -> None:
    """With each of several secrets, so that they can be exchanged; another secret, id or body does not fit."""
    old, new = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
    (one,) = entries(1, text="h\u00e9lo \U0001f600")
    headers = signed(one, read_secrets(f"whsec_{old}\n{new}\n"), int(time.time()))
    for secret in (old, f"whsec_{new}"):
        assert Webhook(secret).verify(one.body, headers)["id"] == one.id
    wrong = [(SECRET, one.body, headers), (old, one.body + b" ", headers)]
    wrong.append((old, one.body, {**headers, "webhook-id": "other"}))
    for secret, body, given in wrong:
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, given)


@pytest.mark.parametrize("text", ["", "\n", "whsec_", "whsec_abc", "not base64!", "whsec_" + "A" * 8, "A" * 400])
def test_a_secret_that_is_none_is_refused(text: str) -> None:
    """Without quoting it."""
    with pytest.raises(ValueError, match="a secret") as error:
        read_secrets(text)
    assert len(text) < 7 or text.strip() not in str(error.value)


async def test_a_webhook_is_verified(tmp_path: Path) -> None:
    """A receiver with a certificate that we do not trust gets nothing, one that we trust does."""
    ca, other = trustme.CA(), trustme.CA()
    receiver = Receiver()
    receiver.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    assert receiver._server is not None
    receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
    results = []
    for authority in (other, ca):
        trusted = ssl.create_default_context()
        authority.configure_trust(trusted)
        settings = WebhookSettings(receiver.url.replace("http:", "https:"), read_secrets(SECRET), 5.0, trusted)
        results.append(await deliver(WebhookSink(settings), entries(1)))
    receiver.stop()
    assert "certificate" in problem(results[0]) and delivered(results[1]) == 1
    assert len(receiver.events) == 1


# Syslog


class Rsyslog:
    """A private rsyslogd on loopback, which writes what it understood to a file."""

    def __init__(
        self, directory: Path, certificate: trustme.LeafCert | None = None, ca: trustme.CA | None = None
    ) -> None:
        need("rsyslogd")
        self.port = free_port()
        self.output = directory / "received"
        driver, common = "", ""
        if certificate is not None and ca is not None:
            if not list(Path("/usr/lib").glob("*/rsyslog/lmnsd_gtls.so")):
                unavailable("rsyslog-gnutls not installed (Debian: apt-get install rsyslog-gnutls)")
            files = {"CA": directory / "ca.pem", "Cert": directory / "cert.pem", "Key": directory / "key.pem"}
            ca.cert_pem.write_to_path(files["CA"])
            certificate.cert_chain_pems[0].write_to_path(files["Cert"])
            certificate.private_key_pem.write_to_path(files["Key"])
            common = " ".join(f'DefaultNetstreamDriver{name}File="{path}"' for name, path in files.items())
            driver = 'StreamDriver.Name="gtls" StreamDriver.Mode="1" StreamDriver.AuthMode="anon"'
        fields = (
            "%timereported:::date-rfc3339% %hostname% %syslogfacility-text%.%syslogseverity-text% %app-name% %msgid%"
        )
        self._config = directory / "rsyslog.conf"
        self._config.write_text(
            f'global(workDirectory="{directory}" maxMessageSize="64k" {common})\n'
            f'module(load="imtcp" {driver})\n'
            f'template(name="all" type="string" string="{fields} %msg%\\n")\n'
            f'input(type="imtcp" port="{self.port}" address="127.0.0.1")\n'
            f'action(type="omfile" file="{self.output}" template="all")\n'
        )
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(find("rsyslogd")), "-n", "-f", str(self._config), "-i", str(self._directory / "pid")]
        with (self._directory / "rsyslog.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: busy(self.port), "rsyslogd to listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def received(self, count: int) -> list[tuple[str, dict[str, Any]]]:
        """Head and event of each message, once there are so many."""
        until(lambda: len(whole_lines(self.output)) >= count, f"{count} messages")
        found = whole_lines(self.output)
        return [(line[: line.index("{")].strip(), json.loads(line[line.index("{") :])) for line in found]


@contextmanager
def rsyslog(directory: Path, **tls: Any) -> Iterator[Rsyslog]:
    server = Rsyslog(directory, **tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def syslog_sink(port: int, tls: ssl.SSLContext | None = None) -> SyslogSink:
    return SyslogSink(SyslogSettings(Endpoint("127.0.0.1", port), "mail", "bridge.example", 5.0, tls))


async def test_rsyslog_understands_every_field(tmp_path: Path) -> None:
    """Time, host, facility and severity, program, type; and the event itself, whatever characters it has."""
    with rsyslog(tmp_path) as server:
        some = entries(50, text='h\u00e9lo "\\ \u2028 \x1b[31m \U0001f600 \n')
        assert delivered(await deliver(syslog_sink(server.port), some)) == 50
        found = server.received(50)
    assert [event for _, event in found] == [json.loads(one.body) for one in some]
    heads = {head for head, _ in found}
    assert heads == {"2023-11-14T22:13:20.250Z bridge.example mail.info scanbridge mail.decided"}


async def test_rsyslog_that_is_killed_gets_everything_after_its_return(tmp_path: Path) -> None:
    """What it had not read is sent again; nothing is missing, and what comes twice has the same id."""
    server = Rsyslog(tmp_path)
    server.start()
    sink = syslog_sink(server.port)
    try:
        assert delivered(await sink.deliver(entries(10))) == 10
        await asyncio.to_thread(server.received, 10)
        server.stop()
        failed = await sink.deliver(entries(10, 11))
        assert delivered(failed) == 0 and str(server.port) in problem(failed)
        server.start()
        assert delivered(await sink.deliver(entries(10, 11))) == 10
        found = await asyncio.to_thread(server.received, 20)
    finally:
        await sink.close()
        server.stop()
    numbers = list(dict.fromkeys(event["data"]["id"] for _, event in found))
    assert numbers == [f"M{number}" for number in range(1, 21)]


async def test_rsyslog_over_tls(tmp_path: Path) -> None:
    """Its certificate and name are verified: with another authority, nothing is sent."""
    ca, other = trustme.CA(), trustme.CA()
    with rsyslog(tmp_path, certificate=ca.issue_cert("127.0.0.1"), ca=ca) as server:
        wrong, right = ssl.create_default_context(), ssl.create_default_context()
        other.configure_trust(wrong)
        ca.configure_trust(right)
        assert "certificate" in problem(await deliver(syslog_sink(server.port, wrong), entries(1))).lower()
        assert delivered(await deliver(syslog_sink(server.port, right), entries(20))) == 20
        found = server.received(20)
    assert [event["data"]["id"] for _, event in found] == [f"M{number}" for number in range(1, 21)]


async def test_a_syslog_server_that_does_not_read_is_not_waited_for() -> None:
    """It accepts connections, and its buffers fill: the events stay where they are."""
    server = socket.create_server(("127.0.0.1", 0))
    sink = SyslogSink(SyslogSettings(Endpoint("127.0.0.1", server.getsockname()[1]), "local0", "h", 0.5))
    big = [Entry("s", "e", "mail.decided", "m", 0.0, b'"' + b"x" * 8_000_000 + b'"', 1)]
    results = await sink.deliver(big)
    assert "within 0.5 s" in problem(results)
    await sink.close()
    server.close()


@pytest.mark.parametrize(
    ("type_", "priority"),
    [("mail.decided", 22), ("mail.refused", 21), ("scanner.state", 20), ("test", 22), ("of.a.newer.version", 22)],
)
def test_the_form_of_a_message(type_: str, priority: int) -> None:
    """RFC 5424, with its length in front (RFC 6587); a host name with odd characters stays one word."""
    event = Event(type_, {}, 0.0, "e1", "m")
    whole = message(Entry("s", "e1", type_, "m", 0.0, event.to_json("h"), 1), "mail", "h\u00f6st name")
    length, _, rest = whole.partition(b" ")
    assert int(length) == len(rest)
    assert re.match(
        rb"<%d>1 1970-01-01T00:00:00.000Z h\?st\?name scanbridge - %b - {" % (priority, type_.encode()), rest
    )


# NATS


def nats_sink(server: NatsServer, **more: Any) -> NatsSink:
    usual: dict[str, Any] = {"subject": "scanbridge", "jetstream": False, "timeout_s": 3.0}
    return NatsSink(NatsSettings(**{"servers": (server.url,), **usual, **more}))


async def test_a_subscriber_gets_events_at_their_subjects(tmp_path: Path) -> None:
    """In order, with the event's id in the header."""
    with nats_server(tmp_path) as server:
        client = await nats.connect(server.url)
        subscription = await client.subscribe("scanbridge.>")
        await client.flush()
        some = entries(20)
        assert delivered(await deliver(nats_sink(server), some)) == 20
        found = [await subscription.next_msg(5) for _ in some]
        await client.close()
    assert [json.loads(one.data) for one in found] == [json.loads(one.body) for one in some]
    assert {one.subject for one in found} == {"scanbridge.mail.decided"}
    assert [one.header["Nats-Msg-Id"] for one in found if one.header] == [one.id for one in some]


async def test_a_stream_stores_each_event_once(tmp_path: Path) -> None:
    """Also one that is sent twice; without a stream, nothing counts as delivered."""
    with nats_server(tmp_path, "-js", "-sd", str(tmp_path / "store")) as server:
        sink = nats_sink(server, jetstream=True)
        assert "no stream" in problem(await sink.deliver(entries(1)))
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="mail", subjects=["scanbridge.>"])
        some = entries(5)
        assert delivered(await sink.deliver(some)) == 5
        assert delivered(await sink.deliver(some)) == 5
        await sink.close()
        info = await client.jetstream().stream_info("mail")
        await client.close()
    assert info.state.messages == 5


async def test_a_server_that_is_killed_gets_everything_after_its_return(tmp_path: Path) -> None:
    """Nothing counts as delivered that the server has not confirmed."""
    server = NatsServer(tmp_path, "-js", "-sd", str(tmp_path / "store"))
    server.start()
    sink = nats_sink(server, jetstream=True, timeout_s=2.0)
    try:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="mail", subjects=["scanbridge.>"])
        await client.close()
        assert delivered(await sink.deliver(entries(5))) == 5
        server.stop()
        assert delivered(await sink.deliver(entries(5, 6))) == 0
        assert f"NATS at {server.url}: Connection refused" == problem(await sink.deliver(entries(5, 6)))
        server.start()
        assert delivered(await sink.deliver(entries(5, 6))) == 5
        client = await nats.connect(server.url)
        assert (await client.jetstream().stream_info("mail")).state.messages == 10
        await client.close()
    finally:
        await sink.close()
        server.stop()


async def test_an_event_that_is_too_large_for_the_server_does_not_stop_the_others(tmp_path: Path) -> None:
    """It alone is to blame; those before it are delivered."""
    with nats_server(tmp_path) as server:
        large = Entry("s", "e", "mail.decided", "m", 0.0, b"x" * 2_000_000, 99)
        results = await deliver(nats_sink(server), [*entries(2), large, *entries(1, 100)])
    error = results[99]
    assert error is not None and error.blames_event and delivered(results) == 2 and 100 not in results


async def test_a_token_is_needed_where_the_server_wants_one(tmp_path: Path) -> None:
    """It is never part of a message."""
    with nats_server(tmp_path, "--auth", "the-secret-token") as server:
        refused = await deliver(nats_sink(server, token="another-token"), entries(1))
        assert "uthorization" in problem(refused) and "token" not in problem(refused)
        assert delivered(await deliver(nats_sink(server, token="the-secret-token"), entries(1))) == 1


async def test_whoever_could_read_the_file_could_stop_its_events(tmp_path: Path) -> None:
    """The sink waited for the lock without an end, and its status showed no problem."""
    path = tmp_path / "events.jsonl"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert f"{path}: is locked by another program" in problem(await deliver(FileSink(path, lock_s=0.1), entries(1)))
    assert delivered(await deliver(FileSink(path), entries(1))) == 1
