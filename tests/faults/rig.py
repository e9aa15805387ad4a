"""The fault rig: mail flows through real servers while they are killed; afterwards every mail is accounted for.

    python -m tests.faults.rig [--minutes 20] [--seed N]

is the long form, `make test-faults`: its result becomes the table in docs/evidence/trials.md.
`test_fault_rig.py` is the short form. Needs root, for Postfix and for a small disk.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.chain import Postfix, until
from tests.faults import account as accounts
from tests.faults.account import Account
from tests.faults.senders import WAYS, Senders
from tests.faults.troubles import Troubles
from tests.faults.world import DEADLINE_S, World, resident

SETTLED_S = 120.0


class Outcome(Protocol):
    """The result of a run, of this rig or of the cluster's."""

    seed: int
    account: Account


@dataclass
class Result:
    seed: int
    seconds: float
    account: Account
    troubles: Troubles
    starts: int
    exit_codes: list[int]
    left: dict[str, int]  # what the bridge still holds at the end
    highest: int  # memory of one process during the faults
    calm: tuple[int, int]  # memory of all processes afterwards: before and after mail without faults


def run(
    directory: Path, seed: int, seconds: float, rate: float, calm_s: float, pace: float = 1.0, at_least: int = 0
) -> Result:
    """A complete run. Raises AssertionError if something does not finish."""
    began = time.monotonic()
    with World(directory) as world:
        world.bridge.start(1 + seed % 2)
        senders = Senders(world.doors, seed, rate, late_s=DEADLINE_S + 1.0)
        troubles = Troubles(world, seed, pace)
        senders.start()
        troubles.start()
        time.sleep(seconds)
        until(lambda: len(senders.mails) >= at_least, "enough mails")  # on a slow machine it takes longer
        troubles.heal()
        calm = _calm(world, calm_s)
        senders.stop(SETTLED_S)
        for postfix in (world.front, world.behind):
            flush(postfix)
        world.bridge.await_orphans()
        left = _left(world)
        world.bridge.stop()
        world.bridge.start(2)  # files that a killed worker left incomplete are removed at the next start
        account = accounts.make(world, senders.mails, troubles)
        return Result(
            seed=seed,
            seconds=time.monotonic() - began,
            account=account,
            troubles=troubles,
            starts=world.bridge.starts,
            exit_codes=world.bridge.exit_codes,
            left=left,
            highest=world.bridge.highest,
            calm=calm,
        )


def _calm(world: World, seconds: float) -> tuple[int, int]:
    """Mail without faults: memory must not grow."""
    time.sleep(seconds / 2)
    before = sum(map(resident, world.bridge.pids()))
    time.sleep(seconds / 2)
    return before, sum(map(resident, world.bridge.pids()))


def flush(postfix: Postfix) -> None:
    def is_empty() -> bool:
        if not postfix.queue():
            return True
        postfix.run("postqueue", "-f")
        time.sleep(0.5)
        return False

    until(is_empty, "the queue to be empty", SETTLED_S)


def _left(world: World) -> dict[str, int]:
    """What is still held at the end; the last session may take a moment to close."""
    keys = ("in_processing", "bytes_in_processing", "connections")

    def held() -> dict[str, int]:
        state = world.bridge.status()
        return {key: state[key] for key in keys}

    end = time.monotonic() + 15
    while any((now := held()).values()) and time.monotonic() < end:
        time.sleep(0.1)
    return now


# The result, as a table


def table(result: Result) -> str:
    account = result.account
    rows: list[tuple[str, object]] = [
        ("date", time.strftime("%Y-%m-%d")),
        ("seed", result.seed),
        ("length", f"{result.seconds / 60:.1f} min"),
        ("mails", len(account.mails)),
    ]
    for way in WAYS:
        mine = [mail for mail in account.mails if mail.way == way]
        tries = sum(len(mail.tries) for mail in mine)
        accepted, refused = sum(mail.accepted for mail in mine), sum(mail.refused for mail in mine)
        rows.append((f"via `{way}`", f"{len(mine)} mails, {tries} tries: {accepted} accepted, {refused} refused"))
    answers = Counter(tried.reply[:9] or "no answer" for mail in account.mails for tried in mail.tries[:-1])
    rows.append(("replies that made clients retry", ", ".join(f"{word} {n}" for word, n in answers.most_common())))
    kinds = {
        "arrived at the destination": sum(
            any(copy.where == "behind" for copy in copies) for copies in account.copies.values()
        ),
        "quarantined, with file and index row": sum(
            any(copy.where == "quarantine" for copy in copies) for copies in account.copies.values()
        ),
        "bounced to the sender by Postfix": len(account.notices),
        "dropped as decided": sum(mail.accepted and mail.decision == "drop" for mail in account.mails),
    }
    rows += kinds.items()
    rows.append(("**accepted and never arrived**", f"**{len(account.lost)}**"))
    rows += [("not where the decision sent them", len(account.astray)), ("with changed bytes", len(account.damaged))]
    rows.append(("without a final reply at the end", len(account.open)))
    rows.append(("incomplete files in the quarantine", len(account.partial)))
    rows.append(("mails that arrived more than once", sum(map(len, account.duplicates.values()))))
    rows += [(f"... {cause}", len(ids)) for cause, ids in sorted(account.duplicates.items())]
    rows.append(("bridge starts", result.starts))
    rows.append(("exit codes after SIGTERM", ", ".join(map(str, sorted(set(result.exit_codes)))) or "-"))
    rows.append(("still held at the end", ", ".join(f"{key} {value}" for key, value in result.left.items())))
    rows.append(("highest memory of one process", f"{result.highest >> 20} MiB"))
    rows.append(
        ("memory of all, no faults: middle, end", " MiB, ".join(str(size >> 20) for size in result.calm) + " MiB")
    )
    faults = ", ".join(f"{name} {count}" for name, count in sorted(result.troubles.counts().items()))
    rows.append(("faults", faults))
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows) + "\n"


def check_account(result: Outcome) -> None:
    """Every mail is where its decision puts it, whole, and its client knows."""
    account = result.account
    assert not account.lost, story(result, account.lost)
    assert not account.astray, story(result, account.astray)
    assert not account.damaged, story(result, account.damaged)
    assert not account.open, story(result, account.open)


def check(result: Result) -> None:
    """What must hold after any faults."""
    account = result.account
    check_account(result)
    assert not account.partial, account.partial
    assert not [cause for cause in account.duplicates if cause.startswith("unexplained")], account.duplicates
    assert not any(result.left.values()), result.left
    assert set(result.exit_codes) <= {0, -9}, result.exit_codes  # -9: killed by another fault at that moment
    before, after = result.calm
    assert after < before * 1.1 + (8 << 20), result.calm


def story(result: Outcome, ids: list[str]) -> str:
    mails = {mail.id: mail for mail in result.account.mails}
    lines = [
        f"{mails.get(id_, id_)} {result.account.copies.get(id_)} {result.account.notices[id_]}" for id_ in ids[:10]
    ]
    return f"seed {result.seed}, {len(ids)} mails:\n" + "\n".join(lines)


PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "trials.md"


def publish(text: str, page: Path = PAGE, name: str = "last run") -> None:
    """Replace what is between the marks with this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = page.read_text().partition(begin)
    page.write_text(before + begin + "\n" + text + "\n" + end + rest.partition(end)[2])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=12.0, help="mails a second")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the fault rig needs root, for Postfix and for a small disk")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    print(f"seed {chosen.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="faults-"))  # kept after a failure, for its logs
    seconds = chosen.minutes * 60
    result = run(directory, chosen.seed, seconds, chosen.rate, calm_s=min(60.0, seconds / 5))
    text = table(result)
    print(text, flush=True)
    check(result)
    if chosen.minutes >= 10:
        publish(text)
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
