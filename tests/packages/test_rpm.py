"""The RPM package: its content and scripts, and install, upgrade and removal in an empty root with rpm itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.packages.package_kit import NEW, OLD, Debian, built
from tests.requirements import need


def package(factory: pytest.TempPathFactory, number: str) -> Path:
    (found,) = built(factory).glob(f"scanbridge-{number}-*.rpm")
    return found


def rpm(*words: str | Path) -> str:
    done = subprocess.run(["rpm", *map(str, words)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{words}: {done.stdout[-500:]}{done.stderr[-1000:]}"
    return done.stdout


@pytest.mark.long
def test_package_holds_program_units_and_scripts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As `rpm -qp` shows it before installation."""
    need("rpm")
    file = package(tmp_path_factory, OLD)
    files = set(rpm("-qlp", file).splitlines())
    assert {
        "/usr/bin/scanbridge",
        "/opt/scanbridge/bin/scanbridge",
        "/usr/lib/systemd/system/scanbridge.service",
        "/usr/lib/systemd/system/scanbridge@.socket",
        "/usr/lib/sysusers.d/scanbridge.conf",
        "/usr/share/man/man1/scanbridge-check.1.gz",
        "/usr/share/bash-completion/completions/scanbridge",
        "/usr/share/zsh/site-functions/_scanbridge",
        "/usr/share/licenses/scanbridge/LICENSE",
    } <= files
    assert rpm("-qcp", file).split() == ["/etc/scanbridge/bridge.yml", "/etc/scanbridge/service.yml"]
    flags = rpm("-qp", "--qf", "[%{FILEFLAGS:fflags} %{FILENAMES}\\n]", file)
    assert re.findall(r"^(\S+) /etc/scanbridge/\w+\.yml$", flags, re.MULTILINE) == ["cn", "cn"]  # config, noreplace
    assert {"python3.11", "systemd"} <= set(rpm("-qRp", file).split())
    scripts = rpm("-qp", "--scripts", file)
    for words in ("systemd-sysusers scanbridge.conf", "systemctl enable scanbridge.socket", "systemctl try-restart"):
        assert words in scripts, words


@pytest.mark.long
def test_package_life_cycle_in_an_empty_root(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Installed, upgraded with a changed configuration, and erased, by rpm with its scripts."""
    need("rpm", root=True)
    root = Debian(tmp_path)  # has the Python that the package was built for
    base = ["--root", root.root, "--nodeps"]
    rpm(*base, "-i", package(tmp_path_factory, OLD))
    assert "scanbridge, version" in root.run("scanbridge", "--version")
    assert root.mode("etc/scanbridge/api-token") == 0o600 and "\nscanbridge:" in root.read("etc/passwd")
    bridge = root.root / "etc/scanbridge/bridge.yml"
    bridge.write_text(edited := bridge.read_text().replace("10026", "10099"))
    rpm(*base, "-U", package(tmp_path_factory, NEW))
    assert root.run("scanbridge") == "light\n" and not root.is_file("opt/scanbridge/lib")
    assert bridge.read_text() == edited and "# new" in root.read("etc/scanbridge/bridge.yml.rpmnew")
    assert "# new" in root.read("etc/scanbridge/service.yml")
    rpm(*base, "-e", "scanbridge")
    assert not root.is_file("usr/bin/scanbridge")
    assert root.read("etc/scanbridge/bridge.yml.rpmsave") == edited
