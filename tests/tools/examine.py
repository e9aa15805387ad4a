"""`make test-tools`: runs public tools against a bridge and writes the results to docs/evidence/tools.md.

With NAME... it runs only these and writes nothing. Exits with 0 only if every tool is installed and found nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from tests.requirements import find
from tests.tools import scene as scenery
from tests.tools.checks import CHECKS, QUICK, Failed, Found, Scene

PAGE = scenery.ROOT / "docs" / "evidence" / "tools.md"
MARK = "<!-- what follows is written by `make test-tools` -->\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("only", nargs="*", help=f"some of {', '.join(CHECKS)}")
    options = parser.parse_args()
    if unknown := set(options.only) - set(CHECKS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}")
    chosen = options.only or (list(QUICK) if options.quick else list(CHECKS))
    scenery.enter_namespaces()
    with scenery.scene() as scene:
        found = [result for name in chosen for result in examine(scene, name)]
    if chosen == list(CHECKS):
        write(found)
    bad = [result.tool for result in found if not result.good]
    print(f"{len(found) - len(bad)} found nothing" + (f", {len(bad)} did: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


def examine(scene: Scene, name: str) -> Iterator[Found]:
    check, program = CHECKS[name]
    began = time.monotonic()
    if program and not find(program):
        yield show(
            Found(name, "-", "", f"{program} is not installed (deploy/test-servers.sh installs it)", False), began
        )
        return
    try:
        made = check(scene)
        for result in [made] if isinstance(made, Found) else made:
            yield show(result, began)
    except (Failed, AssertionError, OSError) as exc:
        yield show(Found(name, "-", "", f"{type(exc).__name__}: {exc}", False), began)


def show(result: Found, began: float) -> Found:
    mark = "ok " if result.good else "BAD"
    print(f"{mark} {time.monotonic() - began:6.1f} s  {result.tool}: {result.result}", flush=True)
    return result


def write(found: list[Found]) -> None:
    """Replace everything below the mark; the prose above it stays."""
    prose = PAGE.read_text().partition(MARK)[0]
    rows = [
        f"| {row.tool} | {row.version} | {row.did} | {'clean' if row.good else '**not clean**'} | {row.result} |"
        for row in found
    ]
    rows[:0] = ["| tool | version | what it did | result | what it said |", "|---|---|---|---|---|"]
    PAGE.write_text(f"{prose}{MARK}\nRun on {datetime.now(UTC):%Y-%m-%d}.\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
