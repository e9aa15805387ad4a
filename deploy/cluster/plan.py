"""The nodes of a cluster, made from the files of this directory.

The files are those that an operator would copy. Three things are changed in them: the network (192.0.2. becomes the
cluster's), the directories (/etc/scanbridge/ and /var/lib/... become the node's), and, in the lines with "this
machine", the name and address of the first node of a kind become the node's own.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError

import trustme

from deploy.cluster.network import EXAMPLE, Loopback
from deploy.cluster.node import Node

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIRST = {"haproxy": 11, "bridge": 21, "api": 31, "worker": 41, "nats": 51, "postgresql": 61, "storage": 71}
FIRST |= {"prometheus": 81, "mail": 91}
FULL = {"nats": 3, "postgresql": 1, "storage": 1, "haproxy": 2, "bridge": 3, "api": 2, "worker": 3, "prometheus": 1}
_FILES = {
    "haproxy": ["haproxy.cfg"],
    "bridge": ["bridge.yml"],
    "api": ["service.yml"],
    "worker": ["service.yml"],
    "nats": ["nats.conf"],
    "postgresql": ["postgresql.conf", "pg_hba.conf"],
    "prometheus": ["prometheus.yml", "../mixin/alerts.yml", "../mixin/cluster-alerts.yml"],
}
_SECRETS = ("api-token", "metrics-token", "nats-password", "database-password", "scan-database-password", "release-key",
            "s3-access-key", "s3-secret-key")  # fmt: skip
_PLACES = [os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", str(Path(sys.executable).parent)]
_PLACES += map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))

Edit = Callable[[str, str], str]


@dataclass
class Plan:
    """What to build, and where."""

    directory: Path
    network: Loopback
    counts: dict[str, int] = field(default_factory=lambda: dict(FULL))
    edit: Edit = lambda name, text: text  # changes to a file, by its name; for tests

    def nodes(self) -> list[Node]:
        """In the order in which they are needed. The directory may be that of an earlier run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)  # PostgreSQL runs as a different user
        self._make_secrets()
        hosts = {kind: [FIRST[kind] + i for i in range(count)] for kind, count in self.counts.items()}
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(str(self.directory / "ca.pem"))
        self.client_context = ssl.create_default_context(cafile=str(self.directory / "ca.pem"))
        return [self._node(kind, i + 1, host) for kind, found in hosts.items() for i, host in enumerate(found)]

    def address(self, kind: str, number: int = 1) -> str:
        return self.network.address(FIRST[kind] + number - 1)

    def secret(self, name: str) -> str:
        return (self.directory / name).read_text().strip()

    def _make_secrets(self) -> None:
        for name in _SECRETS:
            path = self.directory / name
            if not path.exists():
                path.touch(mode=0o600)
                path.write_text(f"k{secrets.token_hex(32)}\n")  # a letter first: NATS takes digits for a number

    def _node(self, kind: str, number: int, host: int) -> Node:
        name = f"{kind}{number}"
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        self.network.add(host)
        for source in _FILES.get(kind, ()):
            file = directory / Path(source).name
            file.write_text(self._text(kind, name, host, directory, HERE / source))
        self._give_secrets(directory, host)
        make = getattr(self, f"_{kind}")
        command, trouble, environment = make(directory, self.network.address(host))
        return Node(kind, name, host, directory, self.network.command(host, command), trouble, environment)

    def _text(self, kind: str, name: str, host: int, directory: Path, source: Path) -> str:
        first = FIRST["api" if source.name == "service.yml" else kind]
        lines = source.read_text().splitlines()
        for i, line in enumerate(lines):
            if "# this machine" in line:
                lines[i] = line.replace(f"{EXAMPLE}{first}:", f"{EXAMPLE}{host}:").replace(f"{kind}1", name)
        lines = [line for line in lines if not self._is_of_missing_node(line)]
        text = self.edit(source.name, "\n".join(lines) + "\n")
        for word in ("/etc/scanbridge", "/var/lib/nats"):
            text = text.replace(word, str(directory))
        text = text.replace(f"{EXAMPLE}0/24", self.network.whole)
        return text.replace(EXAMPLE, self.network.address(0).removesuffix("0"))

    def _is_of_missing_node(self, line: str) -> bool:
        """HAProxy's list of bridges in a smaller cluster."""
        word = line.split()[1] if line.strip().startswith("server ") else ""
        return word.startswith("bridge") and int(word.removeprefix("bridge")) > self.counts["bridge"]

    def _give_secrets(self, directory: Path, host: int) -> None:
        address = self.network.address(host)
        for name in (*_SECRETS, "ca.pem"):
            shutil.copy(self.directory / name, directory / name)
        certificate = self._authority.issue_cert(address)
        key = directory / "node.pem"
        key.unlink(missing_ok=True)
        key.touch(mode=0o600)
        certificate.private_key_and_cert_chain_pem.write_to_path(str(key))

    # Each kind: its command, how to see that it is ready, its environment

    def _nats(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [program("nats-server"), "-c", "nats.conf"]
        environment = {"SCANBRIDGE_PASSWORD": self.secret("nats-password")}
        return command, lambda: self.trouble_at(f"http://{address}:8222/healthz"), environment

    def _postgresql(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        data = directory / "data"
        as_user: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("postgres")
            for path in (directory, *directory.iterdir()):
                if path != data:
                    os.chown(path, user.pw_uid, user.pw_gid)
            as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        if not (data / "PG_VERSION").exists():
            options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
            _run([*as_user, program("initdb"), "-D", str(data), *options], directory)
        settings = f"include '{directory}/postgresql.conf'\nhba_file = '{directory}/pg_hba.conf'\n"
        (data / "postgresql.auto.conf").write_text(f"{settings}unix_socket_directories = '{directory}'\n")
        # The socket's directory is private; "peer" in the file is for PostgreSQL's own user.
        hba = directory / "pg_hba.conf"
        hba.write_text(hba.read_text().replace("peer", "trust"))
        directory.chmod(0o700)
        for statement, database in _FIRST_STATEMENTS:
            text = statement.format(bridge=self.secret("database-password"), scan=self.secret("scan-database-password"))
            _run([*as_user, program("postgres"), "--single", "-D", str(data), database], directory, text, may_fail=True)
        command = [*as_user, program("postgres"), "-D", str(data)]
        check = [program("pg_isready"), "-q", "-h", str(directory), "-U", "postgres"]
        return command, lambda: _trouble_of(check), {}

    def _storage(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        """`rclone serve s3` stands for any S3-compatible storage. Its buckets are directories."""
        (directory / "data" / "mail").mkdir(parents=True, exist_ok=True)
        keys = f"{self.secret('s3-access-key')},{self.secret('s3-secret-key')}"
        command = [program("rclone"), "serve", "s3", "--addr", f"{address}:9000"]
        command += ["--cert", "node.pem", "--key", "node.pem", "--vfs-cache-mode", "off", "data"]
        # Not as --auth-key: every user of the machine can see the arguments. The value is a list in CSV.
        environment = {"RCLONE_CONFIG": "/dev/null", "HOME": str(directory), "RCLONE_AUTH_KEY": f'"{keys}"'}
        return command, lambda: self.trouble_at(f"https://{address}:9000/", {200, 400, 403}), environment

    def _haproxy(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [program("haproxy"), "-db", "-f", "haproxy.cfg"]
        return command, lambda: self.trouble_at(f"http://{address}:8405/livez"), {}

    def _prometheus(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
        command += [f"--web.listen-address={address}:9090", "--log.level=warn"]
        return command, lambda: self.trouble_at(f"http://{address}:9090/-/ready"), {}

    def _api(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [*_SCANBRIDGE, "service", "-c", "service.yml"]
        return command, lambda: self.trouble_at(f"https://{address}:9081/readyz"), self._python(directory)

    def _worker(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [*_SCANBRIDGE, "service", "worker", "-c", "service.yml"]
        return command, lambda: self.trouble_at(f"http://{address}:9086/readyz"), self._python(directory)

    def _bridge(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        command = [*_SCANBRIDGE, "run", "-c", "bridge.yml"]
        return command, lambda: self.trouble_at(f"http://{address}:9082/readyz"), self._python(directory)

    def _mail(self, directory: Path, address: str) -> tuple[list[str], Callable[[], str], dict[str, str]]:
        """Stands for the mail servers behind the bridges: what it accepts is in a Maildir."""
        command = [sys.executable, "-m", "aiosmtpd", "-n", "-l", f"{address}:10026", "-c"]
        command += ["aiosmtpd.handlers.Mailbox", str(directory / "Maildir")]
        return command, lambda: _trouble_greeting(address, 10026), self._python(directory)

    def _python(self, directory: Path) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "STATE_DIRECTORY": str(directory / "state"), "PYTHONDONTWRITEBYTECODE": ""}

    def trouble_at(self, url: str, wanted: Sequence[int] | set[int] = (200,)) -> str:
        """What this page says if that is none of the wanted codes."""
        context = self.client_context if url.startswith("https:") else None
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as page:  # noqa: S310 (our own addresses)
                return "" if page.status in wanted else f"{url} answers {page.status}"
        except HTTPError as exc:
            return "" if exc.code in wanted else f"{url} answers {exc.code} {_said(exc)}"
        except OSError as exc:
            return f"{url}: {exc}"


def _said(answer: HTTPError) -> str:
    try:
        with answer:
            return answer.read(500).decode(errors="replace").strip()
    except OSError:  # it was closed meanwhile
        return ""


_SCANBRIDGE = [sys.executable, "-m", "bridge"]
_FIRST_STATEMENTS = [
    ("CREATE ROLE scanbridge LOGIN PASSWORD '{bridge}';\n", "postgres"),
    ("CREATE ROLE scan LOGIN PASSWORD '{scan}';\n", "postgres"),
    ("CREATE DATABASE scanbridge OWNER scanbridge;\n", "postgres"),
    ("CREATE DATABASE scan OWNER scan;\n", "postgres"),
]


def program(name: str) -> str:
    """The path of a program. Exits with a message if it is not installed."""
    found = shutil.which(name, path=os.pathsep.join(_PLACES))
    if found is None:
        raise SystemExit(f"{name} is not installed; `deploy/test-servers.sh` and `pip install '.[dev]'` install it")
    return found


def _run(command: list[str], directory: Path, text: str = "", may_fail: bool = False) -> None:
    done = subprocess.run(command, cwd=directory, input=text, capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise SystemExit(f"{command[0]} failed: {done.stderr[-2000:]}")


def _trouble_of(check: list[str]) -> str:
    code = subprocess.run(check, check=False).returncode
    return f"{check[0]} exits with {code}" if code else ""


def _trouble_greeting(address: str, port: int) -> str:
    import socket

    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            said = connection.recv(4)
    except OSError as exc:
        return f"{address}:{port}: {exc}"
    return "" if said == b"220 " else f"{address}:{port} greets with {said!r}"
