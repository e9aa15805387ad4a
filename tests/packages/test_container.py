"""Container image and compose file: checked against their schemas, and their configuration run with the real programs.

No container engine is needed: bridge, scanning service and Postfix run in a separate network namespace, with the
addresses, names and files of the compose file.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.service import config_files
from bridge.testing import until
from tests.postgresql import PostgreSql
from tests.requirements import find, need

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose"
CLUSTER = ROOT / "deploy/cluster/compose"
FILES = [ROOT / "deploy/container/Containerfile", COMPOSE / "postfix/Containerfile"]
BIN = Path(sys.executable).parent
GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text()))


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)


def test_hadolint_finds_nothing() -> None:
    done = run(BIN / "hadolint", "--no-color", *FILES)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_unprivileged_and_has_a_health_check() -> None:
    """A non-root user, a dedicated state directory, and our own command as the health check."""
    last = FILES[0].read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.M) and 'CMD ["scanbridge", "status"]' in last
    ignored = (ROOT / "deploy/container/Containerfile.dockerignore").read_text().split()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", FILES[0].read_text(), re.M)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists() and f"!{name}" in ignored, name


def test_the_image_had_whatever_versions_of_libraries_were_the_newest() -> None:
    """Packages have locked versions with hashes; the image had the newest of sixty libraries."""
    installs = re.findall(r"pip --python \S+ install (.+?) \\\n &&", FILES[0].read_text(), re.S)
    assert ["--no-deps" in each or "--require-hashes -r requirements/packages.lock" in each for each in installs] == [
        True,
        True,
    ]


def test_the_image_is_built_from_all_files_of_the_wheel() -> None:
    """The image had no sample mails: a build leaves out what is not copied without a word."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", FILES[0].read_text(), re.M)).split()
    for name in (*wheel["packages"], *wheel["sbom-files"], *wheel["shared-data"]):
        assert any(Path(name).is_relative_to(place) for place in copied), name


@pytest.mark.parametrize(("change", "sound"), [({}, True), ({"servces": {}}, False)], ids=["unchanged", "misspelled"])
@pytest.mark.long
def test_compose_file_follows_the_schema(change: dict[str, Any], sound: bool, tmp_path: Path) -> None:
    """The schema of the Compose Specification, which comes with check-jsonschema."""
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(compose() | change))
    done = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", tmp_path / "compose.yaml")
    assert (done.returncode == 0) is sound, done.stdout + done.stderr


def test_compose_file_names_existing_files_and_confines_services() -> None:
    """Mounted and built files exist, ports are bound to loopback only, and all services but Postfix are confined."""
    services = compose()["services"]
    assert set(services) == {"postfix", "bridge", "scanner", "prometheus", "grafana"}
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).is_file(), volume
        if build := service.get("build"):
            assert (COMPOSE / build["context"] / build["dockerfile"]).is_file(), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        if name != "postfix":
            assert service["read_only"] and service["cap_drop"] == ["ALL"], name


@pytest.mark.parametrize("directory", [COMPOSE, CLUSTER], ids=lambda path: path.parent.name)
def test_a_crash_in_a_container_wrote_mail_and_tokens_into_a_core_dump(directory: Path) -> None:
    """The systemd units have always forbidden it."""
    services = yaml.safe_load((directory / "compose.yaml").read_text())["services"]
    ours = {name: service for name, service in services.items() if service.get("image") == "scanbridge"}
    assert ours and all(service["ulimits"] == {"core": 0} for service in ours.values())


def test_grafana_has_no_account_with_a_known_password() -> None:
    """It had "admin" with the password "admin", for anyone who can connect from this machine."""
    settings = compose()["services"]["grafana"]["environment"]
    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == settings["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert settings["GF_AUTH_BASIC_ENABLED"] == "false" and settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_prometheus_and_grafana_get_the_mixin(tmp_path: Path) -> None:
    """promtool accepts the configuration with the alerts; the provisioned dashboard has panels."""
    need("promtool")
    text = (COMPOSE / "prometheus/prometheus.yml").read_text()
    alerts = ROOT / "deploy/mixin/alerts.yml"
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alerts.yml", str(alerts)))
    done = run("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0 and re.search(r"[1-9]\d* rules found", done.stdout), done.stdout + done.stderr
    (provider,) = yaml.safe_load((COMPOSE / "grafana/dashboards.yml").read_text())["providers"]
    mounted = [mount for mount in compose()["services"]["grafana"]["volumes"] if provider["options"]["path"] in mount]
    assert json.loads((COMPOSE / mounted[0].partition(":")[0]).read_text())["panels"]


# The cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A copy of its files, with secrets beside them, as the containers see them."""
    need("openssl", root=True)  # the secrets belong to the user of the containers
    copy = tmp_path / "compose"
    shutil.copytree(CLUSTER, copy)
    done = run(copy / "secrets.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert run(copy / "secrets.sh").returncode != 0, "it would replace the secrets of a running cluster"
    for path in copy.glob("*.*"):
        path.write_text(path.read_text().replace("/run/secrets/", f"{copy}/secrets/"))
    return copy


@pytest.mark.long
def test_the_cluster_follows_the_schema_and_names_existing_files(cluster: Path) -> None:
    """Mounted files, secrets and their users exist; ports are bound to loopback only."""
    done = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", CLUSTER / "compose.yaml")
    assert done.returncode == 0, done.stdout
    file = dict(yaml.safe_load((CLUSTER / "compose.yaml").read_text()))
    for name, service in file["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (CLUSTER / source).is_file() if source.startswith(".") else source in file["volumes"], volume
        if build := service.get("build"):
            assert (CLUSTER / build["context"] / build["dockerfile"]).is_file(), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert set(service.get("secrets", [])) <= set(file["secrets"]), name
        assert set(service.get("depends_on", [])) <= set(file["services"]), name
    for name, secret in file["secrets"].items():
        made = cluster / secret["file"]
        assert made.stat().st_uid == 10001 and made.stat().st_mode & 0o777 == 0o600 and made.read_bytes(), name


def test_the_programs_of_the_cluster_accept_their_files(cluster: Path) -> None:
    need("haproxy", "promtool")
    text = (cluster / "bridge.yml").read_text()
    assert yaml_file.load(cluster / "bridge.yml", Config, text).cluster.workers[0].port == 9086
    assert config_files.load(cluster / "service.yml").config.abby is not None
    environment = f"SCANBRIDGE_PASSWORD={(cluster / 'secrets/nats-password').read_text().strip()}"
    for command in (
        ["env", environment, BIN / "nats-server", "-t", "-c", cluster / "nats.conf"],
        [find("haproxy"), "-c", "-f", cluster / "haproxy.cfg"],
        ["promtool", "check", "config", "--syntax-only", cluster / "prometheus.yml"],
    ):
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_role_of_the_cluster_has_a_password_and_reaches_its_own_database_only(cluster: Path) -> None:
    """Both programs had one role, which was the administrator's."""
    need("psql")
    server = PostgreSql()
    server.start()
    try:
        to = (find("psql"), "-X", "-h", Path(server.socket).parent, "-v", "ON_ERROR_STOP=1", "-At")
        done = _create_databases(cluster, to)
        assert done.returncode == 0 and not done.stderr, done.stderr
        known = "SELECT rolname, rolpassword FROM pg_authid WHERE NOT rolsuper AND rolcanlogin ORDER BY rolname"
        found = run(*to, "-U", "tester", "-d", "postgres", "-c", known).stdout.split()
        for line, role, secret in zip(
            found, ("scan", "scanbridge"), ("scan-database-password", "database-password"), strict=True
        ):
            assert _is_for(line.removeprefix(f"{role}|"), (cluster / "secrets" / secret).read_text().strip()), line
        for role, database in itertools.product(("scan", "scanbridge"), repeat=2):
            done = run(*to, "-U", role, "-d", database, "-c", "CREATE TABLE t (a int)")
            assert (done.returncode == 0) is (role == database), done.stderr
    finally:
        server.stop()
        server.remove()


def test_the_databases_of_the_cluster_are_not_created_without_passwords(cluster: Path) -> None:
    """Roles without a password were created, with which nobody can log in."""
    need("psql")
    environment = cluster / "secrets/databases.env"
    server = PostgreSql()
    server.start()
    try:
        to = (find("psql"), "-X", "-h", Path(server.socket).parent, "-At")
        for text in ("", "DATABASE_PASSWORD=\nSCAN_DATABASE_PASSWORD=x\n", "DATABASE_PASSWORD=x\n"):
            environment.write_text(text)
            done = _create_databases(cluster, to)
            assert done.returncode == 3 and "databases.env" in done.stderr, done.stderr
        roles = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'scan%'"
        assert run(*to, "-U", "tester", "-d", "postgres", "-c", roles).stdout == "0\n"
    finally:
        server.stop()
        server.remove()


def _create_databases(cluster: Path, psql: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    """As the image does: as a user who cannot read the secrets, with the environment that compose gives it."""
    need("setpriv", root=True)
    service = yaml.safe_load((cluster / "compose.yaml").read_text())["services"]["postgresql"]
    environment = [line for file in service.get("env_file", []) for line in (cluster / file).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        script = Path(shutil.copy(cluster / "databases.sql", place))
        script.chmod(0o644)
        user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
        return run(*user, "env", *environment, *psql, "-U", "tester", "-d", "postgres", "-f", script)


def _is_for(stored: str, password: str) -> bool:
    """Whether PostgreSQL's form of a password, SCRAM-SHA-256$4096:SALT$STORED:SERVER, is that of this one."""
    _, parameters, keys = stored.split("$")
    rounds, salt = parameters.split(":")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(rounds))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest() == base64.b64decode(keys.partition(":")[0])


# The programs, run with the files of the compose file


@contextmanager
def network(hosts: dict[str, str], place: Path) -> Iterator[list[str]]:
    """A network namespace with these names and addresses; yields the prefix that runs a command in it."""
    (place / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
    addresses = "".join(f"ip addr add {address}/32 dev lo && " for address in hosts.values())
    (place / "resolv.conf").touch()  # empty: DNS queries go to this machine, which refuses them immediately
    mounts = "".join(f"mount --bind {place}/{name} /etc/{name} && " for name in ("hosts", "resolv.conf"))
    script = f"ip link set lo up && {addresses} {mounts} echo ready && exec sleep 600"
    command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert holder.stdout is not None
        assert (said := holder.stdout.readline()) == "ready\n", said
        yield ["nsenter", "-t", str(holder.pid), "-n", "-m"]
    finally:
        holder.kill()
        holder.communicate()


@contextmanager
def daemon(inside: list[str], place: Path, *words: str, secret: str) -> Iterator[subprocess.Popen[bytes]]:
    """`scanbridge ...` as in the container: with a token, a state directory and its configuration file."""
    (place / "secrets").mkdir(parents=True)
    (place / "secrets" / secret).write_text("5ca11ab1e" * 7 + "0\n")
    variables = {
        "CREDENTIALS_DIRECTORY": str(place / "secrets"),
        "STATE_DIRECTORY": str(place),
        "PYTHONPATH": str(ROOT),
    }
    command = [*inside, sys.executable, "-m", "bridge", *words]
    process = subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def postfix(inside: list[str], place: Path) -> Iterator[None]:
    """The compose file's Postfix, but with different directories."""
    for name in ("etc/postfix-files.d", "etc/dynamicmaps.cf.d", "spool", "data", "mail"):
        (place / name).mkdir(parents=True)
    shutil.chown(place / "data", "postfix")
    os.chown(place / "mail", 10002, 10002)
    for file in Path("/etc/postfix").glob("postfix-files*"):
        if file.is_file():
            shutil.copy(file, place / "etc")
    (place / "etc/dynamicmaps.cf").touch()
    main = (COMPOSE / "postfix/main.cf").read_text()
    main = main.replace("/var/mail/virtual", f"{place}/mail").replace("/dev/stdout", f"{place}/maillog")
    places = f"queue_directory = {place}/spool\ndata_directory = {place}/data\nmaillog_file_prefixes = {place}\n"
    (place / "etc/main.cf").write_text(
        main + places + "daemon_directory = /usr/lib/postfix/sbin\ninet_protocols = ipv4\n"
    )
    shutil.copy(COMPOSE / "postfix/master.cf", place / "etc")
    for name in ("main.cf", "master.cf"):
        os.utime(place / "etc" / name, (0, 0))  # Postfix waits two seconds for a file that has just changed
    words = [*inside, str(find("postfix")), "-c", place / "etc"]
    started = run(*words, "start")
    assert started.returncode == 0 and "warning" not in started.stderr, started.stdout + started.stderr
    try:
        yield
    finally:
        run(*words, "stop")


def test_mail_goes_through_the_configuration_of_the_compose_file() -> None:
    """Postfix, bridge and service with their files: clean mail is delivered, GTUBE is refused, no mail is lost."""
    need("postfix", "swaks", "unshare", "nsenter", "ip", root=True)
    networks = {name: service["networks"] for name, service in compose()["services"].items()}
    hosts = {name: networks[name]["mail"]["ipv4_address"] for name in ("postfix", "bridge", "scanner")}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compose-")))
        place.chmod(0o755)
        inside = stack.enter_context(network(hosts, place))
        service = ("service", "-c", str(COMPOSE / "service.yml"))
        stack.enter_context(daemon(inside, place / "scanner", *service, secret="service-token"))
        config = str(COMPOSE / "bridge.yml")
        bridge = stack.enter_context(daemon(inside, place / "bridge", "run", "-c", config, secret="api-token"))
        stack.enter_context(postfix(inside, place / "postfix"))

        def send(body: str) -> str:
            words = ["swaks", "--server", hosts["postfix"], "--to", "you@example.org", "--body", body]
            return run(*inside, *words).stdout

        until(lambda: "250 2.0.0 Ok: queued" in send("clean"), "the first mail")
        new = place / "postfix/mail/all/new"
        (mail,) = until(lambda: list(new.glob("*")), "the mailbox")
        assert "X-Scan-Decision: deliver" in mail.read_text()
        assert "550 5.7.1" in send(GTUBE)
        healthy = [*inside, sys.executable, "-m", "bridge", "status", "-c", config]
        assert subprocess.run(healthy, capture_output=True, timeout=30, cwd=ROOT).returncode == 0
        bridge.kill()
        bridge.wait()
        assert "451 4.3.0" in send("the bridge is down")
        assert subprocess.run(healthy, capture_output=True, timeout=30, cwd=ROOT).returncode == 1
        assert len(list(new.glob("*"))) == 1
