"""Before the queue: Postfix's `smtpd_proxy_filter`, seen from the remote client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import json
import re
import socket
import subprocess
import threading
import urllib.request

import pytest

from bridge.testing import answer, result
from tests.chain import added_fields, is_listening, send, until
from tests.requirements import find

MiB = 1024 * 1024
STAMPED = ["X-Scan-Id", "X-Scan-Decision", "X-Scan-Verdict", "X-Scan-Tags", "X-Scan-Ggrid"]


def mail(marker: str, *fields: str, body: bytes = b"Hello\r\n") -> bytes:
    head = [f"Subject: {marker}", "From: a@example.org", "Date: Sun, 1 Nov 2026 10:00:00 +0000", *fields]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def nothing_arrived(postfix, destination, marker: str) -> bool:
    until(lambda: not postfix.queue(), "Postfix's queue to be empty")
    return not destination.find(marker)


# --- decisions ---


def test_delivered_mail_has_the_reply_of_the_server_behind(scripted, ports, postfix, destination, marker):
    """The client receives the queue id under which Postfix has the mail now, and the mail carries our fields."""
    reply = send(ports.scripted_front, mail(marker))
    queued = re.fullmatch(r"250 2\.0\.0 Ok: queued as (\w+)", reply)
    assert queued, reply
    arrived = destination.arrived(marker)
    postfix.logged(rf"{queued[1]}: to=<b@example\.net>.* status=sent")
    assert added_fields(arrived.content, mail(marker)) == ["Received", "Received", *STAMPED, "Received"]


@pytest.mark.parametrize(
    ("decision", "reply", "kept"),
    [
        ("bounce", r"550 5\.7\.1 The message was refused \(id=\w+ ggrid=[\w-]+\)", 0),
        ("drop", r"250 2\.0\.0 Ok: queued as \w+", 0),
        ("quarantine", r"250 2\.0\.0 Ok: queued as \w+", 1),
        ("undecided", r"451 4\.7\.1 The scan came to no decision, try again later \(id=\w+ ggrid=[\w-]+\)", 0),
        ("no such decision", r"451 4\.7\.1 .*", 0),
    ],
)
def test_other_decisions_as_the_client_sees_them(
    scripted, ports, postfix, destination, marker, decision, reply, kept
):  # fmt: skip
    """Refused, dropped, quarantined and undecided mail is never delivered; verdict and tags stay with us."""
    scripted.scanner.reply = answer(200, result(decision))
    read = send(ports.scripted_front, mail(marker))
    assert re.fullmatch(reply, read), read
    assert nothing_arrived(postfix, destination, marker)
    quarantined = [path for path in scripted.quarantined if marker.encode() in path.read_bytes()]
    assert len(quarantined) == kept
    for path in quarantined:
        about = json.loads(path.with_suffix(".json").read_text())
        assert about["id"] == read.split()[-1]
        assert path.read_bytes().endswith(mail(marker))


def test_refusal_of_the_server_behind_is_passed_on(scripted, ports, postfix, destination, marker):
    """The remote client receives the last server's own reply about a recipient."""
    reply = send(ports.scripted_front, mail(marker), recipient="unknown@example.net")
    assert reply == "550 5.1.1 <unknown@example.net>: Recipient address rejected: No such user here"
    assert nothing_arrived(postfix, destination, marker)


# --- what the scanner gets ---


@pytest.mark.parametrize(
    ("xclient", "address"),
    [
        ("NAME=mail.example.com ADDR=192.0.2.7", "192.0.2.7"),
        ("NAME=[UNAVAILABLE] ADDR=IPV6:2001:db8::7", "2001:db8::7"),
    ],
)
def test_scanner_learns_of_the_remote_client(scripted, ports, postfix, destination, marker, xclient, address):
    """remoteAddress and senderHelo are the remote client's, here and in the log of the Postfix behind."""
    assert send(ports.scripted_front, mail(marker), xclient=xclient, helo="mail.example.com").startswith("250")
    (submission,) = scripted.scanner.submissions
    assert submission.parameters["borderMtaData"] == {
        "envelopeFrom": "a@example.org",
        "envelopeRecipients": ["b@example.net"],
        "remoteAddress": address,
        "senderHelo": "mail.example.com",
    }
    destination.arrived(marker)
    postfix.logged(rf"orig_client=\S+\[{re.escape(address)}\]")


def test_unknown_address_is_left_out(scripted, ports, destination, marker):
    """If Postfix does not know the client's address, we do not send our own instead."""
    assert send(ports.scripted_front, mail(marker), xclient="ADDR=[UNAVAILABLE]").startswith("250")
    assert "remoteAddress" not in scripted.scanner.submissions[0].parameters["borderMtaData"]
    destination.arrived(marker)


def test_scanner_gets_the_mail_that_arrives(scripted, ports, destination, marker):
    """The scanned bytes are the delivered bytes, except for fields added later."""
    content = mail(marker, "X-Odd:no space", "X-8: gr\u00fc\u00df", body=b"..\r\n.\r\n\xe4\xff\x80\r\n")
    assert send(ports.scripted_front, content, mail=["BODY=8BITMIME"]).startswith("250")
    scanned = scripted.scanner.submissions[0].email
    assert added_fields(scanned, content) == ["Received"]
    assert destination.arrived(marker).content.endswith(scanned)


def test_forged_fields_of_ours_do_not_arrive(scripted, ports, destination, marker):
    """A sender cannot claim to have been scanned."""
    forged = mail(marker, "X-Scan-Decision: deliver", "x-scan-verdict: fine\r\n\tand folded", "X-Scanned: kept")
    assert send(ports.scripted_front, forged).startswith("250")
    head = destination.arrived(marker).content.partition(b"\r\n\r\n")[0]
    assert head.lower().count(b"x-scan-decision") == 1
    assert b"fine" not in head and b"folded" not in head
    assert b"X-Scanned: kept" in head


# --- bytes ---


def content_of(kind: str, marker: str) -> bytes:
    match kind:
        case "8 bit":
            return mail(marker, "X-8: gr\u00fc\u00df", body=bytes(range(128, 256)) * 7 + b"\r\n")
        case "long lines":
            return mail(marker, body=b"x" * 100_000 + b"\r\n" + b".y" * 50_000 + b"\r\n\r\n" + b"z" * 1000 + b"\r\n")
        case "dots":
            return mail(marker, body=b".\r\n..\r\n...\r\n.x\r\n\r\n.\r\n")
        case "empty body":
            return mail(marker, body=b"")
        case "no body":
            return mail(marker)[: -len(b"\r\nHello\r\n")]
        case "blank lines at the end":
            return mail(marker, body=b"\r\n\r\n \r\n\t\r\n\r\n")
        case "50 MiB":  # including the Received field that the Postfix in front adds
            line = b".%s\r\n" % (b"0123456789" * 7)
            content = mail(marker, body=line * (50 * MiB // len(line) - 20))
            return content + b"x" * (50 * MiB - 400 - len(content) - 2) + b"\r\n"
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "8 bit",
        "long lines",
        "dots",
        "empty body",
        "no body",
        "blank lines at the end",
        pytest.param("50 MiB", marks=pytest.mark.long),
    ],
)
def test_mail_arrives_byte_for_byte(installed, ports, postfix, destination, marker, kind):
    """Through Postfix, bridge, service and Postfix again, nothing changes but the fields added in front."""
    content = content_of(kind, marker)
    assert send(ports.proxy_front, content, mail=["BODY=8BITMIME"]).startswith("250")
    assert set(added_fields(destination.arrived(marker).content, content)) <= {"Received", *STAMPED}


def test_mail_over_50_mib_is_552(installed, ports, postfix, destination, marker):
    """With SIZE= immediately, without it after the dot; the Postfix in front would have accepted it."""
    content = mail(marker, body=(b"x" * 998 + b"\r\n") * (50 * MiB // 1000 + 1))
    assert send(ports.proxy_front, b"", mail=[f"SIZE={50 * MiB + 1}"]).startswith("552 5.3.4 ")
    assert send(ports.proxy_front, content).startswith("552 5.3.4 ")
    assert nothing_arrived(postfix, destination, marker)


def test_envelope_goes_on_as_it_came(installed, ports, postfix, destination, marker):
    """DSN parameters keep their case and reach the last server."""
    reply = send(
        ports.proxy_front, mail(marker), sender="",
        mail=["RET=HDRS", "ENVID=QQ314159+2Bx"], recipient="Some.One@example.net",
        rcpt=["NOTIFY=SUCCESS,FAILURE", "ORCPT=rfc822;Carol+2Bx@Example.com"],
    )  # fmt: skip
    assert reply.startswith("250")
    envelope = b"\n".join(destination.arrived(marker).commands)
    assert re.search(rb"^MAIL FROM:<> .*ENVID=QQ314159\+2Bx RET=HDRS", envelope, re.M), envelope
    assert b"RCPT TO:<Some.One@example.net> ORCPT=rfc822;Carol+2Bx@Example.com NOTIFY=SUCCESS,FAILURE" in envelope


def test_internationalized_mail_passes(scripted, ports, postfix, destination, marker):
    """SMTPUTF8: addresses and header fields in UTF-8."""
    content = mail(marker, "X-Utf8: \u6587\u5b57")
    sender, recipient = "j\u00f6rg@b\u00fccher.example", "\u7528\u6237@example.net"
    options = ["SMTPUTF8", "BODY=8BITMIME"]
    assert send(ports.scripted_front, content, sender=sender, recipient=recipient, mail=options).startswith("250")
    arrived = destination.arrived(marker)
    assert arrived.content.endswith(content)
    assert f"RCPT TO:<{recipient}>".encode() in b"\n".join(arrived.commands)
    data = scripted.scanner.submissions[0].parameters["borderMtaData"]
    assert (data["envelopeFrom"], data["envelopeRecipients"]) == (sender, [recipient])


# --- trouble ---


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the bridge gives up


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(200, result())[:-10])
    await writer.drain()
    writer.close()


TROUBLE = {
    "closes the connection": (close, "451 4.3.0 "),
    "cuts its answer off": (cut_off, "451 4.3.0 "),
    "speaks no HTTP": (b"220 I am a mail server\r\n", "451 4.3.0 "),
    "answers HTML": (answer(200, b"<html><h1>Welcome</h1></html>"), "451 4.3.0 "),
    "answers a list": (answer(200, b"[1, 2]"), "451 4.3.0 "),
    "answers nothing": (answer(200), "451 4.3.0 "),
    "redirects": (answer(307, b"", "Location: http://127.0.0.1:1/"), "451 4.3.0 "),
    "fails": (answer(500, b'{"error": "internal", "message": "secret detail"}'), "451 4.3.0 "),
    "refuses the token": (answer(401, b'{"error": "unauthorized"}'), "451 4.3.5 "),
    "finds it too large": (answer(413, b'{"error": "too large"}'), "552 5.3.4 "),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_scanner_that_fails(scripted, ports, postfix, destination, marker, trouble):
    """Whatever the scanner does, the client keeps its mail, reads no internals, and may send it again."""
    scripted.scanner.reply, expected = TROUBLE[trouble]
    reply = send(ports.scripted_front, mail(marker))
    assert reply.startswith(expected), reply
    assert "secret" not in reply and "127.0.0.1" not in reply
    assert nothing_arrived(postfix, destination, marker)
    scripted.scanner.reply = answer(200, result())
    assert send(ports.scripted_front, mail(marker)).startswith("250")
    destination.arrived(marker)


def test_scanner_that_hangs_is_given_up_at_the_deadline(scripted, ports, postfix, destination, marker):
    """The listener's deadline ends the wait long before Postfix would give up."""
    scripted.scanner.reply = hang
    assert send(ports.hurried_front, mail(marker)).startswith("451 4.4.7 ")
    assert nothing_arrived(postfix, destination, marker)


def test_stopped_service_is_451_until_it_is_back(installed, ports, postfix, destination, marker):
    """Nothing listens at the scanner's address."""
    installed.service.stop()
    try:
        assert send(ports.proxy_front, mail(marker)).startswith("451 4.3.0 ")
        assert nothing_arrived(postfix, destination, marker)
    finally:
        installed.service.start()
    until(lambda: send(ports.proxy_front, mail(marker)).startswith("250"), "the bridge to reach the service again")
    destination.arrived(marker)


@pytest.mark.long
def test_bridge_killed_under_load_loses_no_accepted_mail(installed, ports, postfix, destination, marker):
    """kill -9: Postfix answers 451 itself; every mail that a client saw accepted has arrived."""
    accepted: list[str] = []
    over = threading.Event()

    def client(number: int) -> None:
        for count in itertools.count():
            if over.is_set():
                return
            word = f"{marker}c{number}n{count}e"
            if send(ports.proxy_front, mail(word)).startswith("250"):
                accepted.append(word)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, number) for number in range(4)]
        try:
            for _ in range(2):
                goal = len(accepted) + 20
                until(lambda goal=goal: len(accepted) >= goal, "20 more mails")
                installed.bridge.kill()
                assert send(ports.proxy_front, mail(marker + "down")).startswith("451 4.3.0 ")
                installed.bridge.start()
            goal = len(accepted) + 20
            until(lambda: len(accepted) >= goal, "mails after the restart")
        finally:
            over.set()
        for future in clients:
            future.result()
    for word in accepted:
        until(lambda word=word: destination.find(word), f"{word} to arrive")
    assert nothing_arrived(postfix, destination, marker + "down")


def test_saturated_bridge_refuses_before_the_content_travels(scripted, ports, postfix, destination, marker):
    """With all 20 slots taken the next client receives 451 4.3.2 before DATA; the 20 are served in the end."""
    release = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200, result()))

    async def let_go() -> None:
        release.set()

    scripted.scanner.reply = wait
    before = refused_at_mail(scripted.admin_port)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        clients = [pool.submit(send, ports.scripted_front, mail(f"{marker}n{n}e")) for n in range(20)]
        try:
            until(lambda: scripted.scanner.in_flight == 20, "20 mails to be in processing")
            assert send(ports.scripted_front, mail(marker + "over")).startswith("451 4.3.2 ")
            assert refused_at_mail(scripted.admin_port) == before + 1
        finally:
            scripted.background.run(let_go())
        assert all(client.result().startswith("250") for client in clients)
    for number in range(20):
        destination.arrived(f"{marker}n{number}e")
    assert nothing_arrived(postfix, destination, marker + "over")


def refused_at_mail(admin_port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{admin_port}/metrics", timeout=60) as page:
        text = page.read().decode()
    found = re.search(r'^scanbridge_saturated_replies_total\{listener="proxy",stage="mail"\} (\S+)', text, re.M)
    assert found, text
    return float(found[1])


def test_client_that_disconnects_in_the_middle_leaves_no_mail(scripted, ports, postfix, destination, marker):
    """No final dot, no mail."""
    with socket.create_connection(("127.0.0.1", ports.scripted_front), timeout=60) as client:
        client.sendall(b"EHLO x\r\n")
        client.sendall(b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n")
        until(lambda: b"354" in client.recv(4096), "354")
        client.sendall(mail(marker))
    postfix.logged(r"lost connection after DATA")
    assert nothing_arrived(postfix, destination, marker)
    assert not scripted.scanner.submissions


# --- number ---


def test_120_mails_of_10_clients_all_arrive(installed, ports, postfix, destination, marker):
    """smtp-source, as fast as it can."""
    command = [str(find("smtp-source")), "-s", "10", "-m", "120", "-l", "4000", "-S", marker]
    command += ["-f", "a@example.org", "-t", "b@example.net", f"127.0.0.1:{ports.proxy_front}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    until(lambda: len(destination.find(marker)) >= 120, "120 mails")
    assert nothing_arrived(postfix, destination, "no such mail")
    assert len(destination.find(marker)) == 120


def test_every_port_of_the_chain_is_ours(installed, scripted, ports):
    """The machine's own mail server is not involved."""
    assert all(is_listening(getattr(ports, name)) for name in ports.__dataclass_fields__)
