"""`make release-check`: may this commit be released? One table, also in docs/evidence/release-check.md.

Each step does what a releaser would do by hand, and says in one line what it found. A step that cannot run here (a
program is not installed, a server cannot be reached) says why, and one of which only a part could run says which:
neither has passed or failed, and the releaser decides. `ONLY="docs sbom"` chooses steps: all of them take hours. The
others keep their row from an earlier run; each row names its commit, and the page names the steps of other commits.
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
BUILT = PROJECT / "build" / "release"
SITE = PROJECT / "build" / "site"
PAGE = PROJECT / "docs" / "evidence" / "release-check.md"
MARK = "<!-- what follows is written by `make release-check` -->\n"
KINDS = ("*.whl", "*.tar.gz", "*.deb", "*.rpm")
_UNREACHABLE = re.compile(r"connect|resolve|timed out", re.IGNORECASE)  # pip-audit found no database
_SUMMARY = re.compile(r"^=* ?(\d+ [a-z]+\b.* in \d[^=]*?) ?=*$", re.MULTILINE)  # pytest's last line
_FROM_MAKE = re.compile(r"make(\[\d+\])?: ")


class Failed(Exception):
    """The step has found something that must not be released."""


class CannotRun(Exception):
    """The step needs something that is not here."""


class InPart(Exception):
    """The step has run as far as it can here, and what has run has passed."""


class Result(Enum):
    PASSED = "passed"
    IN_PART = "in part"
    FAILED = "**failed**"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Row:
    step: str
    result: str
    seconds: str
    commit: str
    said: str


UNFINISHED = (("Not run", Result.NOT_RUN), ("Run only in part", Result.IN_PART))
COLUMNS = "| step | result | seconds | commit | what it said |"
_CELL = re.compile(r"(?<!\\)\|")  # `\|` is a part of the text

Step = Callable[[], str]


def lint() -> str:
    _make("lint")
    return "ruff and mypy found no problems"


def site() -> str:
    _make("site")
    return f"{sum(1 for _ in SITE.rglob('*.html'))} pages, no broken links, every page in the navigation"


def tests() -> str:
    return tested(_make("test"))


def upgrade() -> str:
    return tested(_make("test-upgrade"))


def installs() -> str:
    return tested(_make("test-packages"))


def tested(output: str) -> str:
    """What pytest counted. A test that was skipped has not passed: its server, or a package index, is not here."""
    said = ", then ".join(_SUMMARY.findall(output)) or _last_line(output)
    if " passed" not in f" {said}":
        raise CannotRun(said)
    if " skipped" in said:
        raise InPart(said)
    return said


def pythons() -> str:
    done = _finished("make", "test-pythons")
    said = "; ".join(line for line in done.stdout.splitlines() if line.startswith("Python "))
    if done.returncode != 0:
        raise Failed(said or _last_line(done.stdout))
    if ": not run: " in said or " skipped" in said:
        raise InPart(said)
    return said


def builds() -> str:
    """Into directories with different names: nothing may depend on them. The first is for the steps after this one."""
    moment = release.commit_time(PROJECT)
    shutil.rmtree(BUILT, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="scanbridge-release-") as second_place:
        outs = [BUILT, Path(second_place)]
        for out in outs:
            release.build(out, moment)
        first, second = map(release.digests, outs)
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise Failed(f"two builds differ: {', '.join(different)}")
    return f"two builds of {len(first)} files are identical, bit for bit"


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
    except (ImportError, OSError, AttributeError, TypeError) as exc:  # or only the package is
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
    if found := sorted(BUILT.glob(kind)):
        return found
    raise CannotRun(f"no {kind} in build/release: run the step `builds` first")


def audit() -> str:
    """Without --strict: one library that cannot be looked up must not hide the others."""
    done = _finished("make", "audit", "AUDIT_OPTIONS=--format json")
    report = next((line for line in done.stdout.splitlines() if line.startswith('{"dependencies"')), "")
    if not report:
        said = _last_line(_without_make(done.stdout))
        raise (CannotRun if _UNREACHABLE.search(said) else Failed)(f"make audit: {said}")
    return audited(json.loads(report)["dependencies"])


def audited(libraries: Sequence[Mapping[str, Any]]) -> str:
    """What pip-audit's report says about each of these libraries."""
    skipped = {one["name"]: str(one["skip_reason"]) for one in libraries if "skip_reason" in one}
    holes = [f"{one['name']} {one['version']}: {hole['id']}" for one in libraries for hole in one.get("vulns", ())]
    if holes:
        raise Failed(f"{', '.join(holes)}; could not be looked up: {', '.join(skipped) or 'none'}")
    if len(skipped) == len(libraries):
        raise CannotRun(f"none of {len(libraries)} libraries could be looked up: {next(iter(skipped.values()), '')}")
    said = f"no known vulnerability in {len(libraries) - len(skipped)} of {len(libraries)} libraries"
    if skipped:
        raise InPart(f"{said}; could not be looked up: {', '.join(skipped)}")
    return said


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
    "site": site,
    "tests": tests,
    "upgrade": upgrade,
    "pythons": pythons,
    "installs": installs,
    "builds": builds,
    "sbom": bills_of_materials,
    "lintian": lintian,
    "audit": audit,
}


def _make(target: str) -> str:
    return _run("make", target)


def _run(*words: str | Path) -> str:
    """What a command prints; if it fails, the last line of it is the finding."""
    done = _finished(*words)
    if done.returncode != 0:
        said = _last_line(_without_make(done.stdout))
        raise Failed(f"{' '.join(map(str, words[:2]))}: exit status {done.returncode}: {said}")
    return done.stdout


def _finished(*words: str | Path) -> subprocess.CompletedProcess[str]:
    # We run under make ourselves, and it exports its ONLY, which means something else to other targets.
    environment = {name: value for name, value in os.environ.items() if name != "ONLY"} | {"MAKEFLAGS": ""}
    return subprocess.run(  # noqa: S603
        list(map(str, words)), cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _without_make(output: str) -> str:
    return "\n".join(line for line in output.splitlines() if not _FROM_MAKE.match(line))


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip("= ") if lines else ""


def check(steps: Mapping[str, Step], only: Sequence[str], commit: str) -> Iterator[Row]:
    """The rows of the chosen steps, each when its step has ended."""
    for name, step in steps.items():
        if only and name not in only:
            continue
        began = time.monotonic()
        result, said = _outcome(step)
        seconds = "-" if result is Result.NOT_RUN else f"{time.monotonic() - began:.0f}"
        yield Row(name, result.value, seconds, commit, said.replace(f"{PROJECT}/", "").replace("|", "\\|"))


def _outcome(step: Step) -> tuple[Result, str]:
    try:
        return Result.PASSED, step()
    except InPart as exc:
        return Result.IN_PART, str(exc)
    except CannotRun as exc:
        return Result.NOT_RUN, str(exc)
    except (Failed, OSError, subprocess.SubprocessError) as exc:
        return Result.FAILED, str(exc)


def earlier_rows(page: Path = PAGE) -> dict[str, Row]:
    """What the page says about each step."""
    lines = page.read_text().partition(MARK)[2].partition(COLUMNS)[2].splitlines()
    found = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in lines[2:]]
    return {cells[0]: Row(*cells) for cells in found}


def table(rows: Sequence[Row]) -> str:
    lines = [f"| {row.step} | {row.result} | {row.seconds} | {row.commit} | {row.said} |" for row in rows]
    return "\n".join([COLUMNS, "|---|---|---|---|---|", *lines]) + "\n"


def write(rows: Sequence[Row], commit: str, page: Path = PAGE) -> None:
    """Replace everything below the mark; the prose above it stays."""
    prose = page.read_text().partition(MARK)[0]
    left = [(word, [row.step for row in rows if row.result == result.value]) for word, result in UNFINISHED]
    left.append(("Run on other commits", [row.step for row in rows if row.commit not in (commit, "-")]))
    summary = " ".join(f"{word}: {', '.join(steps)}." for word, steps in left if steps) or "Every step was run."
    page.write_text(f"{prose}{MARK}\nCommit {commit}, {datetime.now(UTC):%Y-%m-%d}. {summary}\n\n{table(rows)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Check whether this commit may be released.")
    parser.add_argument("only", nargs="*", metavar="STEP", help=f"one of {', '.join(STEPS)} (default: all steps)")
    only = parser.parse_args().only
    if unknown := sorted(set(only) - set(STEPS)):
        parser.error(f"no such step: {', '.join(unknown)} (available: {', '.join(STEPS)})")
    commit = _run("git", "rev-parse", "--short", "HEAD").strip()
    earlier = earlier_rows()
    rows = {name: earlier.get(name, Row(name, Result.NOT_RUN.value, "-", "-", "not chosen")) for name in STEPS}
    for row in check(STEPS, only, commit):
        rows[row.step] = row
        print(f"{row.step}: {row.result.strip('*')}", flush=True)
        write(list(rows.values()), commit)  # an interrupted check keeps what it has found
    print(f"\n{table(list(rows.values()))}")
    return any(row.result == Result.FAILED.value and row.commit == commit for row in rows.values())


if __name__ == "__main__":
    sys.exit(main())
