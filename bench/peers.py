"""The programs that the benchmark runs: our bridge in several forms, and the alternatives to it.

`build` builds or installs what a peer needs. A peer that is not available here is skipped; `MISSING` says why.
"""

# ruff: noqa: S603, S607 - it starts its own programs
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lists import make_copy

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "bench"
NODE = BUILD / "node"
MISSING: dict[str, str] = {}
_COMPILES_S = 10.0  # of load until Node.js has compiled its hot code; its CPU time per mail halves in that time

OURS = """
scanner: {{urls: ["{scanner}"], token_file: token, status_interval: 60s{dialect}}}
listeners:
  - {{name: smtp, address: "127.0.0.1:{smtp}"{blocking}}}
  - {{name: milter, protocol: milter, address: "127.0.0.1:{milter}"}}
admission: {{max_in_processing: {limit}, throttle_threshold: {limit}, max_bytes_in_processing: 8GiB}}
limits: {{max_connections: 20000, max_connections_per_client: 20000}}
spool: {{memory_per_mail: {memory}}}
policy: {{deliver: {deliver}}}
relay: {{next_hop: "smtp://127.0.0.1:{sink}"}}
admin: {{address: "127.0.0.1:{admin}"}}
workers: {workers}
state_directory: {directory}
lists: {{url: "http://127.0.0.1:1", api_key_file: token, refresh: 1d}}
{more}
"""
BLOCKING = ", lists: {block: [sender, network]}"  # the listener checks two lists at MAIL


@dataclass(frozen=True)
class Ports:
    peer: int
    scanner: int
    sink: int
    other: int
    admin: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.scanner}"


Command = tuple[list[str], dict[str, str]]  # arguments and environment


@dataclass(frozen=True)
class Peer:
    name: str
    protocol: str  # smtp or milter
    command: Callable[[Ports, Path], Command]
    warm_up_s: float = 1.0
    needs: tuple[str, ...] = ()  # keys of MISSING


def ours(
    protocol: str,
    root: Path = HERE.parent,
    *,
    deliver: str = "discard",
    workers: int = 1,
    memory: str = "256KiB",
    entries: int = 0,
    rspamd: str | None = None,
    limit: int = 100_000,
    more: str = "",
) -> Callable[[Ports, Path], Command]:
    """Our complete bridge: policy, metrics, log, admission. With `discard` nothing is relayed, as with the peers.

    `limit`: mails in processing; further ones are refused at MAIL.
    `more` is added to the configuration.
    With `rspamd`, the scanner is asked in rspamd's words, below this path.
    With `entries`, MAIL is checked against a list of that many senders and one of that many networks, without a match.
    """

    def command(ports: Ports, scratch: Path) -> Command:
        smtp, milter = (ports.peer, ports.other) if protocol == "smtp" else (ports.other, ports.peer)
        (scratch / "token").write_text("0123456789abcdef0123456789abcdef\n")
        (scratch / "token").chmod(0o600)
        copies = scratch / "state" / "lists"
        copies.mkdir(parents=True)
        for kind in ("sender", "network") if entries else ():
            make_copy(copies, kind, kind, entries)
        configuration = scratch / "scanbridge.yml"
        configuration.write_text(
            OURS.format(
                scanner=ports.url + (rspamd or ""),
                dialect="" if rspamd is None else ", dialect: rspamd",
                smtp=smtp,
                milter=milter,
                sink=ports.sink,
                admin=ports.admin,
                workers=workers,
                deliver=deliver if protocol == "smtp" else "relay",
                memory=memory,
                limit=limit,
                directory=scratch / "state",
                blocking=BLOCKING if entries else "",
                more=more,
            )
        )
        # -P: otherwise the current directory comes before `root`, and `--compare` measures the same code twice.
        return [sys.executable, "-P", "-m", "bridge", "run", "-c", str(configuration)], {"PYTHONPATH": str(root)}

    return command


def _naive(ports: Ports, scratch: Path) -> Command:
    return [sys.executable, str(HERE / "naive.py"), str(ports.peer), ports.url], {}


def _c_bridge(ports: Ports, scratch: Path) -> Command:
    return [str(BUILD / "bridge"), str(ports.peer), str(ports.scanner)], {}


def _nodemailer(ports: Ports, scratch: Path) -> Command:
    environment = {"NODE_PATH": str(NODE / "node_modules")}
    return ["node", str(HERE / "peers" / "nodemailer.js"), str(ports.peer), ports.url], environment


def _haraka(ports: Ports, scratch: Path) -> Command:
    haraka = NODE / "node_modules" / "Haraka"
    shipped = (haraka / "config" / "connection.ini").read_text()
    for name in ("config", "plugins", "queue"):
        (scratch / name).mkdir()
    shutil.copy(HERE / "peers" / "haraka_scan.js", scratch / "plugins" / "scan.js")
    settings = {
        "smtp.ini": f"listen=127.0.0.1:{ports.peer}\nnodes=0\n",
        "connection.ini": re.sub(r"(?m)^bytes=.*", "bytes=67108864", shipped),
        "log.ini": "[main]\nlevel=error\n",
        "loglevel": "error\n",
        "me": "haraka.example.net\n",
        "plugins": "scan\n",
    }
    for name, text in settings.items():
        (scratch / "config" / name).write_text(text)
    environment = {
        "NODE_PATH": str(NODE / "node_modules"), "SCANNER": ports.url, "SUBMIT": str(HERE / "peers" / "submit.js"),
    }  # fmt: skip
    return ["node", str(haraka / "bin" / "haraka"), "-c", str(scratch)], environment


def _pymilter(ports: Ports, scratch: Path) -> Command:
    return [sys.executable, str(HERE / "peers" / "pymilter.py"), str(ports.peer), ports.url], {}


def _rspamd(ports: Ports, scratch: Path) -> Command:
    """rspamd's proxy worker in milter mode, with the benchmark's scanner instead of rspamd."""
    scratch.chmod(0o777)  # rspamd switches to another user
    configuration = scratch / "rspamd.conf"
    configuration.write_text(
        f"""
options {{ pidfile = "{scratch}/rspamd.pid"; filters = ""; control_socket = "{scratch}/control.sock mode=0600";
  dns {{ nameserver = ["127.0.0.1:1"]; timeout = 0.1s; retransmits = 1; }}
  hs_cache_dir = "{scratch}"; url_tld = "/usr/share/rspamd/effective_tld_names.dat"; }}
logging {{ type = "file"; filename = "{scratch}/rspamd.log"; level = "warning"; }}
actions {{ reject = 15; add_header = 6; }}
worker "rspamd_proxy" {{ bind_socket = "127.0.0.1:{ports.peer}"; milter = yes; timeout = 120s; count = 1;
  max_retries = 1;
  upstream "scanner" {{ default = yes; hosts = "127.0.0.1:{ports.scanner}"; compression = no; keepalive = yes; }} }}
"""
    )
    return ["rspamd", "-f", "-u", "_rspamd", "-g", "_rspamd", "-c", str(configuration)], {}


PEERS = {
    peer.name: peer
    for peer in (
        Peer("scanbridge", "smtp", ours("smtp")),
        Peer("scanbridge, relaying", "smtp", ours("smtp", deliver="relay")),
        Peer("scanbridge, no history", "smtp", ours("smtp", more="history: {enabled: false}")),
        Peer("scanbridge, events", "smtp", ours("smtp", more="events: [{name: f, type: file, path: events.jsonl}]")),
        Peer("scanbridge, 20 at once", "smtp", ours("smtp", limit=20)),
        Peer("scanbridge, 20 at once, no history", "smtp", ours("smtp", limit=20, more="history: {enabled: false}")),
        Peer("scanbridge, 2 workers", "smtp", ours("smtp", workers=2)),
        Peer("scanbridge, spooling", "smtp", ours("smtp", memory="64KiB")),
        Peer("naive", "smtp", _naive, warm_up_s=3.0),
        Peer("nodemailer", "smtp", _nodemailer, warm_up_s=_COMPILES_S, needs=("node",)),
        Peer("Haraka", "smtp", _haraka, warm_up_s=_COMPILES_S, needs=("node", "Haraka")),
        Peer("C", "smtp", _c_bridge),
        Peer("scanbridge milter", "milter", ours("milter")),
        Peer("scanbridge milter to rspamd", "milter", ours("milter", rspamd="")),
        Peer("scanbridge milter to rspamd, which closes", "milter", ours("milter", rspamd="/close")),
        Peer("rspamd proxy", "milter", _rspamd, needs=("rspamd",)),
        Peer("pymilter", "milter", _pymilter, needs=("pymilter",)),
    )
}


def build() -> None:
    """Build the programs in C and install the available peers."""
    build_tools()
    _build_node()
    if shutil.which("rspamd") is None:
        MISSING["rspamd"] = "rspamd is not installed"
    _build_pymilter()


def build_tools() -> None:
    """Build our own scanner, next hop, load generators and reference bridge."""
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("scanner", "sink", "load", "openload", "bridge"):
        source, binary = HERE / "c" / f"{name}.c", BUILD / name
        newest = max(source.stat().st_mtime, (HERE / "c" / "net.h").stat().st_mtime)
        if not binary.exists() or binary.stat().st_mtime < newest:
            subprocess.run(["cc", "-O2", "-Wno-unused-function", "-o", binary, source], check=True)


def _build_pymilter() -> None:
    if subprocess.run([sys.executable, "-c", "import Milter"], capture_output=True).returncode == 0:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-y", "-qq", "libmilter-dev"], capture_output=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pymilter"]
    if subprocess.run(install, capture_output=True).returncode:
        MISSING["pymilter"] = "pymilter cannot be built (it needs Debian's libmilter-dev)"


def _build_node() -> None:
    if shutil.which("npm") is None:
        MISSING["node"] = "Node.js and npm are not installed"
        return
    NODE.mkdir(exist_ok=True)
    wanted = (HERE / "peers" / "package.json").read_text()
    if not (NODE / "package.json").exists() or (NODE / "package.json").read_text() != wanted:
        (NODE / "package.json").write_text(wanted)
        done = subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=NODE, capture_output=True, text=True
        )
        if done.returncode:
            (NODE / "package.json").unlink()
            MISSING["node"] = "npm install failed: " + done.stderr.strip().splitlines()[-1]
    if not (NODE / "node_modules" / "Haraka").exists():
        MISSING["Haraka"] = "npm could not install Haraka"
