"""Builds the Debian and RPM packages into dist/: `make packages`, or `build.py --arch amd64 --only deb`.

The program and all its libraries are in a virtual environment, /opt/scanbridge, where the units expect them.
Only the interpreter of the system's Python is used, and it is not changed. The environment is for the Python
that runs this script (3.11 for Debian 12, 3.13 for Debian 13) and for the chosen processor, which need not be
the one of this machine. nfpm.yaml says what goes where, and has the rest of the package.

Two builds of the same commit are equal, bit for bit: libraries have the versions of requirements/packages.lock, all
times are SOURCE_DATE_EPOCH (by default the time of the last commit), and nothing names the machine or a directory.
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
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
HOME = Path("opt/scanbridge")  # in the package
EXTRAS = "all"  # libraries cannot be added to a package later
LOCK = PROJECT / "requirements" / "packages.lock"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# Debian's name for a processor -> its name in wheels, and e_machine of its ELF files. The C library is that of
# Enterprise Linux 9, which is older than Debian 12's.
PROCESSORS = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}
C_LIBRARY = "manylinux_2_34"
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# Only needed to build or to develop the libraries.
SOURCES = ("*.c", "*.h", "*.pxd", "*.pyx", "*.pxi", ".gitignore")
MAINTAINER = "scanbridge maintainers <maintainers@scanbridge.invalid>"  # as in nfpm.yaml


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the Debian and RPM packages.")
    parser.add_argument("--arch", choices=PROCESSORS, default=NATIVE, help="processor (default: this machine's)")
    parser.add_argument("--only", choices=["deb", "rpm"], help="build only this package (default: both)")
    parser.add_argument("--version", action="append", help="package version (default: the project's); repeatable")
    parser.add_argument("--out", type=Path, default=PROJECT / "dist", help="output directory (default: dist)")
    wanted = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", epoch())
    with tempfile.TemporaryDirectory(prefix="scanbridge-package-") as directory:
        stage = Path(directory)
        environment(stage, wanted.arch)
        documents(stage)
        wanted.out.mkdir(parents=True, exist_ok=True)
        for packager in [wanted.only] if wanted.only else ["deb", "rpm"]:
            for number in wanted.version or [version(stage)]:
                package(stage, packager, wanted.arch, number, wanted.out.resolve())


def epoch() -> str:
    """The time of the last commit, else of the changelog."""
    command = ["git", "-C", str(PROJECT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip() or str(int((PROJECT / "CHANGELOG.md").stat().st_mtime))


def environment(stage: Path, arch: str, extras: str = EXTRAS) -> None:
    """Create the virtual environment as it will be installed in /opt/scanbridge."""
    site = stage / HOME / "lib" / f"python{PYTHON}" / "site-packages"
    processor, machine = PROCESSORS[arch]
    run("uv", "build", "--quiet", "--wheel", "--out-dir", stage / "wheel", PROJECT)
    (wheel,) = (stage / "wheel").glob("*.whl")
    target = ["--target", site, "--python-version", PYTHON, "--python-platform", f"{processor}-{C_LIBRARY}"]
    run("uv", "pip", "install", "--quiet", *target, "--constraint", LOCK, f"{wheel}[{extras}]")
    forget_installation(site)
    (stage / "doc").mkdir()
    run(sys.executable, "-m", "tools.sbom", "--site", site, "--out", stage / "doc" / "sbom.cdx.json", cwd=PROJECT)
    for name in ("bin", "share"):  # commands of libraries, and files that the package has elsewhere
        shutil.rmtree(site / name, ignore_errors=True)
    for pattern in SOURCES:
        for source in site.rglob(pattern):
            source.unlink()
    for path in site.rglob("*"):
        if path.is_file():
            path.chmod(0o644)  # nothing in it is started as a program
    for library in site.rglob("*.so*"):
        found = struct.unpack("<H", library.read_bytes()[18:20])[0]
        assert found == machine, (
            f"{library.relative_to(site)} is not for {arch}: there is no wheel for it, so it was built for this machine"
        )
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


def forget_installation(site: Path) -> None:
    """Remove what says where and when a library was installed."""
    for name in ("direct_url.json", "uv_cache.json", "uv_build.json"):
        for path in site.glob(f"*.dist-info/{name}"):
            record = path.with_name("RECORD")
            lines = [line for line in record.read_text().splitlines() if f".dist-info/{name}," not in line]
            record.write_text("\n".join(sorted(lines)) + "\n")
            path.unlink()
    (site / ".lock").unlink(missing_ok=True)


def compile_all(stage: Path, site: Path) -> None:
    """Bytecode that is never checked against the sources: the package always replaces both together."""
    names = ["-s", stage, "-p", "/", "--invalidation-mode", "unchecked-hash"]
    run(sys.executable, "-m", "compileall", "-q", "-j", "0", *names, site, PYTHONHASHSEED="0")


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
    moment = os.environ.setdefault("SOURCE_DATE_EPOCH", epoch())
    variables = {"STAGE": str(stage), "ARCH": arch, "VERSION": number, "PYTHON": PYTHON}
    source = copied(source, stage / "project")
    debian_changelog(stage, number, int(moment))
    for path in [stage, *stage.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (int(moment), int(moment)), follow_symlinks=False)
    command = ["nfpm", "package", "--config", "deploy/package/nfpm.yaml", "--packager", packager, "--target", out]
    run(*command, cwd=source, **variables)
    print(f"built the {packager} package for {arch}, Python {PYTHON}, in {out}")


def debian_changelog(stage: Path, number: str, moment: int) -> None:
    """What Debian's tools read. What changed is in our own changelog beside it."""
    entry = "  * New version; changelog.gz says what has changed."
    text = f"scanbridge ({number}-1) unstable; urgency=medium\n\n{entry}\n\n -- {MAINTAINER}  {formatdate(moment)}\n"
    (stage / "debian").mkdir(exist_ok=True)
    (stage / "debian" / "changelog.Debian.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def copied(source: Path, target: Path) -> Path:
    """The files that nfpm.yaml names, in a directory where their times can be set."""
    shutil.rmtree(target, ignore_errors=True)
    for name in ("completions", "deploy", "docs", "systemd"):
        shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "LICENSE"):
        shutil.copy(source / name, target)
    return target


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
