"""The unit tests on every Python that we support: `make test-pythons`, or `make test-pythons ONLY="3.13 3.14"`.

Each version gets an environment of its own in build/pythons. The interpreter is one that uv finds (on PATH, or its
own), or one of pyenv; a version that is not installed is named as such. Warnings are errors, as in all tests. The
folders are those whose tests need few servers; `make test` runs the rest, on one version. The result is printed;
docs/develop/release.md says what was run where.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PLACE = PROJECT / "build" / "pythons"
UV = Path(sys.executable).parent / "uv"
PARALLEL = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "worksteal")  # as `make test` does
FAILED, NOT_RUN = "FAILED", "not run"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
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
    python = interpreter(version)
    if python is None:
        return NOT_RUN, "this Python is not installed"
    try:
        command = [prepare(version, python), "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *PARALLEL]
    except subprocess.CalledProcessError as exc:
        return FAILED, f"the environment could not be made: exit status {exc.returncode}"
    folders = [f"tests/{name}" for name in FOLDERS]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with (PLACE / f"{version}.log").open("w") as log:
        done = subprocess.run([*command, *folders], cwd=PROJECT, env=environment, stdout=log, stderr=log)
    lines = (PLACE / f"{version}.log").read_text().strip().splitlines()
    return FAILED if done.returncode else "passed", f"{lines[-1].strip('= ')} ({log.name})"


def main(versions: list[str]) -> int:
    results = {}
    for version in versions or VERSIONS:
        results[version], said = run_tests(version)
        print(f"Python {version}: {results[version]}: {said}", flush=True)
    return int(FAILED in results.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
