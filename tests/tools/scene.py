"""A bridge that untrusted clients can reach: its own network, the real service, TLS, and a real Postfix behind it.

`enter_namespaces()` restarts this program in its own network and process namespaces: port 25 of 192.0.2.25 is ours,
the machine's network is not touched, and every process that was started ends with this one.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from bridge.runtime import yaml_file
from bridge.testing import TOKEN, Background, NextHop, SmtpClient, until
from tests.postfix_kit import Postfix
from tests.relay.scripted_hop import EXTENSIONS, ScriptedHop
from tests.service.service_kit import ServiceProcess, make_key

ROOT = Path(__file__).parents[2]
PUBLIC = "192.0.2.25"  # the address that untrusted clients use and come from
LISTENER = 10025  # for the trusted mail server on this machine
SERVICE = 9081
ADMIN = 9082
POSTFIX = 2525
INJECTED = b"250-injected.example\r\n250 XFORWARD ADDR\r\n"


def enter_namespaces() -> None:
    """Restart this program in its own namespaces; returns only there."""
    if os.environ.get("SCANBRIDGE_SCENE") != "inside":
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            sys.exit("creating a network namespace needs root and util-linux")
        os.environ["SCANBRIDGE_SCENE"] = "inside"
        inside = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable]
        inside += ["-m", "tests.tools.examine", *sys.argv[1:]]
        os.execvp("unshare", inside)
    for words in ("link set lo up", f"addr add {PUBLIC}/32 dev lo"):
        subprocess.run(["ip", *words.split()], check=True)


@dataclass
class Scene:
    """Everything that a tool can be pointed at, and what arrived."""

    directory: Path
    log: Path
    sink: NextHop  # the next hop for all other domains
    postfix: Postfix  # the next hop for behind.example ...
    mailbox: NextHop  # ... and where Postfix delivers
    injecting: ScriptedHop  # the next hop for injecting.example, which adds replies after STARTTLS
    trust: ssl.SSLContext
    api_key: str

    def client(self) -> SmtpClient:
        """A client that connects as the trusted mail server does."""
        return SmtpClient(LISTENER)


@contextmanager
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scanbridge-tools-")))
        directory.chmod(0o755)
        background = Background()
        stack.callback(background.close)
        sink, mailbox, trust = NextHop(), NextHop(), certificate(directory)
        for hop in (sink, mailbox):
            background.run(hop.start())
            stack.callback(lambda hop=hop: background.run(hop.stop()))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        injecting = ScriptedHop(extensions=(*EXTENSIONS, "STARTTLS"), tls=tls, behind_starttls=INJECTED)
        background.run(injecting.__aenter__())
        stack.callback(lambda: background.run(injecting.__aexit__()))
        # Postfix's old default: it accepts LF.LF and LF.CRLF as an end of data.
        settings = "smtpd_forbid_bare_newline = no\nrelay_domains = behind.example\n"
        postfix = stack.enter_context(Postfix(f"127.0.0.1:{POSTFIX} inet n - n - - smtpd", mailbox.port, settings))
        key = stack.enter_context(service(directory))
        routes = {"behind.example": POSTFIX, "injecting.example": injecting.settings().next_hop.address.port}
        log = stack.enter_context(bridge(directory, sink.port, routes))
        yield Scene(directory, log, sink, postfix, mailbox, injecting, trust, key)


def certificate(directory: Path) -> ssl.SSLContext:
    """Write a certificate for the bridge; return the context that verifies it."""
    authority = trustme.CA()
    issued = authority.issue_cert("bridge.example", PUBLIC, "localhost")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(directory / "cert.pem", append=True)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    return ssl.create_default_context(cafile=directory / "ca.pem")


@contextmanager
def service(directory: Path) -> Iterator[str]:
    """Run `scanbridge service`; yields a key for its List API."""
    data = {
        "listen": f"127.0.0.1:{SERVICE}",
        "guard": {"scanSources": {"restApi": {}}},
        "abby": {"serviceProviders": {"core": {}}, "staticApiTokens": [{"name": "tools", "token": TOKEN}]},
        "database": "sqlite:///service.sqlite",
    }
    (directory / "service.yml").write_text(yaml_file.dump(data))
    process = ServiceProcess(directory)
    try:
        process.wait()
        yield make_key(process.config)
    finally:
        process.end()


@contextmanager
def bridge(directory: Path, sink: int, routes: dict[str, int]) -> Iterator[Path]:
    """Run `scanbridge run`; yields the path of its log."""
    (directory / "token").write_text(TOKEN)
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    strangers = {"name": "mx", "address": f"{PUBLIC}:25", "trusted_clients": ["127.0.0.1/32"], "tls": tls}
    data = {
        "scanner": {"urls": [f"http://127.0.0.1:{SERVICE}"], "token_file": "token"},
        "listeners": [strangers, {"name": "mta", "address": f"127.0.0.1:{LISTENER}", "tls": tls}],
        "relay": {
            "next_hop": f"smtp://127.0.0.1:{sink}",
            "routes": [
                {"recipient_domains": [domain], "next_hop": f"smtp://127.0.0.1:{port}"}
                for domain, port in routes.items()
            ],
        },
        "state_directory": str(directory / "state"),
        "hostname": "bridge.example",
        "admin": {"address": f"127.0.0.1:{ADMIN}"},
        "api": {"tokens": [{"name": "tools", "token_file": "token"}]},
    }
    (directory / "bridge.yml").write_text(yaml_file.dump(data))
    log = directory / "bridge.log"
    command = [sys.executable, "-m", "bridge", "run", "-c", str(directory / "bridge.yml")]
    with log.open("wb") as file:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        until(lambda: process.poll() is not None or listens(), "the bridge to listen")
        assert process.poll() is None, log.read_text()
        yield log
        assert process.poll() is None, f"the bridge exited:\n{log.read_text()[-3000:]}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def listens() -> bool:
    try:
        SmtpClient(LISTENER).close()
    except OSError:
        return False
    return True
