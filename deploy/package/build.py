"""Builds the Debian and RPM packages into dist/: `make packages`, or `build.py --arch amd64 --only deb`.

The program and all its libraries are in a virtual environment, /opt/scanbridge, where the units expect them.
Of the system's Python only the interpreter is used, and nothing is changed. The environment is for the Python
that runs this script (3.11 for Debian 12, 3.13 for Debian 13) and for the chosen processor, which need not be
the one of this machine. nfpm.yaml says what goes where, and has the rest of the package.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
HOME = Path("opt/scanbridge")  # in the package
EXTRAS = "authentication,console,otel,postgresql,s3"  # libraries cannot be added to a package later
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# Debian's name of a processor -> its name in wheels, and e_machine of its ELF files. The C library is that of
# Enterprise Linux 9, which is older than Debian 12's.
PROCESSORS = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}
C_LIBRARY = "manylinux_2_34"
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# Only needed to build the libraries.
SOURCES = ("*.c", "*.h", "*.pxd", "*.pyx", "*.pxi")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the Debian and RPM packages.")
    parser.add_argument("--arch", choices=PROCESSORS, default=NATIVE, help="processor (default: this machine's)")
    parser.add_argument("--only", choices=["deb", "rpm"], help="build only this package (default: both)")
    parser.add_argument("--version", action="append", help="package version (default: the project's); repeatable")
    parser.add_argument("--out", type=Path, default=PROJECT / "dist", help="output directory (default: dist)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scanbridge-package-") as directory:
        stage = Path(directory)
        environment(stage, wanted.arch)
        documents(stage)
        wanted.out.mkdir(parents=True, exist_ok=True)
        for packager in [wanted.only] if wanted.only else ["deb", "rpm"]:
            for number in wanted.version or [version(stage)]:
                package(stage, packager, wanted.arch, number, wanted.out.resolve())


def environment(stage: Path, arch: str, extras: str = EXTRAS) -> None:
    """Create the virtual environment as it will be installed in /opt/scanbridge."""
    site = stage / HOME / "lib" / f"python{PYTHON}" / "site-packages"
    processor, machine = PROCESSORS[arch]
    run("uv", "build", "--quiet", "--wheel", "--out-dir", stage / "wheel", PROJECT)
    (wheel,) = (stage / "wheel").glob("*.whl")
    target = ["--target", site, "--python-version", PYTHON, "--python-platform", f"{processor}-{C_LIBRARY}"]
    run("uv", "pip", "install", "--quiet", *target, f"{wheel}[{extras}]")
    for name in ("bin", "share"):  # commands of libraries, and files that the package has elsewhere
        shutil.rmtree(site / name, ignore_errors=True)
    for pattern in SOURCES:
        for source in site.rglob(pattern):
            source.unlink()
    for library in site.rglob("*.so*"):
        found = struct.unpack("<H", library.read_bytes()[18:20])[0]
        assert found == machine, f"{library.relative_to(site)} is not for {arch}: without a wheel, it was built here"
    programs = stage / HOME / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(f"/usr/bin/python{PYTHON}")
    (programs / "scanbridge").write_text(PROGRAM)
    (programs / "scanbridge").chmod(0o755)
    (stage / HOME / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    )
    compile_all(stage, site)


PROGRAM = """\
#!/opt/scanbridge/bin/python3
import sys

from bridge.cli import main

sys.exit(main(prog_name="scanbridge"))
"""


def compile_all(stage: Path, site: Path) -> None:
    """Bytecode that is never checked against the sources: the package always replaces both together."""
    names = ["-s", stage, "-p", "/", "--invalidation-mode", "unchecked-hash"]
    run(sys.executable, "-m", "compileall", "-q", "-j", "0", *names, site)


def documents(stage: Path) -> None:
    """Man pages and the changelog, compressed as Debian and RPM expect; the recipes of deploy/."""
    for source, target in [
        *((page, f"man/{page.name}.gz") for page in (PROJECT / "man").glob("*.1")),
        (PROJECT / "CHANGELOG.md", "doc/changelog.gz"),
    ]:
        (stage / target).parent.mkdir(exist_ok=True)
        (stage / target).write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    for recipe in [*(PROJECT / "deploy").glob("*/bridge.yml"), PROJECT / "deploy/mixin/alerts.yml"]:
        if recipe.parent.name not in ("compose", "package"):  # not useful outside the project
            shutil.copytree(recipe.parent, stage / "deploy" / recipe.parent.name)


def version(stage: Path) -> str:
    (wheel,) = (stage / "wheel").glob("*.whl")
    return wheel.name.split("-")[1]


def package(stage: Path, packager: str, arch: str, number: str, out: Path, source: Path = PROJECT) -> None:
    variables = {"STAGE": str(stage), "ARCH": arch, "VERSION": number, "PYTHON": PYTHON}
    command = ["nfpm", "package", "--config", "deploy/package/nfpm.yaml", "--packager", packager, "--target", out]
    run(*command, cwd=source, **variables)
    print(f"built the {packager} package for {arch}, Python {PYTHON}, in {out}")


def run(*words: object, cwd: Path | None = None, **variables: str) -> None:
    """Run a tool that is installed next to our interpreter; show its output only if it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | {"PATH": path} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words[:3]))} ...: exit code {done.returncode}\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main()
