"""Real HTTP clients against a real service process, over http and https (see tests/service/clients)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.requirements import need
from tests.service.service_kit import CONFIG, GTUBE, ServiceProcess, mail, make_key, parameters_json

CLIENTS = Path(__file__).parent / "clients"
LINES = ["submit 200 bounce", "status 200 GREEN", "lists 200 blocked-senders", "add 200 500", "download 200 500",
         "delete 200 500", "wrong 401 unauthorized"]  # fmt: skip
DEADLINE_S = 120.0


@dataclass
class Target:
    """A service process; its client programs find what they need in the environment."""

    url: str
    environment: dict[str, str]

    @property
    def ca(self) -> str:
        return self.environment["CA"]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    """The same service twice, over http and https, with one database."""
    directory = tmp_path_factory.mktemp("clients")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(directory / "service.pem")
    )
    (directory / "mail.eml").write_bytes(mail(GTUBE))
    started: list[ServiceProcess] = []
    try:
        for tls in ("", "tls: {cert_file: service.pem, key_file: service.pem}\n"):
            (directory / "service.yml").write_text(CONFIG + tls)
            started.append(ServiceProcess(directory))
            if not tls:
                key = make_key(started[0].config)
            started[-1].wait()
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "TOKEN": "0123456789abcdef" * 4,
            "KEY": key,
            "MAIL": str(directory / "mail.eml"),
            "CA": str(directory / "ca.pem"),
            "NODE_EXTRA_CA_CERTS": str(directory / "ca.pem"),
            "LC_ALL": "C.UTF-8",
        }
        yield {
            "http": Target(f"http://localhost:{started[0].port}", environment),
            "https": Target(f"https://localhost:{started[1].port}", environment),
        }
    finally:
        codes = [process.end() for process in started]
    assert codes == [0, 0]


def run(targets: dict[str, Target], *command: str, cwd: Path = CLIENTS, **more: str) -> list[str]:
    """The lines that a client prints. Its standard error is part of a failure's text."""
    environment = {**targets["http"].environment, **more}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def urls(targets: dict[str, Target]) -> list[str]:
    return [target.url for target in targets.values()]


OPTIONS: list[tuple[str, ...]] = [
    (),
    ("--http1.0",),
    ("--http1.0", "-H", "Connection: keep-alive"),
    ("--http1.1",),
    ("--http2",),
    ("-H", "Expect: 100-continue"),
    ("-H", "Expect:"),
    ("-H", "Transfer-Encoding: chunked"),
    ("-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue"),
    ("--compressed",),
    ("--no-keepalive", "-H", "Connection: close"),
    ("--tcp-nodelay", "--limit-rate", "4M"),
    ("--tls-max", "1.2"),
]
# In `make test`: most of them without TLS.
WITH_TLS = {("--http2",), ("--tls-max", "1.2")}
_MORE_OF_THE_SAME = {("--http1.1",), ("-H", "Expect:"), ("--compressed",), ("--tcp-nodelay", "--limit-rate", "4M")}


def _in_test(options: tuple[str, ...], scheme: str) -> bool:
    return options in WITH_TLS if scheme == "https" else options not in {*_MORE_OF_THE_SAME, ("--tls-max", "1.2")}


@pytest.mark.parametrize(
    ("options", "scheme"),
    [
        pytest.param(
            options,
            scheme,
            marks=[] if _in_test(options, scheme) else pytest.mark.long,
            id=f"{' '.join(options) or 'default'}-{scheme}",
        )
        for options in OPTIONS
        for scheme in ("http", "https")
    ],
)
def test_curl(targets: dict[str, Target], scheme: str, options: tuple[str, ...]) -> None:
    """Every way in which curl can send a request."""
    need("curl", "jq", "bash")
    assert run(targets, "./curl.sh", targets[scheme].url, *options) == LINES


@pytest.mark.parametrize(
    "form",
    [
        ["-F", "email=@-"],
        ["-F", "email=@-;filename=größe.eml;type=message/rfc822"],
        ["-F", "email=<-"],
        ["-F", "email=@-", "-F", "more=1", "-F", "more=2"],
        ["-F", "email=@-", "-H", "Transfer-Encoding: chunked"],
        ["-F", "email=@-", "--http1.0"],
    ],
    ids=lambda form: " ".join(form),
)
def test_curl_reads_the_mail_from_a_pipe(targets: dict[str, Target], tmp_path: Path, form: list[str]) -> None:
    """Its length is then unknown to curl; the parameters come from a file."""
    need("curl")
    (tmp_path / "parameters.json").write_bytes(parameters_json())
    target = targets["https"]
    command = ["curl", "-sS", "--cacert", target.ca, "-H", f"Authorization: Bearer {target.environment['TOKEN']}",
               "-F", f"parameters=@{tmp_path}/parameters.json;type=application/json", *form,
               f"{target.url}/v1/messageQueue/submitEmail"]  # fmt: skip
    with subprocess.Popen(["cat", target.environment["MAIL"]], stdout=subprocess.PIPE) as pipe:
        done = subprocess.run(command, stdin=pipe.stdout, capture_output=True, timeout=DEADLINE_S, check=True)
    assert b'"decision": "bounce"' in done.stdout


def test_curl_with_http_2_only_is_disconnected(targets: dict[str, Target]) -> None:
    """The service speaks HTTP/1.1; a client that does not ask first is not left waiting."""
    need("curl")
    command = ["curl", "-sS", "--max-time", "20", "--http2-prior-knowledge", f"{targets['http'].url}/livez"]
    assert subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False).returncode not in (0, 28)


@pytest.mark.parametrize("library", ["requests", "httpx2"])
def test_python(targets: dict[str, Target], library: str) -> None:
    """With a length and in chunks, over one connection."""
    assert run(targets, sys.executable, "python_client.py", library, *urls(targets)) == LINES * 4


def test_node(targets: dict[str, Target]) -> None:
    """fetch, with its own form and with a stream."""
    need("node")
    assert run(targets, "node", "client.mjs", *urls(targets)) == LINES * 4


@pytest.mark.long
def test_java(targets: dict[str, Target]) -> None:
    """HttpClient, which asks for HTTP/2 or does not; with a length, in chunks, and waiting for 100 Continue."""
    need("javac")
    assert run(targets, "java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "Client.java", *urls(targets)) == LINES * 12


@pytest.mark.long
def test_go(targets: dict[str, Target], tmp_path: Path) -> None:
    """net/http, with a length, in chunks, and waiting for 100 Continue."""
    need("go")
    program = tmp_path / "client"
    places = {"GOCACHE": str(tmp_path / "cache"), "GOPATH": str(tmp_path / "go")}
    run(targets, "go", "build", "-o", str(program), "client.go", GO111MODULE="off", **places)
    assert run(targets, str(program), *urls(targets)) == LINES * 6
