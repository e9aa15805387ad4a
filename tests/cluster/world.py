"""A whole cluster (deploy/cluster) with two Postfix in front, small disks, and a destination that records mail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bridge.service.analysis.plugin import ENTRY_POINTS
from deploy.cluster.network import Loopback, Namespaces
from deploy.cluster.node import Node
from deploy.cluster.up import Cluster
from tests.chain import Destination, Postfix
from tests.daemon.process_kit import ROOT, environment, scanbridge
from tests.faults.world import HURRIED, Disk

DEADLINE_S = 20.0  # of the bridges' listener: longer than a worker's job needs to reach another one
FULL = {"nats": 3, "postgresql": 1, "storage": 1, "haproxy": 2, "bridge": 3, "api": 2, "worker": 3, "prometheus": 1}
SMALL = {"nats": 1, "postgresql": 1, "storage": 1, "haproxy": 2, "bridge": 2, "api": 1, "worker": 2}
_DISKS = {"postgresql": ("data", 256 << 20), "storage": ("data", 48 << 20), "bridge": ("state", 24 << 20),
          "nats": ("jetstream", 32 << 20), "api": ("state", 24 << 20), "worker": ("state", 24 << 20)}  # fmt: skip
_SERVICES = """\
{address}:10587 inet n - n - 50 smtpd -o content_filter=scan:[{near}]:10024
{address}:10025 inet n - n - 50 smtpd -o smtpd_proxy_filter={near}:10024 -o smtpd_proxy_timeout=30s
{address}:10026 inet n - n - 50 smtpd -o smtpd_relay_restrictions=permit_mynetworks,reject
    -o smtpd_authorized_xforward_hosts={network}
scan unix - - n - 10 smtp -o smtp_send_xforward_command=yes -o disable_mime_output_conversion=yes
    -o smtp_fallback_relay=[{far}]:10024 -o smtp_data_done_timeout=30s -o smtp_mail_timeout=10s -o smtp_helo_timeout=5s
"""
_SETTINGS = """
myhostname = behind.example
inet_interfaces = {interface}
mynetworks = {network}
"""
_ENGINE = """\
analyzers:
  phishing: null
  plugins: {{deciding: {{options: {{seen: {seen}}}, timeout: 60s}}}}
decisions:
  rules:
    - {{tags: ["failed:*", "incomplete"], verdict: incomplete, decision: undecided}}
    - {{tags: ["wish:quarantine"], verdict: suspicious, decision: quarantine}}
    - {{tags: ["wish:bounce"], verdict: spam, decision: bounce}}
    - {{tags: ["wish:drop"], verdict: unwanted, decision: drop}}
"""


class ClusterWorld:
    """A context manager."""

    def __init__(self, directory: Path, counts: dict[str, int], namespaces: bool) -> None:
        directory.chmod(0o755)
        self.directory, self._counts, self._namespaces = directory, counts, namespaces
        self.seen = directory / "seen"
        self.seen.touch()
        self.disks: dict[str, Disk] = {}

    def __enter__(self) -> ClusterWorld:
        with ExitStack() as stack:
            self.destination = stack.enter_context(Destination())
            self.network = Namespaces() if self._namespaces else Loopback()
            stack.callback(self.network.close)
            for kind, (place, size) in _DISKS.items():
                for number in range(1, self._counts[kind] + 1):
                    self._add_disk(stack, f"{kind}{number}", place, size)
            self.cluster = Cluster(self.directory, self._counts, self.network, self._edit)
            for node in [*self.cluster.of("api"), *self.cluster.of("worker")]:
                site = _install_engine(self.directory / "site")
                path = f"{site}:{node.environment['PYTHONPATH']}"
                spool = self.disks[node.name].place  # of large mail, which fills up with the rest
                node.environment = {**node.environment, "PYTHONPATH": path, "TMPDIR": str(spool)}
            stack.enter_context(self.cluster)
            self.front = [stack.enter_context(_Front(self.network, number)(self.destination)) for number in (1, 2)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _add_disk(self, stack: ExitStack, name: str, place: str, size: int) -> None:
        (self.directory / name).mkdir()
        disk = self.disks[name] = stack.enter_context(Disk(self.directory / name / place, size))
        if name.startswith("postgresql"):
            shutil.chown(disk.place, "postgres", "postgres")
            disk.place.parent.chmod(0o755)

    def _edit(self, name: str, text: str) -> str:
        if name == "bridge.yml":
            text = text.replace("    proxy_protocol", f"    deadline: {DEADLINE_S:.0f}s\n    proxy_protocol")
            urls = ", ".join(f"https://192.0.2.{31 + i}:9081" for i in range(self._counts["api"]))
            text = text.replace("https://192.0.2.31:9081, https://192.0.2.32:9081", urls)
            for key, kind in {"bridges": "bridge", "workers": "worker", "nats": "nats", "haproxy": "haproxy"}.items():
                text = _shortened(text, key, self._counts[kind])
            text = text.replace("relay:\n", "relay:\n  connect_timeout: 2s\n  timeout: 8s\n")
            text += "log: {format: json}\ndrain_timeout: 8s\nspool: {memory_per_mail: 64KiB}\n"
        if name == "service.yml":
            text += _ENGINE.format(seen=self.seen)
            if self._counts["nats"] == 1:
                text = text.replace("replicas: 3", "replicas: 1")
                text = text.replace(', "tls://192.0.2.52:4222", "tls://192.0.2.53:4222"', "")
        if name == "nats.conf" and self._counts["nats"] == 1:
            text = text.partition("cluster {")[0] + "jetstream {" + text.partition("jetstream {")[2]
        return text

    @property
    def doors(self) -> dict[str, list[tuple[str, int]]]:
        fronts = [self.network.address(91), self.network.address(92)]
        near = [self.cluster.plan.address("haproxy", number) for number in (1, 2)]
        return {
            "queue": [(address, 10587) for address in fronts],
            "proxy": [(address, 10025) for address in fronts],
            "raw": [(address, 10024) for address in near],
        }

    def config(self, number: int = 1) -> Path:
        return self.directory / f"bridge{number}" / "bridge.yml"

    def command(self, *words: str, number: int = 1) -> tuple[int, str]:
        """A command with the configuration of a bridge; its exit code and output."""
        state = self.directory / f"commands{number}"
        state.mkdir(exist_ok=True)
        done = scanbridge(*words, "-c", self.config(number), env=environment(STATE_DIRECTORY=str(state)))
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")

    def start_command(self, *words: str, number: int = 1) -> subprocess.Popen[bytes]:
        """The same, but nobody waits for it."""
        state = self.directory / f"commands{number}"
        state.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "bridge", *words, "-c", str(self.config(number))]
        nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=environment(STATE_DIRECTORY=str(state)), cwd=ROOT, **nowhere)

    def rows(self, *words: str) -> list[dict[str, Any]]:
        code, text = self.command(*words, "--json", "--limit", "0")
        assert code == 0, text
        return [json.loads(line) for line in text.splitlines()]

    def leader(self) -> Node:
        """The NATS server that leads the stream of jobs."""
        import urllib.request

        for node in self.cluster.of("nats"):
            url = f"http://{self.network.address(node.host)}:8222/jsz?accounts=true&streams=true"
            with suppress(OSError), urllib.request.urlopen(url, timeout=2) as page:
                for account in json.load(page).get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        if not stream["name"].startswith("OBJ_"):
                            return self.cluster.node(stream.get("cluster", {}).get("leader") or node.name)
        return self.cluster.of("nats")[0]


def _shortened(text: str, name: str, count: int) -> str:
    """Without the nodes that a smaller cluster does not have, in `cluster`."""
    before, key, rest = text.partition(f"\n  {name}: [")
    named, end, after = rest.partition("]")
    return before + key + ", ".join(named.split(", ")[:count]) + end + after


def _Front(network: Loopback, number: int) -> Any:
    """A Postfix at the address of the mail server with this number; it is also the next hop of the bridges."""
    address = network.address(90 + number)
    network.host_address(90 + number)
    near, far = network.address(10 + number), network.address(13 - number)
    interface = address if isinstance(network, Namespaces) else "127.0.0.1"  # must be one that is configured
    names = {"address": address, "interface": interface, "near": near, "far": far, "network": network.whole}
    return lambda destination: Postfix(_SERVICES.format(**names), destination.port, HURRIED + _SETTINGS.format(**names))


def _install_engine(site: Path) -> Path:
    """The deciding engine, as an installed package that only the service sees."""
    package = site / "deciding_engine-1.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("deciding_engine.py"), site)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: deciding_engine\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ndeciding = deciding_engine:Deciding\n")
    return site
