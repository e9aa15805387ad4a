"""ICAP: a real c-icap with a real clamd behind it, and servers that lie."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.service.analysis.icap import Response, findings
from tests.processor_time import is_linear
from tests.service.conftest import running_c_icap
from tests.service.lying_server import LyingServer, hasty
from tests.service.service_kit import CONFIG, EICAR, attached, command, mail, service, zipped
from tests.service.tls_proxy import tls_proxy

MIB = 1024 * 1024


def config(port: int, name: str = "avscan", **settings: object) -> str:
    more = "".join(f", {key}: {value}" for key, value in settings.items())
    return CONFIG + f"analyzers: {{mime: null, icap: {{url: 'icap://127.0.0.1:{port}/{name}'{more}}}}}\n"


def has_malware(answer: dict) -> bool:
    return any(tag.startswith("malware:lab.eicar") for tag in answer["tags"])


def test_a_real_scanner_gets_one_object_at_a_time(tmp_path, c_icap):
    """The scanner finds EICAR in an archive and behind the preview; clean objects pass, whatever their size."""
    with service(tmp_path, config(c_icap.port)) as running:
        assert running.submit(mail(b"Hello\r\n")).json["tags"] == []
        found = running.submit(attached(zipped(("eicar.com", EICAR)))).json
        assert (found["decision"], has_malware(found)) == ("quarantine", True), found["tags"]
        assert running.submit(attached(os.urandom(MIB))).json["tags"] == []
        late = running.submit(attached(os.urandom(MIB) + EICAR + b"\n")).json
        assert has_malware(late), late["tags"]


def test_a_server_that_returns_objects_instead_of_204(tmp_path, c_icap):
    """An object that comes back unchanged is clean; one that the scanner has emptied or replaced is blocked."""
    with service(tmp_path, config(c_icap.port, "virus_scan")) as running:
        assert running.submit(attached(os.urandom(MIB))).json["tags"] == []
        answer = running.submit(attached(zipped(("x", os.urandom(MIB)), ("eicar.com", EICAR)))).json
        assert (answer["decision"], answer["tags"]) == ("quarantine", ["icap:blocked"])
    (tmp_path / "echo").mkdir()
    with service(tmp_path / "echo", config(c_icap.port, "echo")) as running:
        assert running.submit(attached(os.urandom(MIB))).json["tags"] == []


def test_a_frozen_or_killed_server(tmp_path, clamd):
    """Required: undecided. Not required: delivered with a tag. Both within the timeout, and it recovers."""
    (tmp_path / "lenient").mkdir()
    with (
        running_c_icap(clamd.port) as server,
        service(tmp_path, config(server.port, timeout="4s")) as strict,
        service(tmp_path / "lenient", config(server.port, timeout="1s", required="false")) as lenient,
    ):
        assert strict.submit(mail()).json["decision"] == "deliver"
        for fault in (server.frozen, _killed(server)):
            with fault():
                start = time.monotonic()
                answer = strict.submit(mail()).json
                assert time.monotonic() - start < 50
                assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:icap", "incomplete"])
                answer = lenient.submit(mail()).json
                assert (answer["decision"], answer["tags"]) == ("deliver", ["failed:icap"])
            if fault == server.frozen:
                assert strict.submit(mail()).json["decision"] == "deliver"
        assert b'scanservice_analyzer_failures_total{analyzer="icap"} 2.0' in strict.request("GET", "/metrics").body


def _killed(server):
    @contextmanager
    def kill() -> Iterator[None]:
        server.kill(0.2)
        yield

    return kill


def test_limits(tmp_path, c_icap):
    """Objects that are too large or too many are not sent, and the mail is undecided."""
    with service(tmp_path, config(c_icap.port, max_size="1MiB", max_objects=2)) as running:
        assert running.submit(attached(b"x" * MIB + b"x")).json["tags"] == ["incomplete", "limit:icap"]
        many = b"".join(b"--x\r\n\r\n%d\r\n" % number for number in range(3)) + b"--x--\r\n"
        kind = {"Content_Type": 'multipart/mixed; boundary="x"'}
        assert running.submit(mail(many, **kind)).json["tags"] == ["incomplete", "limit:icap"]


class Liar(LyingServer):
    options = b"Methods: RESPMOD\r\nPreview: 0\r\nAllow: 204\r\n"

    def answer_to(self, request: bytes) -> bytes:
        if not request.startswith(b"OPTIONS"):
            return self.reply
        return b"ICAP/1.0 200 OK\r\n" + self.options + b"Encapsulated: null-body=0\r\n\r\n"


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    server = Liar()
    with service(tmp_path_factory.mktemp("liar"), config(server.port, timeout="3s")) as running:
        server.running = running
        yield server
    server.close()


_PAGE = b"ICAP/1.0 200 OK\r\nEncapsulated: res-hdr=0, res-body=19\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "endless"),
    [
        (b"", b""),  # nothing at all
        (b"nonsense\r\n\r\n", b""),
        (b"ICAP/1.0 404 No\r\n\r\n", b""),
        (b"ICAP/1.0 503 Busy\r\n\r\n", b""),
        (b"ICAP/1.0 200 OK\r\n\r\n", b""),  # changed, but without an object
        (b"ICAP/1.0 100 Continue\r\n\r\n" * 3, b""),
        (b"ICAP/1.0 204 No\r\nno field\r\n\r\n", b""),
        (b"ICAP/1.0 200 OK\r\nEncapsulated: res-hdr=0, res-body=99999999999\r\n\r\n", b"x" * 1000),
        (b"ICAP/1.0 200 OK\r\nEncapsulated: res-hdr=0, res-body=-5\r\n\r\n", b"x" * 1000),
        (b"ICAP/1.0 200 OK\r\nEncapsulated: nothing\r\n\r\n", b""),
        (_PAGE + b"fffffff\r\n", b"x" * 1000),  # a chunk of 256 MiB
        (_PAGE + b"-5\r\nx\r\n", b""),
        (_PAGE + b"5\r\nabcdefgh\r\n0\r\n\r\n", b""),
        (_PAGE, b"1\r\nx\r\n"),  # chunks without end
        (_PAGE + b"0\r\n", b"Trailer: x\r\n"),
        (b"ICAP/1.0 204 No\r\n", b"X-A: b\r\n"),  # fields without end
        (b"ICAP/1.0 204 No\r\nX-A: ", b"b" * 1000),  # a field without end
        (b"", b"x" * 1000),  # a status line without end
    ],
)
def test_hostile_answers_leave_mail_undecided(liar, reply, endless):
    """No answer that is wrong or has no end counts as clean, and each is given up within the timeout."""
    liar.reply, liar.endless = reply, endless
    start = time.monotonic()
    if not reply and not endless:
        liar.reply = b"ICAP/1.0 "  # and then nothing
    answer = liar.running.submit(mail()).json
    assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:icap", "incomplete"])
    assert time.monotonic() - start < 50


def test_an_answer_that_nobody_asked_for_is_not_used(liar):
    """A second answer on a connection is not taken for the answer to the next object."""
    liar.endless = b""
    liar.reply = b"ICAP/1.0 204 No\r\n\r\n" * 2
    assert liar.running.submit(mail()).json["decision"] == "deliver"
    liar.reply = b"ICAP/1.0 200 OK\r\nX-Infection-Found: Type=0; Threat=Bad;\r\n\r\n"
    assert liar.running.submit(mail()).json["tags"] == ["malware:bad"]


def test_a_late_second_answer_was_taken_for_the_next_mails(liar):
    """The server repeats its answer when the next request arrives."""
    clean, bad = b"ICAP/1.0 204 No\r\n\r\n", b"ICAP/1.0 200 OK\r\nX-Infection-Found: Type=0; Threat=Bad;\r\n\r\n"
    liar.endless, liar.reply = b"", clean
    assert liar.running.submit(mail()).json["decision"] == "deliver"
    connections = liar.connections
    liar.reply = bad
    assert liar.running.submit(mail()).json["tags"] == ["malware:bad"]
    assert liar.connections > connections


def test_a_second_answer_was_taken_for_the_next_object_of_the_mail(liar):
    """Connections were used again within a mail: who sent a file that is answered twice could hide the next one."""
    liar.endless, liar.reply = b"", b"ICAP/1.0 204 No\r\n\r\n"
    connections, requests = liar.connections, len(liar.requests)
    many = b"".join(b"--x\r\n\r\n%d\r\n" % number for number in range(9)) + b"--x--\r\n"
    assert liar.running.submit(mail(many, Content_Type='multipart/mixed; boundary="x"')).json["decision"] == "deliver"
    asked = [request for request in liar.requests[requests:] if request.startswith(b"RESPMOD")]
    assert len(asked) == 9 and liar.connections - connections >= 9


@pytest.mark.parametrize("name", [b"=?utf-7?b?KzJBQS0=?=", b"=?unicode-escape?q?=5Cud800?="])
def test_a_sender_switched_icap_off_with_half_a_character_in_a_file_name(liar, tmp_path, name):
    """Python's UTF-7 and escapes yield lone surrogates, which cannot be written into a URL: the file was not sent."""
    liar.endless, liar.reply = b"", b"ICAP/1.0 200 OK\r\nX-Infection-Found: Type=0; Threat=Bad;\r\n\r\n"
    content = mail(b"x", Content_Type="application/pdf", Content_Disposition=f'attachment; filename="{name.decode()}"')
    with service(tmp_path, config(liar.port, required="false")) as running:
        assert running.submit(content).json["tags"] == ["malware:bad"]


_CLEAN = b"ICAP/1.0 204 No\r\n\r\n"
_BAD = b"ICAP/1.0 200 OK\r\nX-Infection-Found: Type=0; Threat=Bad;\r\n\r\n"
_MORE = b"ICAP/1.0 100 Continue\r\n\r\n"


class WithoutPreview(Liar):
    options = b"Methods: RESPMOD\r\nAllow: 204\r\n"


@pytest.mark.parametrize(
    ("kind", "reply", "decision", "tags"),
    [
        (WithoutPreview, _CLEAN, "undecided", ["failed:icap", "incomplete"]),
        pytest.param(WithoutPreview, _BAD, "quarantine", ["malware:bad"], marks=pytest.mark.long),
        (Liar, _MORE + _CLEAN, "undecided", ["failed:icap", "incomplete"]),
        (Liar, _MORE + _BAD, "quarantine", ["malware:bad"]),
        (Liar, _CLEAN, "deliver", []),  # it asked for this preview
    ],
)
def test_a_server_that_had_not_read_the_object_called_it_clean(tmp_path, kind, reply, decision, tags):
    """Its 204 counted although the rest of the object could not be sent. What it found counts."""
    with hasty(reply, kind) as server, service(tmp_path, config(server.port)) as running:
        answer = running.submit(attached(bytes(8 * MIB))).json
        assert (answer["decision"], answer["tags"]) == (decision, tags)


def test_one_long_field_stopped_the_service_for_a_minute():
    """A word of 64 KiB where `Type=0; Threat=name` is expected: a pattern took time in proportion to its square."""

    def work(text: str) -> None:
        findings(Response(204, {"x-infection-found": [text]}), "")

    assert is_linear(work, "a" * 16_000, "a" * 64_000)


def test_reqmod_and_header_injection(liar, tmp_path):
    """A service that offers REQMOD only gets uploads; names and types of a mail cannot add lines to a request."""
    liar.options, liar.reply, liar.endless = b"Methods: REQMOD\r\n", b"ICAP/1.0 204 No\r\n\r\n", b""
    liar.requests.clear()
    content = attached(b"x", "a\tb ICAP\u00fc%0d%0a.exe", "text/x\tEvil: y")
    with service(tmp_path, config(liar.port)) as running:
        assert running.submit(content).json["tags"] == []
    sent = b"".join(liar.requests)
    assert b"REQMOD icap://" in sent and b"RESPMOD" not in sent and b"Preview" not in sent and b"Allow" not in sent
    assert b"Evil" not in sent
    for request in re.findall(rb"Encapsulated: req-hdr=0, req-body=(\d+)\r\n\r\n(.*?\r\n\r\n)", sent, re.DOTALL):
        assert len(request[1]) == int(request[0])


@pytest.mark.parametrize(
    ("fields", "tags"),
    [
        ({"x-infection-found": ["Type=0; Resolution=2; Threat=Win.Worm;"]}, {"malware:win.worm"}),
        ({"x-infection-found": ["Type=1; Resolution=2; Threat=Rule 5;"]}, {"icap:policy"}),
        ({"x-infection-found": ["Type=2; Resolution=0; Threat=Encrypted;"]}, {"icap:container"}),
        ({"x-infection-found": ["Type=0; Threat=Heuristics.Limits.Exceeded.MaxFiles;"]}, {"icap:container"}),
        ({"x-infection-found": ["nonsense"]}, {"malware:icap"}),
        ({"x-virus-id": ["Eicar-Test"]}, {"malware:eicar-test"}),
        ({"x-virus-id": ["no threats"]}, set()),
        ({"x-violations-found": ["1\na.exe\nEicar\n11101\n0"]}, {"malware:eicar"}),
        (
            {"x-violations-found": ["26" + "\na\nHeuristics.Encrypted.Zip\n1\n0" * 25 + "\na\nEicar\n1\n0"]},
            {"icap:container", "malware:eicar"},
        ),
        ({"x-violations-found": ["0"]}, set()),
        ({"x-blocked": ["true"]}, {"icap:blocked"}),
    ],
)
def test_fields_that_name_what_was_found(fields, tags):
    """Each vendor has its own."""
    assert findings(Response(204, fields), "") == tags


def encrypted(port: int, **settings: object) -> str:
    return config(port, **settings).replace("icap://", "icaps://")


def test_a_real_scanner_behind_tls(tmp_path, c_icap):
    """Objects of any size pass through TLS, in both directions."""
    with (
        tls_proxy(tmp_path, c_icap.port) as proxy,
        service(tmp_path, encrypted(proxy.port, ca_file="ca.pem")) as running,
    ):
        assert running.submit(mail(b"Hello\r\n")).json["tags"] == []
        late = running.submit(attached(os.urandom(MIB) + EICAR + b"\n")).json
        assert (late["decision"], has_malware(late)) == ("quarantine", True), late["tags"]
        assert running.submit(attached(os.urandom(4 * MIB))).json["tags"] == []
        assert proxy.passed_on > 5 * MIB
        assert checked(tmp_path, encrypted(proxy.port, ca_file="ca.pem")).startswith("OK: ")
        assert "icap cannot be reached" in checked(tmp_path, encrypted(proxy.port))


def checked(directory: Path, text: str) -> str:
    (directory / "service.yml").write_text(text)
    (directory / "service.yml").chmod(0o600)  # it has a token
    done = command(directory, "check")
    return done.stdout + done.stderr


@pytest.mark.parametrize(("name", "ca_file"), [("other.example", "ca.pem"), ("127.0.0.1", None)])
def test_nothing_is_sent_to_a_server_without_the_right_certificate(tmp_path, c_icap, name, ca_file):
    """A certificate of another name, or of an authority that nobody trusts."""
    trust = {"ca_file": ca_file} if ca_file else {}
    with (
        tls_proxy(tmp_path, c_icap.port, name) as proxy,
        service(tmp_path, encrypted(proxy.port, timeout="5s", **trust)) as running,
    ):
        answer = running.submit(attached(b"a file")).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:icap", "incomplete"])
        assert proxy.passed_on == 0


def test_a_server_without_tls_gets_no_mail(tmp_path, c_icap):
    """`icaps://` never falls back to an unencrypted connection."""
    with service(tmp_path, encrypted(c_icap.port, timeout="5s")) as running:
        answer = running.submit(attached(b"a file")).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:icap", "incomplete"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("url: 'icap://127.0.0.1/x', ca_file: ca.pem", "ca_file has no effect without icaps://"),
        ("url: 'icaps://127.0.0.1/x', ca_file: missing.pem", "ca_file"),
        ("url: 'icaps://user@127.0.0.1/x'", "user name"),
        ("url: 'https://127.0.0.1/x'", "icaps://"),
    ],
)
def test_mistakes_in_the_settings_of_tls_are_named(tmp_path, settings, problem):
    """Before the service starts."""
    (tmp_path / "service.yml").write_text(CONFIG + f"analyzers: {{icap: {{{settings}}}}}\n")
    done = command(tmp_path, "check")
    assert done.returncode != 0 and problem in done.stdout + done.stderr
