"""`make release-check`: may this commit be released? One table, also in docs/evidence/release-check.md.

Each step does what a releaser would do by hand, and says in one line what it found. A step that cannot run here (a
program is not installed, a server cannot be reached) says why: it has neither passed nor failed, and the releaser
decides. `ONLY="docs sbom"` chooses steps; the page then names those that were left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from tools import interfaces, release

PROJECT = release.PROJECT
DIST = PROJECT / "dist"
PAGE = PROJECT / "docs" / "evidence" / "release-check.md"
MARK = "<!-- what follows is written by `make release-check` -->\n"
KINDS = ("*.whl", "*.tar.gz", "*.deb", "*.rpm")
# What pip-audit says if there is no database behind the address, or only a mirror of the packages.
_UNREACHABLE = re.compile(r"could not be audited|ConnectionError|Failed to resolve|Read timed out")
_FROM_MAKE = re.compile(r"make(\[\d+\])?: ")


class Failed(Exception):
    """The step has found something that must not be released."""


class CannotRun(Exception):
    """The step needs something that is not here."""


class Result(Enum):
    PASSED = "passed"
    FAILED = "**failed**"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    step: str
    result: Result
    seconds: float
    said: str


Step = Callable[[], str]


def lint() -> str:
    _make("lint")
    return "ruff and mypy found nothing"


def tests() -> str:
    return _last_line(_make("test"))


def builds() -> str:
    """Into directories with different names: nothing may depend on them."""
    moment = release.commit_time(PROJECT)
    with tempfile.TemporaryDirectory(prefix="scanbridge-release-") as place:
        outs = [Path(place) / name for name in ("first", "the-second")]
        for out in outs:
            release.build(out, moment)
        first, second = map(release.digests, outs)
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise Failed(f"two builds differ: {', '.join(different)}")
    return f"two builds of {len(first)} files are equal, bit for bit"


def bills_of_materials() -> str:
    packages = [package for kind in KINDS for package in _packages(kind)]
    return "libraries listed: " + ", ".join(f"{package.name} {component_count(package)}" for package in packages)


def component_count(package: Path) -> int:
    """How many libraries our bill of materials names; some libraries in a package bring their own."""
    for text in _bills(package):
        bill = json.loads(text)
        about = bill.get("metadata", {}).get("component", {}).get("name")
        if (bill.get("bomFormat"), about) == ("CycloneDX", "scanbridge") and bill.get("components"):
            return len(bill["components"])
    raise Failed(f"{package.name} has no bill of materials")


def _bills(package: Path) -> Iterator[bytes]:
    try:
        import libarchive
    except (ImportError, OSError, TypeError) as exc:  # TypeError: the library is there, the system's is not
        raise CannotRun("libarchive is not installed") from exc
    with libarchive.file_reader(str(package)) as archive:
        yield from _bills_in(libarchive, archive)


def _bills_in(libarchive: Any, archive: Any) -> Iterator[bytes]:
    """libarchive reads a wheel, a source archive and an RPM package; in a Debian package is another archive."""
    for entry in archive:
        name = entry.pathname
        if name.endswith(".cdx.json"):
            yield b"".join(entry.get_blocks())
        elif name.startswith("data.tar"):
            with libarchive.memory_reader(b"".join(entry.get_blocks())) as inner:
                yield from _bills_in(libarchive, inner)


def lintian() -> str:
    if shutil.which("lintian") is None:
        raise CannotRun("lintian is not installed")
    for package in _packages("*.deb"):
        _run("lintian", "--fail-on", "error,warning", "--allow-root", package)
    return "no errors and no warnings; deploy/package/lintian-overrides says why some are accepted"


def _packages(kind: str) -> list[Path]:
    if found := sorted(DIST.glob(kind)):
        return found
    raise CannotRun(f"no {kind} in dist/: run `make release` first")


def audit() -> str:
    try:
        return _last_line(_make("audit"))
    except Failed as exc:
        if _UNREACHABLE.search(str(exc)):
            raise CannotRun(f"not every library could be looked up: {exc}") from exc
        raise


def docs() -> str:
    """`make docs` changes nothing."""
    before = _state()
    _make("docs")
    if changed := sorted(set(_state().items()) - set(before.items())):
        raise Failed(f"`make docs` has changed {', '.join(name for name, _ in changed)}")
    return "references, man pages, completions and dashboard are up to date"


def _state() -> dict[str, str]:
    """Every file that differs from the commit, with how."""
    changed, new = _run("git", "diff", "--name-only", "HEAD"), _run("git", "ls-files", "-o", "--exclude-standard")
    names = [*changed.splitlines(), *new.splitlines()]
    return {name: _run("git", "hash-object", name) if (PROJECT / name).exists() else "" for name in names}


def unchanged_interfaces() -> str:
    changed = [name for name in interfaces.INTERFACES if interfaces.change(name)]
    if changed:
        raise Failed(f"changed and not recorded: {', '.join(changed)} (`python -m tools.interfaces`)")
    return f"{len(interfaces.INTERFACES)} interfaces are as recorded"


STEPS: dict[str, Step] = {
    "lint": lint,
    "docs": docs,
    "interfaces": unchanged_interfaces,
    "tests": tests,
    "builds": builds,
    "sbom": bills_of_materials,
    "lintian": lintian,
    "audit": audit,
}


def _make(target: str) -> str:
    return _run("make", target)


def _run(*words: str | Path) -> str:
    """What a command prints; if it fails, the last line of it is the finding."""
    environment = os.environ | {"MAKEFLAGS": ""}  # we run under make ourselves
    done = subprocess.run(  # noqa: S603
        list(map(str, words)), cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != 0:
        said = "\n".join(line for line in done.stdout.splitlines() if not _FROM_MAKE.match(line))
        raise Failed(f"{' '.join(map(str, words[:2]))}: exit status {done.returncode}: {_last_line(said)}")
    return done.stdout


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip("= ") if lines else ""


def check(steps: Mapping[str, Step], only: Sequence[str]) -> Iterator[Row]:
    for name, step in steps.items():
        began = time.monotonic()
        if only and name not in only:
            result, said = Result.NOT_RUN, "not chosen"
        else:
            result, said = _outcome(step)
        yield Row(name, result, time.monotonic() - began, said)


def _outcome(step: Step) -> tuple[Result, str]:
    try:
        return Result.PASSED, step()
    except CannotRun as exc:
        return Result.NOT_RUN, str(exc)
    except (Failed, OSError, subprocess.SubprocessError) as exc:
        return Result.FAILED, str(exc)


def table(rows: Sequence[Row]) -> str:
    lines = ["| step | result | seconds | what it said |", "|---|---|---|---|"]
    for row in rows:
        seconds = "-" if row.result is Result.NOT_RUN else f"{row.seconds:.0f}"
        said = row.said.replace(f"{PROJECT}/", "").replace("|", "\\|")
        lines.append(f"| {row.step} | {row.result.value} | {seconds} | {said} |")
    return "\n".join(lines) + "\n"


def write(rows: Sequence[Row], page: Path = PAGE) -> None:
    """Replace everything below the mark; the prose above it stays."""
    prose = page.read_text().partition(MARK)[0]
    missing = [row.step for row in rows if row.result is Result.NOT_RUN]
    summary = f"Not run: {', '.join(missing)}." if missing else "Every step was run."
    page.write_text(f"{prose}{MARK}\nRun on {datetime.now(UTC):%Y-%m-%d}. {summary}\n\n{table(rows)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check whether this commit may be released.")
    parser.add_argument("only", nargs="*", metavar="STEP", help=f"some of {', '.join(STEPS)} (default: all)")
    only = parser.parse_args().only
    if unknown := sorted(set(only) - set(STEPS)):
        parser.error(f"no such step: {', '.join(unknown)} (there are {', '.join(STEPS)})")
    rows = []
    for row in check(STEPS, only):
        rows.append(row)
        print(f"{row.step}: {row.result.value.strip('*')}", flush=True)
    print(f"\n{table(rows)}")
    write(rows)
    return any(row.result is Result.FAILED for row in rows)


if __name__ == "__main__":
    sys.exit(main())
