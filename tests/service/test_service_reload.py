"""SIGHUP: a running service takes a new configuration, and no request fails because of it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from bridge.cli import main, service_reload
from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint
from tests.long_cases import few
from tests.requirements import need
from tests.rewriting import rewrite
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    TOKEN,
    Lists,
    ServiceProcess,
    attached,
    free_port,
    mail,
    multipart,
    parameters_json,
    submit_head,
    wait_for,
    zipped,
)

NEW_TOKEN = "fedcba9876543210" * 4
BOTH = CONFIG.replace(f"token: {TOKEN}", f"token: [{TOKEN}, {NEW_TOKEN}]")
OK = "reload succeeded"
FAILED = "reload failed, keeping the old configuration"


class Process(ServiceProcess):
    """A service that is asked to reload, and says when it has."""

    def __init__(self, directory: Path, text: str = CONFIG) -> None:
        (directory / "service.yml").write_text(text)
        super().__init__(directory)

    def __enter__(self) -> Process:
        try:
            self.wait()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self.end() == 0

    def hang_up(self, text: str, outcome: str = OK) -> str:
        """Write a configuration, send SIGHUP, and return what was logged until the outcome was."""
        before = len(self.log())
        rewrite(self.directory / "service.yml", text)
        self.process.send_signal(signal.SIGHUP)
        wait_for(lambda: outcome in self.log()[before:] or (outcome == OK and FAILED in self.log()[before:]))
        assert outcome in self.log()[before:], self.log()[before:]
        return self.log()[before:]


class Load:
    """Threads that send requests without a pause, each on one connection, until the `with` block ends."""

    def __init__(self, service: ServiceProcess, count: int = 3, context: ssl.SSLContext | None = None) -> None:
        self._service = service
        self._context = context
        self._ended = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(count)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _send(self, number: int) -> None:
        large = attached(os.urandom(200_000))
        head = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "multipart/form-data; boundary=part-of-a-test"}
        connection = self._connect()
        round_ = 0
        while not self._ended.is_set():
            round_ += 1
            body = multipart(parameters_json(), large if round_ % 4 == 0 else mail())
            try:
                if number == 0 or round_ % 10 == 0:  # new connections too
                    connection.close()
                    connection = self._connect()
                connection.request("POST", "/v1/messageQueue/submitEmail", body, head)
                answer = connection.getresponse()
                if answer.status != 200:
                    self.failures.append(f"{answer.status} {answer.read()!r}")
                answer.read()
            except (OSError, http.client.HTTPException) as exc:
                self.failures.append(repr(exc))
                connection = self._connect()
            self.answered += 1
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=DEADLINE_S)
        return http.client.HTTPSConnection("127.0.0.1", self._service.port, timeout=DEADLINE_S, context=self._context)


def more(text: str, answered: Load, count: int = 20) -> None:
    """Wait for further answers."""
    goal = answered.answered + count
    wait_for(lambda: answered.answered >= goal or answered.failures)
    assert not answered.failures, text


def test_under_load_no_request_fails_during_reloads(tmp_path):
    """Tokens, lists, decisions, analyzers and limits change five times while mail is scanned without a pause."""
    variants = [
        BOTH,
        BOTH + "decisions: {otherwise: quarantine}\n",
        BOTH + "lists: [{name: partners, category: sender}]\nanalyzers: {mime: {}, urls: null, processes: 1}\n",
        BOTH.replace("restApi: {}", "restApi: ").replace("guard: {", "guard: {mainWorkerCount: 7, "),
        BOTH + "guard: broken\n",
    ]
    with Process(tmp_path) as service, Load(service) as load:
        more("before", load)
        for text in variants:
            service.hang_up(text, FAILED if "broken" in text else OK)
            more(text, load)
        assert not load.failures
        text = service.request("GET", "/metrics").body.decode()
        assert "scanservice_reload_success 0.0" in text  # the last one was broken
        decisions = sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("scanservice_decisions_total{"))
        assert decisions >= load.answered - 3, "a reload must not reset the counters"


LINKS = mail(b"see http://192.0.2.1/ and http://shop@example.net/\r\n")
NESTED = attached(zipped(("inner.zip", zipped(("a.txt", b"x")))), "outer.zip")


@dataclass(frozen=True)
class Part:
    """A part of the configuration: what it adds, and what a client then sees, without and with it."""

    text: str  # added to CONFIG
    seen: Callable[[ServiceProcess], object]
    without: object
    then: object


def tags_of(content: bytes) -> Callable[[ServiceProcess], object]:
    return lambda service: set(service.submit(content).json["tags"]) & {"url:ip-host", "url:userinfo", *LIMITS}


LIMITS = ("limit:archive-depth", "failed:clamav")
PARTS = {
    "decisions": Part(
        "decisions: {otherwise: quarantine}\n", lambda s: s.submit(mail()).json["decision"], "deliver", "quarantine"
    ),
    "lists": Part(
        "lists: [{name: partners, category: sender}]\n",
        lambda s: Lists(s).call("listEntries", {"listName": "partners"}).status,
        404,
        200,
    ),
    "an analyzer of the service": Part(
        "analyzers: {urls: null}\n", tags_of(LINKS), {"url:ip-host", "url:userinfo"}, set()
    ),
    "an analyzer in other processes": Part(
        "analyzers: {mime: {max_archive_depth: 1, required: false}}\n",
        tags_of(NESTED),
        set(),
        {"limit:archive-depth"},
    ),
    "an engine": Part(
        f"analyzers: {{clamav: {{address: '127.0.0.1:{free_port()}', required: false}}}}\n",
        tags_of(mail()),
        set(),
        {"failed:clamav"},
    ),
}


@pytest.mark.parametrize("name", few(PARTS, 1))
def test_each_part_can_be_added_and_removed_under_load(tmp_path, name):
    """Of a service on its own, which analyzes mail itself. The first request after the reload sees the change."""
    part = PARTS[name]
    with Process(tmp_path) as service, Load(service) as load:
        for text, seen in ((part.text, part.then), ("", part.without), (part.text, part.then)):
            more("before", load, 5)
            service.hang_up(CONFIG + text)
            assert part.seen(service) == seen
        more("after", load, 5)


def test_tokens_are_added_and_removed_under_load(tmp_path):
    """The token in use stays valid, and the other one does not outlive its reload."""
    with Process(tmp_path) as service, Load(service) as load:
        for text, status in ((BOTH, 200), (CONFIG, 401), (BOTH, 200)):
            service.hang_up(text)
            assert service.submit(mail(), NEW_TOKEN).status == status
            more(text, load, 5)


def test_each_part_of_the_new_configuration_is_used(tmp_path):
    """Tokens, decisions, lists and permissions, by the first request after the reload."""
    with Process(tmp_path) as service:
        assert service.submit(mail(), NEW_TOKEN).status == 401
        service.hang_up(BOTH + "decisions: {otherwise: quarantine}\nlists: [{name: partners, category: sender}]\n")
        assert service.submit(mail(), NEW_TOKEN).json["decision"] == "quarantine"
        assert service.submit(mail()).status == 200
        lists = Lists(service)
        assert lists.add("partners", "a@example.org").status == 200
        wait_for(lambda: "list:partners" in service.submit(mail()).json["tags"])
        service.hang_up(CONFIG.replace(TOKEN, NEW_TOKEN))
        assert service.submit(mail()).status == 401
        assert service.submit(mail(), NEW_TOKEN).json["decision"] == "deliver"
        assert lists.add("partners", "b@example.org").json["error"] == "list_not_found"
        service.hang_up(CONFIG.replace("{restApi: {}}", "{}"))
        assert service.submit(mail()).json["error"] == "scan_source_disabled"
        wait_for(lambda: "service.yml:3: guard.scanSources: scanning is disabled" in service.log())
        assert service.request("GET", "/readyz").status == 503


def test_a_request_that_began_before_is_answered_with_its_own_configuration(tmp_path):
    """Even if its token is no longer valid when its last byte arrives; and the old parts are then stopped."""
    body = multipart(parameters_json(), mail())
    with Process(tmp_path) as service, socket.create_connection(("127.0.0.1", service.port)) as slow:
        slow.settimeout(DEADLINE_S)
        slow.sendall(submit_head(len(body)) + body[:100])
        wait_for(lambda: b"scanservice_in_processing 1.0" in service.request("GET", "/metrics").body)
        service.hang_up(CONFIG.replace(TOKEN, NEW_TOKEN).replace("guard: {", "guard: {mainWorkerCount: 1, "))
        full = service.submit(mail(), NEW_TOKEN)
        assert (full.status, full.json["error"]) == (503, "saturated"), "both configurations share one limit"
        slow.sendall(body[100:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
        assert service.submit(mail(), NEW_TOKEN).status == 200


WRONG = [
    ("guard: {mainWorkerCount: 0}\n", "service.yml:1: guard.mainWorkerCount:"),
    ("listen: 127.0.0.1:1\n", "service.yml:1: listen: cannot be changed by a reload; restart the service"),
    (CONFIG + "tls: {cert_file: a.pem, key_file: a.pem}\n", "service.yml:9: tls: cannot be changed by a reload"),
    (CONFIG + "analyzers: {plugins: {absent: {}}}\n", "service.yml:9: analyzers.plugins.absent:"),
    (CONFIG.replace(f"token: {TOKEN}", "token_file: empty"), "service.yml:7: abby.staticApiTokens.0: token_file empty"),
    (CONFIG.replace("sqlite:///service.sqlite", "sqlite:////proc/none/x"), "cannot use the database"),
    ("[", "service.yml:1: not YAML"),
    ("", "service.yml: this file is now empty; restore it"),
]


def test_a_configuration_that_cannot_be_used_changes_nothing(tmp_path):
    """The log says what is wrong and where; scans go on; and the next reload works."""
    (tmp_path / "empty").write_text("\n")
    with Process(tmp_path) as service:
        for text, said in WRONG:
            log = service.hang_up(text, said)
            assert FAILED in log
            assert "Traceback" not in log
            assert service.submit(mail()).status == 200
        service.hang_up(BOTH)
        assert service.submit(mail(), NEW_TOKEN).status == 200


def test_a_certificate_is_replaced_under_load(tmp_path):
    """New connections get the new one; a key of another certificate changes nothing."""
    authority = trustme.CA()
    first, second, third = (authority.issue_cert("127.0.0.1", f"{n}.example.org") for n in "123")

    def install(certificate: trustme.LeafCert, key: trustme.LeafCert) -> None:
        rewrite(tmp_path / "cert.pem", b"".join(blob.bytes() for blob in certificate.cert_chain_pems).decode())
        rewrite(tmp_path / "key.pem", key.private_key_pem.bytes().decode())

    def served() -> str:
        context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        plain = socket.create_connection(("127.0.0.1", service.port), timeout=DEADLINE_S)
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
            return str(tls.getpeercert()["subjectAltName"])

    install(first, first)
    text = CONFIG + "tls: {cert_file: cert.pem, key_file: key.pem}\n"
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    with Process(tmp_path, text) as service, Load(service, context=context) as load:
        assert "1.example.org" in served()
        more("first", load)
        install(second, third)
        assert "service.yml:9: tls: cert.pem and key.pem cannot be used: the key does not belong" in service.hang_up(
            text, FAILED
        )
        assert "1.example.org" in served()
        install(second, second)
        service.hang_up(text)
        assert "2.example.org" in served()
        more("second", load)
        assert not load.failures


def test_sighup_at_any_time(tmp_path):
    """During the start, many at once, and during the stop: none ends the service."""
    (tmp_path / "service.yml").write_text(CONFIG)
    service = ServiceProcess(tmp_path)
    try:
        status = Path(f"/proc/{service.process.pid}/status")

        def caught() -> int:
            return int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)

        wait_for(lambda: caught() & 1 << signal.SIGHUP - 1)
        service.process.send_signal(signal.SIGHUP)
        service.wait()
        wait_for(lambda: OK in service.log())
        for _ in range(50):
            service.process.send_signal(signal.SIGHUP)
        wait_for(lambda: service.log().count(OK) >= 2)
        assert service.submit(mail()).status == 200
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            body = multipart(parameters_json(), mail())
            slow.settimeout(DEADLINE_S)
            slow.sendall(submit_head(len(body)))
            wait_for(lambda: b"scanservice_in_processing 1.0" in service.request("GET", "/metrics").body)
            service.process.send_signal(signal.SIGTERM)
            assert "stopping" in service.process.stdout.readline()
            service.process.send_signal(signal.SIGHUP)
            slow.sendall(body)
            assert slow.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        code = service.end()
    assert code == 0


def test_systemd_is_told_of_a_reload(tmp_path, monkeypatch):
    """RELOADING=1 with the time, then READY=1; also after a reload that failed."""
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(place))
        listener.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place))
        with Process(tmp_path) as service:
            assert listener.recv(1000) == b"READY=1"
            for text, outcome in ((BOTH, OK), ("[", FAILED)):
                service.hang_up(text, outcome)
                assert listener.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
                assert listener.recv(1000) == b"READY=1"
                assert listener.recv(1000).startswith(b"STATUS=running")


def test_old_parts_do_not_pile_up(tmp_path):
    """After many reloads the process has as many threads and files as after one."""
    with Process(tmp_path) as service:
        place = Path(f"/proc/{service.process.pid}")

        def used() -> tuple[int, int]:
            return len(list((place / "task").iterdir())), len(list((place / "fd").iterdir()))

        for _ in range(3):
            service.hang_up(CONFIG)
        wait_for(lambda: service.submit(mail()).status == 200)
        threads, files = used()
        for _ in range(10):
            service.hang_up(CONFIG)
        wait_for(lambda: used()[0] <= threads + 2 and used()[1] <= files + 4)
        assert used()[0] <= threads + 2
        assert used()[1] <= files + 4


def test_a_reload_keeps_the_socket(tmp_path):
    """Also with a fixed port, which the old configuration still uses."""
    text = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
    with Process(tmp_path, text) as service:
        service.hang_up(text + "decisions: {otherwise: quarantine}\n")
        assert service.submit(mail()).json["decision"] == "quarantine"


def ask_for_reload(service: ServiceProcess, *options: str) -> Result:
    return CliRunner().invoke(main, ["service", "reload", "-c", str(service.directory / "service.yml"), *options])


def test_the_command_reloads_the_service_of_its_configuration(tmp_path: Path) -> None:
    """With two services on one machine, the documented `pgrep -f` found both."""
    first, second = tmp_path / "first", tmp_path / "second"
    texts = [CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}") for _ in range(2)]
    for directory in (first, second):
        directory.mkdir()
    with Process(first, texts[0]) as one, Process(second, texts[1]) as other:
        rewrite(second / "service.yml", texts[1].replace(f"token: {TOKEN}", f"token: [{TOKEN}, {NEW_TOKEN}]"))
        done = ask_for_reload(other)
        assert (done.exit_code, done.stdout) == (0, "the new configuration is in use\n"), done.output
        assert OK in other.log() and OK not in one.log()
        rewrite(second / "service.yml", texts[1] + "tls: {cert_file: nothing, key_file: nothing}\n")
        assert ask_for_reload(other).exit_code == 1


def test_the_command_reports_why_nothing_was_reloaded(tmp_path: Path) -> None:
    """A file with mistakes, a failed reload, and no service at all each have their own message."""
    text = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
    with Process(tmp_path, text) as service:
        rewrite(tmp_path / "service.yml", f"{text}nonsense: 1\n")
        assert ask_for_reload(service).exit_code == 78
        elsewhere = re.sub(r"(?m)^database: .*$", "database: sqlite:////proc/nothing/x.sqlite", text)
        rewrite(tmp_path / "service.yml", elsewhere)
        done = ask_for_reload(service)
        assert done.exit_code == 1 and "reload failed, keeping the old configuration" in done.stderr, done.output
    done = ask_for_reload(service)
    assert done.exit_code == 1 and "answers at 127.0.0.1:" in done.stderr and "is it running?" in done.stderr


def test_a_service_that_hung_was_said_not_to_run(tmp_path: Path) -> None:
    """It did not answer before the signal, so it got none."""
    text = CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
    with Process(tmp_path, text) as service:
        pid = service.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            done = ask_for_reload(service)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert done.exit_code == 1 and f"process {pid} (" in done.stderr, done.output
        assert "did not answer within 5 s; check its log, and restart it" in done.stderr
        assert OK not in service.log()


def test_another_program_at_the_address_is_named(tmp_path: Path) -> None:
    """It is not said to hang, and not signalled."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = tmp_path / "service.yml"
        place.write_text(CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{server.getsockname()[1]}"))

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        with ThreadPoolExecutor() as threads:
            answered = threads.submit(answer)
            done = CliRunner().invoke(main, ["service", "reload", "-c", str(place)])
            answered.result(30)
    assert done.exit_code == 1 and "is not `scanbridge service`: nothing was signalled" in done.stderr, done.output


def test_a_program_that_forwards_connections_is_not_signalled() -> None:
    """SIGHUP ends most programs, and with one of them the way to a service in a container."""
    need("perl")
    port = free_port()
    script = "my $open = IO::Socket::INET->new(Listen => 1, LocalAddr => $ARGV[0]) or die; sleep 600"
    with subprocess.Popen(["perl", "-MIO::Socket::INET", "-e", script, f"127.0.0.1:{port}"]) as forwarder:
        try:
            wait_for(lambda: port_owner.owners(Endpoint("127.0.0.1", port)) == [forwarder.pid])
            with pytest.raises(SystemExit):
                service_reload._process(Endpoint("127.0.0.1", port))
            assert forwarder.poll() is None
        finally:
            forwarder.kill()
