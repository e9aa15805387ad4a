"""Makes the Debian and the RPM package into dist/: `make packages`, or `build.py --arch amd64 --only deb`.

The program and all its libraries lie in a virtual environment of their own, /opt/scanbridge, where the units
expect it: nothing of the system's Python is changed, and nothing of it is used but the interpreter. The
environment is for the Python that runs this script (3.11 for Debian 12, 3.13 for Debian 13); its files are
those of the chosen processor, whatever this machine has. What goes where, and the rest of the package: nfpm.yaml.
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
EXTRAS = "authentication,otel,postgresql,s3"  # nobody adds libraries to a package
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# Debian's name of a processor -> the one of wheels, and e_machine of its ELF files. The C library is that of
# Enterprise Linux 9, older than Debian 12's.
PROCESSORS = {"amd64": ("x86_64", 62), "arm64": ("aarch64", 183)}
C_LIBRARY = "manylinux_2_34"
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# What was only there to make the libraries.
SOURCES = ("*.c", "*.h", "*.pxd", "*.pyx", "*.pxi")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the Debian and the RPM package.")
    parser.add_argument("--arch", choices=PROCESSORS, default=NATIVE, help="processor (default: this machine's)")
    parser.add_argument("--only", choices=["deb", "rpm"], help="default: both")
    parser.add_argument("--version", action="append", help="default: the project's; several make several packages")
    parser.add_argument("--out", type=Path, default=PROJECT / "dist", help="directory (default: dist)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scanbridge-package-") as place:
        stage = Path(place)
        environment(stage, wanted.arch)
        documents(stage)
        wanted.out.mkdir(parents=True, exist_ok=True)
        for packager in [wanted.only] if wanted.only else ["deb", "rpm"]:
            for number in wanted.version or [version(stage)]:
                package(stage, packager, wanted.arch, number, wanted.out.resolve())


def environment(stage: Path, arch: str, extras: str = EXTRAS) -> None:
    """The virtual environment, as it will lie at /opt/scanbridge."""
    site = stage / HOME / "lib" / f"python{PYTHON}" / "site-packages"
    processor, machine = PROCESSORS[arch]
    run("uv", "build", "--quiet", "--wheel", "--out-dir", stage / "wheel", PROJECT)
    (wheel,) = (stage / "wheel").glob("*.whl")
    target = ["--target", site, "--python-version", PYTHON, "--python-platform", f"{processor}-{C_LIBRARY}"]
    run("uv", "pip", "install", "--quiet", *target, f"{wheel}[{extras}]")
    for name in ("bin", "share"):  # commands of libraries, and what the package has elsewhere
        shutil.rmtree(site / name, ignore_errors=True)
    for pattern in SOURCES:
        for source in site.rglob(pattern):
            source.unlink()
    for library in site.rglob("*.so*"):
        found = struct.unpack("<H", library.read_bytes()[18:20])[0]
        assert found == machine, f"{library.relative_to(site)} is not for {arch}: it has no wheel, and was built here"
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
    """Bytecode that is believed unseen: the files are the package's, and it alone replaces them together."""
    names = ["-s", stage, "-p", "/", "--invalidation-mode", "unchecked-hash"]
    run(sys.executable, "-m", "compileall", "-q", "-j", "0", *names, site)


def documents(stage: Path) -> None:
    """Man pages and the changelog, compressed as both worlds do it; the recipes of deploy/."""
    for source, place in [
        *((page, f"man/{page.name}.gz") for page in (PROJECT / "man").glob("*.1")),
        (PROJECT / "CHANGELOG.md", "doc/changelog.gz"),
    ]:
        (stage / place).parent.mkdir(exist_ok=True)
        (stage / place).write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    for recipe in [*(PROJECT / "deploy").glob("*/bridge.yml"), PROJECT / "deploy/mixin/alerts.yml"]:
        if recipe.parent.name not in ("compose", "package"):  # of no use without the project around it
            shutil.copytree(recipe.parent, stage / "deploy" / recipe.parent.name)


def version(stage: Path) -> str:
    (wheel,) = (stage / "wheel").glob("*.whl")
    return wheel.name.split("-")[1]


def package(stage: Path, packager: str, arch: str, number: str, out: Path, source: Path = PROJECT) -> None:
    variables = {"STAGE": str(stage), "ARCH": arch, "VERSION": number, "PYTHON": PYTHON}
    command = ["nfpm", "package", "--config", "deploy/package/nfpm.yaml", "--packager", packager, "--target", out]
    run(*command, cwd=source, **variables)
    print(f"made a {packager} for {arch}, Python {PYTHON}, in {out}")


def run(*words: object, cwd: Path | None = None, **variables: str) -> None:
    """One of the tools beside our interpreter, with its words only if it fails."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(  # noqa: S603
        [str(word) for word in words],
        cwd=cwd,
        env=os.environ | {"PATH": beside} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words[:3]))} ...: exit code {done.returncode}\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main()
