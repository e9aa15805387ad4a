"""The packages, built once per test run for all processes, and clean Debian roots to install them into."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tests import pythons
from tests.debian_root import cached_root
from tests.requirements import need_package_index, unavailable

PROJECT = Path(__file__).parents[2]
OLD, NEW = "0.0.9", "0.2.0"
# A package works only with the Python that built it: that of the Debian release.
PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("package_build", PROJECT / "deploy/package/build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(factory: pytest.TempPathFactory, suite: str = "bookworm") -> Path:
    """A directory with two versions of both packages for this Debian release.

    The old version is the real package with an older version number, without optional libraries. The new version has
    different defaults in /etc and, to save time, no libraries at all.
    """
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    out = shared / f"packages-{suite}"
    with (shared / f"{out.name}.lock").open("w") as lock:  # only one process builds them
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            with tempfile.TemporaryDirectory(dir=shared) as place:
                _build_with(PYTHONS[suite], Path(place))
                (Path(place) / "out").rename(out)
    return out


def _build_with(version: str, place: Path) -> None:
    """Run `_build` with this Python."""
    need_package_index()
    if version == builder().PYTHON:
        _build(place)
        return
    python = pythons.interpreter(version)
    if python is None:
        unavailable(f"Python {version} is not installed")
    command = [pythons.prepare(version, python), "-m", "tests.packages.package_kit", place]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _build(place: Path) -> None:
    build = builder()
    out, real, light = place / "out", place / "real", place / "light"
    for directory in (out, real, light):
        directory.mkdir()
    build.environment(real, build.NATIVE, extras="")
    build.documents(real)
    (light / build.HOME / "bin").mkdir(parents=True)
    (light / build.HOME / "bin/scanbridge").write_text("#!/bin/sh\necho light\n")
    (light / build.HOME / "bin/scanbridge").chmod(0o755)
    build.documents(light)
    changed = _changed_project(place / "project")
    for packager in ("deb", "rpm"):
        build.package(real, packager, build.NATIVE, OLD, out)
        build.package(light, packager, build.NATIVE, NEW, out, changed)


def _changed_project(copy: Path) -> Path:
    """A copy of the files that nfpm.yaml names, with different defaults."""
    for name in ("completions", "deploy", "docs", "systemd"):
        shutil.copytree(PROJECT / name, copy / name)
    for name in ("README.md", "LICENSE"):
        shutil.copy(PROJECT / name, copy)
    for name in ("bridge.yml", "service.yml"):
        with (copy / "deploy/package" / name).open("a") as file:
            file.write("# new in this version\n")
    return copy


class Debian:
    """A copy of the root of a Debian release for one test."""

    def __init__(self, place: Path, suite: str = "bookworm") -> None:
        self.suite, self.root = suite, place / "root"
        subprocess.run(["cp", "-a", cached_root("package", suite), self.root], check=True, timeout=120)

    def run(self, *words: str, code: int = 0) -> str:
        """Runs a command inside the root and returns its output."""
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            ["chroot", str(self.root), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            env=variables,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout[-2000:]}"
        return done.stdout

    def take(self, package: Path) -> str:
        """Copies the package in and returns its path there."""
        shutil.copy(package, self.root / "tmp")
        return f"/tmp/{package.name}"

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def mode(self, path: str) -> int:
        return (self.root / path).stat().st_mode & 0o7777

    def is_file(self, path: str) -> bool:
        """Also true for a link whose target exists only inside this root."""
        return os.path.lexists(self.root / path)


if __name__ == "__main__":
    _build(Path(sys.argv[1]))
