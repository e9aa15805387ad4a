"""The unit files, as far as they can be checked without a running systemd (`make test-systemd` runs one)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.requirements import need, unavailable

SYSTEMD = Path(__file__).parents[2] / "systemd"
SERVICES = [
    "scanbridge.service",
    "scanbridge@.service",
    "scanbridge-scanner.service",
    "scanbridge-console.service",
    "scanbridge-digest.service",
    "scanbridge-worker.service",
]
WORST = 1.2


def need_analyze() -> None:
    """As a user where systemd does not run, it fails before it reads a unit, and `verify` says nothing about any."""
    need("systemd-analyze")
    if os.geteuid() != 0 and not Path("/run/systemd").exists():
        unavailable("systemd-analyze needs /run/systemd, which only root can create")


def unit(name: str) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and all their values."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in (SYSTEMD / name).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the units installed, and a stand-in for the program."""
    root = tmp_path_factory.mktemp("root")
    units = root / "etc/systemd/system"
    units.mkdir(parents=True)
    for file in SYSTEMD.glob("scanbridge*"):
        shutil.copy(file, units)
    for program in ("opt/scanbridge/bin/scanbridge", "bin/sh"):
        (root / program).parent.mkdir(parents=True, exist_ok=True)
        (root / program).write_text("#!/bin/true\n")
        (root / program).chmod(0o755)
    for target in ("sysinit", "basic", "shutdown", "network-online", "sockets", "multi-user"):
        (units / f"{target}.target").write_text("[Unit]\nDescription=x\n")
    return root


def verify(root: Path, *names: str) -> str:
    command = ["systemd-analyze", "verify", f"--root={root}", "--recursive-errors=yes", "--man=no"]
    paths = [str(root / "etc/systemd/system" / name) for name in names]
    done = subprocess.run([*command, *paths], capture_output=True, text=True, timeout=30)
    said = (done.stderr + done.stdout).splitlines()
    return "\n".join(line for line in said if "scanbridge" in line or "wrong" in line)  # not about other units


def test_systemd_finds_nothing_wrong_with_the_units(installed: Path) -> None:
    """`systemd-analyze verify` reports nothing about any of them, including instances."""
    need_analyze()
    names = [file.name.replace("@.", "@one.") for file in SYSTEMD.glob("scanbridge*")]
    assert len(names) == 9
    for name in names:
        if "@" in name:
            template = installed / "etc/systemd/system" / re.sub("@.*[.]", "@.", name)
            shutil.copy(template, template.with_name(name))
    assert verify(installed, *names) == ""


def test_a_wrong_unit_would_be_found(installed: Path) -> None:
    """This shows that the test above can fail."""
    need_analyze()
    text = (SYSTEMD / "scanbridge.service").read_text()
    (installed / "etc/systemd/system/wrong.service").write_text(text.replace("WatchdogSec=30s", "WatchdogSec=soon"))
    assert "Failed to parse sec value" in verify(installed, "wrong.service")


@pytest.mark.parametrize("name", SERVICES)
def test_exposure_is_small(name: str) -> None:
    """`systemd-analyze security` gives every service at most 1.2."""
    need_analyze()
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={round(WORST * 10)}", "--no-pager"]
    done = subprocess.run([*command, str(SYSTEMD / name)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    assert float(re.findall(r"service: ([\d.]+)", done.stdout)[-1]) <= WORST


def test_instances_are_as_strict_as_the_single_service() -> None:
    """Only the paths and the user differ."""
    one, many = unit("scanbridge.service"), unit("scanbridge@.service")
    places = {"ExecStart", "ExecReload", "LoadCredential", "StateDirectory", "User"}
    assert many["Service"].pop("SupplementaryGroups") == ["scanbridge"]
    assert {key: value for key, value in one["Service"].items() if key not in places} == {
        key: value for key, value in many["Service"].items() if key not in places
    }
    assert all("%i" in many["Service"][key][0] for key in places)


@pytest.mark.parametrize("name", ["scanbridge-console.service", "scanbridge-digest.service"])
def test_what_people_reach_is_as_strict_as_the_bridge(name: str) -> None:
    """It has the bridge's state and user, and is restricted in the same way."""
    bridge, console = unit("scanbridge.service")["Service"], unit(name)["Service"]
    assert console["StateDirectory"] == bridge["StateDirectory"] and console["User"] == ["scanbridge"]
    kinds = ("Protect", "Private", "Restrict", "SystemCall", "Capability", "NoNew", "Lock", "MemoryDeny", "UMask")
    assert [key for key in bridge if key.startswith(kinds) and bridge[key] != console.get(key)] == []


def test_a_worker_is_as_strict_as_the_service() -> None:
    """It does the same work, on other machines."""
    service, worker = unit("scanbridge-scanner.service")["Service"], unit("scanbridge-worker.service")["Service"]
    places = {"ExecStart", "LoadCredential", "StateDirectory", "ExecStopPost"}
    assert {key: value for key, value in service.items() if key not in places} == {
        key: value for key, value in worker.items() if key not in places
    }


def test_sockets_are_those_of_the_usual_configuration() -> None:
    """The addresses of the README's configuration and of the recipes; and the service's address."""
    assert unit("scanbridge.socket")["Socket"]["ListenStream"] == [
        "127.0.0.1:10025",
        "127.0.0.1:10027",
        "127.0.0.1:9082",
    ]
    assert unit("scanbridge-scanner.socket")["Socket"]["ListenStream"] == ["127.0.0.1:9081"]


def test_sysusers_and_tmpfiles_are_taken(tmp_path: Path) -> None:
    """As systemd reads them at boot, into an empty root."""
    need("systemd-sysusers", "systemd-tmpfiles", root=True)
    (tmp_path / "etc/scanbridge").mkdir(parents=True)
    token = tmp_path / "etc/scanbridge/api-token"
    token.touch(0o644)
    for name in ("sysusers", "tmpfiles"):
        command = [f"systemd-{name}", f"--root={tmp_path}", *(["--create"] if name == "tmpfiles" else [])]
        conf = str(SYSTEMD / f"{name}.d" / "scanbridge.conf")
        done = subprocess.run([*command, conf], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 and "ignoring" not in done.stderr.lower(), done.stderr
    users = (tmp_path / "etc/passwd").read_text()
    assert {line.partition(":")[0] for line in users.splitlines()} == {"scanbridge", "scanbridge-scanner"}
    assert token.stat().st_mode & 0o777 == 0o600 and (tmp_path / "run/scanbridge").is_dir()
