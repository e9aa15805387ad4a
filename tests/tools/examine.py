"""`make test-tools`: public tools against a running bridge; what they said is written into docs/evidence/tools.md.

`examine.py NAME...` runs some, and writes nothing. The exit code is 0 only if every tool was there and found nothing.
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
    parser.add_argument("only", nargs="*", help=f"of {', '.join(CHECKS)}")
    options = parser.parse_args()
    if unknown := set(options.only) - set(CHECKS):
        parser.error(f"no such tool: {', '.join(sorted(unknown))}")
    chosen = options.only or (list(QUICK) if options.quick else list(CHECKS))
    scenery.alone()
    with scenery.scene() as scene:
        found = [one for name in chosen for one in examine(scene, name)]
    if chosen == list(CHECKS):
        write(found)
    bad = [one.tool for one in found if not one.good]
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
        for one in [made] if isinstance(made, Found) else made:
            yield show(one, began)
    except (Failed, AssertionError, OSError) as exc:
        yield show(Found(name, "-", "", f"{type(exc).__name__}: {exc}", False), began)


def show(one: Found, began: float) -> Found:
    print(f"{'ok ' if one.good else 'BAD'} {time.monotonic() - began:6.1f} s  {one.tool}: {one.result}", flush=True)
    return one


def write(found: list[Found]) -> None:
    """Our own prose above the mark stays."""
    prose = PAGE.read_text().partition(MARK)[0]
    rows = [
        f"| {one.tool} | {one.version} | {one.did} | {'clean' if one.good else '**not clean**'} | {one.result} |"
        for one in found
    ]
    rows[:0] = ["| tool | version | what it did | result | what it said |", "|---|---|---|---|---|"]
    PAGE.write_text(f"{prose}{MARK}\nRun on {datetime.now(UTC):%Y-%m-%d}.\n\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
