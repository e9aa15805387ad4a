"""The unit tests on every Python that we support: `make test-pythons`, or `make test-pythons ONLY="3.13 3.14"`.

Each version gets an environment of its own in build/pythons; our own version is in .venv already. The interpreter is
one that uv finds (on PATH, or its own), or one of pyenv. Where there is none, root uses the Debian release that has
this version, in a machine of its own (tests/fresh) with a clone of the last commit; else the version is named as not
installed. Warnings are errors, as in all tests. The folders are those whose tests need few servers; `make test` runs
the rest, on one version. The result is printed; docs/develop/release.md says what was run where.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PLACE = PROJECT / "build" / "pythons"
UV = Path(sys.executable).parent / "uv"
PARALLEL = ("-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal")  # as `make test` does
FAILED, NOT_RUN = "FAILED", "not run"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
MACHINES = {"3.14": "testing"}  # in tests/fresh/machine.py
FOLDERS = (
    *("config", "daemon", "events", "filter", "history", "intake", "lists", "mail", "mime", "observe"),
    *("quarantine", "recipients", "relay", "runtime", "scanner"),
)


def interpreter(version: str) -> Path | None:
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    if found:
        return found[-1]
    done = subprocess.run([UV, "python", "find", "--quiet", version], capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def prepare(version: str, python: Path) -> Path:
    """The interpreter of an environment with everything that the tests import."""
    environment = PLACE / version
    if not environment.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", python, environment], check=True)
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", environment, "--editable", ".[dev]"], cwd=PROJECT, check=True
    )
    return environment / "bin" / "python"


def run_tests(version: str) -> tuple[str, str]:
    """The result, and what pytest said at the end."""
    python = Path(sys.executable) if version == OURS else interpreter(version)
    if python is None and version in MACHINES and os.geteuid() == 0 and shutil.which("mmdebstrap"):
        code, log = logged(version, [sys.executable, "-m", "tests.fresh.machine", MACHINES[version]])
        said = re.findall(rf"Python {re.escape(version)}: \S+: (.*)", log.read_text())
        return FAILED if code else "passed", f"{said[-1] if said else _last_line(log)}; on Debian {MACHINES[version]}"
    if python is None:
        return NOT_RUN, "this Python is not installed"
    try:
        python = python if version == OURS else prepare(version, python)
    except subprocess.CalledProcessError as exc:
        return FAILED, f"the environment could not be made: exit status {exc.returncode}"
    folders = [f"tests/{name}" for name in FOLDERS]
    command = [python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *PARALLEL, *folders]
    code, log = logged(version, command)
    return FAILED if code else "passed", f"{_last_line(log).strip('= ')} ({log.relative_to(PROJECT)})"


def logged(version: str, command: Sequence[str | Path]) -> tuple[int, Path]:
    """The exit status, and the file with what the command prints."""
    path = PLACE / f"{version}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with path.open("w") as log:
        return subprocess.run(command, cwd=PROJECT, env=environment, stdout=log, stderr=log).returncode, path


def _last_line(log: Path) -> str:
    return (log.read_text().strip().splitlines() or ["nothing was printed"])[-1]


def main(versions: list[str]) -> int:
    results = {}
    for version in versions or VERSIONS:
        results[version], said = run_tests(version)
        print(f"Python {version}: {results[version]}: {said}", flush=True)
    return int(FAILED in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
