"""The Debian package in clean Debian 12 and 13: install, upgrade, remove, purge. With systemd: `make test-systemd`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.debian_root import cached_root
from tests.packages.package_kit import NEW, OLD, PROJECT, PYTHONS, Debian, built
from tests.requirements import need

WANTS = "etc/systemd/system/multi-user.target.wants"
SOCKETS = "etc/systemd/system/sockets.target.wants"
UNITS = [
    *(f"{WANTS}/{name}" for name in ("scanbridge.service", "scanbridge-scanner.service")),
    *(f"{SOCKETS}/{name}" for name in ("scanbridge.socket", "scanbridge-scanner.socket")),
]


@pytest.fixture(params=list(PYTHONS))
def debian(tmp_path: Path, request: pytest.FixtureRequest) -> Debian:
    return Debian(tmp_path, request.param)


def package(factory: pytest.TempPathFactory, number: str, suite: str) -> Path:
    (found,) = built(factory, suite).glob(f"scanbridge_{number}-*.deb")
    return found


def install(debian: Debian, file: Path) -> str:
    return debian.run("dpkg", "--force-unsafe-io", "--force-confdef", "--force-confold", "-i", debian.take(file))


@pytest.mark.long
def test_package_life_cycle_in_a_clean_debian(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After install it runs, an upgrade keeps local changes, remove deletes the program, purge deletes everything."""
    before = set(debian.run("find", "/", "-xdev", "-not", "-path", "/var/l*", "-not", "-path", "/tmp/*").splitlines())
    install(debian, package(tmp_path_factory, OLD, debian.suite))
    _is_whole(debian)

    bridge, token = debian.root / "etc/scanbridge/bridge.yml", debian.read("etc/scanbridge/api-token")
    edited = bridge.read_text().replace("10026", "10099")
    bridge.write_text(edited)
    (debian.root / UNITS[1]).unlink()  # `systemctl disable scanbridge-scanner.service`: another scanner is used
    install(debian, package(tmp_path_factory, NEW, debian.suite))
    assert debian.run("scanbridge", "--version") == "light\n"
    assert bridge.read_text() == edited, "the postmaster's configuration was lost"
    assert "# new" in debian.read("etc/scanbridge/bridge.yml.dpkg-dist"), "the new default file is missing"
    assert "# new" in debian.read("etc/scanbridge/service.yml"), "an unchanged file was not updated"
    assert debian.read("etc/scanbridge/api-token") == token
    assert debian.is_file(UNITS[0]) and not debian.is_file(UNITS[1]), "the upgrade changed which units are enabled"
    assert not debian.is_file("opt/scanbridge/lib"), "files of the old version are left"

    debian.run("dpkg", "-r", "scanbridge")
    assert not debian.is_file("opt/scanbridge") and not debian.is_file("usr/bin/scanbridge")
    assert bridge.read_text() == edited and debian.read("etc/scanbridge/api-token") == token

    state = debian.root / "var/lib/scanbridge"
    (state / "quarantine").mkdir(parents=True)
    (state / "quarantine/1.eml").write_text("Subject: held\n")
    assert "/var/lib/scanbridge was not removed, because it contains mail" in debian.run("dpkg", "-P", "scanbridge")
    assert (state / "quarantine/1.eml").exists(), "a mail was lost"
    after = set(debian.run("find", "/", "-xdev", "-not", "-path", "/var/l*", "-not", "-path", "/tmp/*").splitlines())
    left = {path for path in after - before if not re.match(r"/etc/(passwd|group|g?shadow|subuid|subgid|\.pwd)", path)}
    assert left == set(), "purge left files behind"


def _is_whole(debian: Debian) -> None:
    """Program, units, users, secrets, man pages and completion are where Debian expects them."""
    config = "/etc/scanbridge/bridge.yml"
    assert OLD not in debian.run("scanbridge", "--version")  # it shows its real version
    assert "next_hop: smtp://127.0.0.1:10026" in debian.run("scanbridge", "config", "show", "-c", config)
    assert debian.run("/opt/scanbridge/bin/python3", "-c", "import sys; print(sys.prefix)") == "/opt/scanbridge\n"
    elsewhere = "import importlib.util as u; print(u.find_spec('bridge'))"
    assert debian.run(f"python{PYTHONS[debian.suite]}", "-c", elsewhere) == "None\n"
    for unit in UNITS:
        assert debian.is_file(unit), unit
    users = debian.read("etc/passwd")
    assert "\nscanbridge:" in users and "\nscanbridge-scanner:" in users
    for name in ("api-token", "service-token"):
        assert debian.mode(f"etc/scanbridge/{name}") == 0o600
        assert re.fullmatch(r"[0-9a-f]{64}\n", debian.read(f"etc/scanbridge/{name}"))
    conffiles = debian.run("dpkg-query", "-W", "-f", "${Conffiles}", "scanbridge")
    assert re.findall(r"/\S+", conffiles) == [config, "/etc/scanbridge/service.yml"]
    for path in (
        "usr/share/man/man1/scanbridge.1.gz",
        "usr/share/man/man1/scanbridge-quarantine.1.gz",
        "usr/share/bash-completion/completions/scanbridge",
        "usr/share/zsh/vendor-completions/_scanbridge",
        "usr/share/fish/vendor_completions.d/scanbridge.fish",
        "usr/share/doc/scanbridge/README.md",
        "usr/share/doc/scanbridge/changelog.Debian.gz",
        "usr/share/doc/scanbridge/copyright",
        "usr/share/doc/scanbridge/deploy/postfix-proxy/master.cf",
        "usr/share/doc/scanbridge/deploy/mixin/alerts.yml",
        "usr/share/doc/scanbridge/samples/clean.eml",
        "usr/share/doc/scanbridge/samples/own-engine/invoices.py",
        "usr/share/doc/scanbridge/docs/operate/samples/clean.eml",
    ):
        assert debian.is_file(path), path
    # Bytecode is in the package: root compiles nothing at start, and other users, who could not write it, have it too.
    before = debian.run("find", "/opt/scanbridge", "-newer", "/etc/scanbridge/api-token")
    debian.run("scanbridge", "check", "--help")
    assert debian.run("find", "/opt/scanbridge", "-newer", "/etc/scanbridge/api-token") == before


@pytest.mark.long
def test_a_mail_passes_after_the_installation(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What autopkgtest runs on a machine of its own, in our root: as root, with the package and nothing else."""
    need("unshare", root=True)
    install(debian, package(tmp_path_factory, OLD, debian.suite))
    shutil.copy(PROJECT / "deploy/package/autopkgtest/debian/tests/installed", debian.root / "tmp/installed")
    inside = f"ip link set lo up; mount -t proc proc {debian.root}/proc; chroot {debian.root} /tmp/installed"
    alone = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", f"{inside}; exit $?"]
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # our TMPDIR does not exist there
    done = subprocess.run(alone, capture_output=True, text=True, timeout=180, env=variables)
    assert (done.returncode, done.stdout) == (0, "a mail was scanned and delivered\n"), done.stdout + done.stderr


@pytest.mark.long
def test_lintian_finds_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Except what deploy/package/lintian-overrides accepts, with reasons."""
    root = cached_root("lintian")
    file = package(tmp_path_factory, OLD, "bookworm")
    mounted = f"mount -t tmpfs tmpfs {root}/tmp; cp {file} {root}/tmp; mount -t proc proc {root}/proc"
    lintian = f"chroot {root} lintian --allow-root --fail-on error,warning /tmp/{file.name}"
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", f"{mounted}; {lintian}; exit $?"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_scripts_are_valid() -> None:
    """The shell can parse them, and they name the units that the package installs."""
    need("sh")
    scripts = [path for name in ("deb", "rpm") for path in (PROJECT / "deploy/package" / name).iterdir()]
    single = ("first-tokens", "autopkgtest/debian/tests/installed")
    for script in [*scripts, *(PROJECT / "deploy/package" / name for name in single)]:
        assert subprocess.run(["sh", "-n", script], timeout=10).returncode == 0, script
    units = {path.name for path in (PROJECT / "systemd").glob("scanbridge*") if "@" not in path.name}
    for name in ("deb/postinst", "deb/prerm", "deb/postrm", "rpm/post", "rpm/preun"):
        text = (PROJECT / "deploy/package" / name).read_text()
        assert all(unit in text for unit in units), name
