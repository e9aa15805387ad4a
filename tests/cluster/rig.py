"""The cluster rig: mail flows through a whole cluster while its nodes are killed, frozen, filled and cut off.

    python -m tests.cluster.rig [--minutes 20] [--seed N]

is the long form, `make test-cluster`: its result becomes the tables in docs/evidence/cluster.md.
`test_cluster_rig.py` is the short form. Clients, account and disks are the fault rig's (tests/faults). Needs root.
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
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.cluster.monkey import Monkey
from tests.cluster.operators import NOT_CURRENT, NOT_ENABLED, PATIENCE_S
from tests.cluster.releases import Releases
from tests.cluster.scenarios import Scenario, cause_of, is_deferred, play
from tests.cluster.world import DEADLINE_S, FULL, ClusterWorld
from tests.faults import account as accounts
from tests.faults.account import Account
from tests.faults.rig import SETTLED_S, check_account, flush, publish
from tests.faults.senders import WAYS, Senders

_HUGE_EVERY = 50  # mails, one of which is above the queue's limit and goes by reference (INLINE_BYTES)
_UNWRITTEN_S = 3.0  # rows of the history that a bridge has not written yet when it is killed


@dataclass
class Result:
    seed: int
    seconds: float
    account: Account
    monkey: Monkey
    releases: Releases
    scenarios: list[Scenario] = field(default_factory=list)
    released_twice: list[str] = field(default_factory=list)
    unrecorded: dict[str, list[str]] = field(default_factory=dict)  # why a mail has no row in the history: our ids
    unknown_rows: list[str] = field(default_factory=list)  # rows of mail that is nowhere
    rows: int = 0
    status: tuple[int, str] = (0, "")  # of `scanbridge status --cluster` at the end


def run(
    directory: Path, seed: int, seconds: float, rate: float, counts: dict[str, int] = FULL, namespaces: bool = True,
    longest_s: float = 10.0, late_s: float = DEADLINE_S + 4.0,
    troubles: list[tuple[str, str]] | None = None, scenarios: bool = False,
) -> Result:  # fmt: skip
    """A complete run. `troubles` are done once each, in this order, instead of at random for `seconds`."""
    began = time.monotonic()
    with ClusterWorld(directory, counts, namespaces) as world:
        senders = Senders(world.doors, seed, rate, late_s, huge_every=_HUGE_EVERY)
        monkey, releases = Monkey(world, seed, longest_s), Releases(world, seed)
        senders.start()
        releases.start()
        if troubles is None:
            monkey.start()
            monkey.wait(seconds)
        else:
            monkey.act(troubles)
        monkey.heal()
        played = play(world, monkey, senders) if scenarios else []
        senders.stop(SETTLED_S)
        for postfix in world.front:
            flush(postfix)
        releases.stop()
        _await_history(world)
        result = Result(seed, time.monotonic() - began, _account(world, senders, monkey, releases), monkey, releases)
        result.scenarios = played
        result.status = world.command("status", "--cluster")
        _check_releases(result)
        _compare_history(world, result)
    return result


def _await_history(world: ClusterWorld) -> None:
    """Rows that waited for the database are written within seconds."""

    def count() -> int:
        return len(world.rows("history"))

    before = -1
    while before != (before := count()):
        time.sleep(1.5)


def _account(world: ClusterWorld, senders: Senders, monkey: Monkey, releases: Releases) -> Account:
    account = Account(senders.mails, defaultdict(list), Counter())
    bodies = {mail.id: mail.body() for mail in senders.mails}
    accounts.read_destination(world.destination.mails, account, bodies)
    kept = {row["id"] for row in world.rows("quarantine", "list")}
    accounts.read_quarantine(world.disks["storage1"].place / "mail", kept, account, bodies)
    _set_released_apart(account, releases)
    seen = set(world.seen.read_text().splitlines())
    for mail in senders.mails:
        accounts.judge(account, mail, f"{mail.id} {mail.decision}" in seen)
    log = _log(world)
    for mail_id, copies in account.copies.items():
        if len(copies) > 1:
            account.duplicates[accounts.cause(copies, log, monkey)].append(mail_id)
    return account


def _set_released_apart(account: Account, releases: Releases) -> None:
    """What was released is in the quarantine and at its destination: the second copy has its own rule."""
    for copies in account.copies.values():
        kept = {copy.our_id for copy in copies if copy.where == "quarantine"}
        for copy in [copy for copy in copies if copy.where == "behind" and copy.our_id in kept]:
            account.released[copy.our_id] += 1
            copies.remove(copy)


def _log(world: ClusterWorld) -> dict[str, dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for node in world.cluster.of("bridge"):
        lines |= {key: {**line, "node": node.name} for key, line in accounts.log_lines(node.log).items()}
    return lines


def _check_releases(result: Result) -> None:
    released: Counter[str] = result.account.released
    result.released_twice = sorted(our_id for our_id, count in released.items() if count > 1)
    result.account.lost += sorted(f"released {our_id}" for our_id in result.releases.done - set(released))


def _compare_history(world: ClusterWorld, result: Result) -> None:
    """Each mail that a bridge logged has a row, and each row of a mail that was passed on has its mail."""
    rows = {row["id"]: row for row in world.rows("history")}
    result.rows = len(rows)
    log = _log(world)
    unrecorded: dict[str, list[str]] = defaultdict(list)
    for our_id, line in log.items():
        if our_id not in rows:
            unrecorded[_why_unrecorded(line, result.monkey)].append(our_id)
    result.unrecorded = dict(unrecorded)
    there = {copy.our_id for copies in result.account.copies.values() for copy in copies}
    passed = {
        our_id for our_id, row in rows.items() if row["action"] in ("relay", "quarantine") and row["reply"][0] == "2"
    }
    result.unknown_rows = sorted(passed - there - set(result.account.released))


def _why_unrecorded(line: dict[str, Any], monkey: Monkey) -> str:
    at = datetime.fromisoformat(line["time"]).timestamp()
    ends = [moment for name, moment in monkey.ends if name == line["node"] and moment >= at - 1]
    if ends and min(ends) - at < _UNWRITTEN_S:
        return "the bridge was killed before it wrote them"
    away = [fault for fault in monkey.faults if fault.name.startswith("postgresql")]
    if ends and any(fault.began <= min(ends) and fault.ended >= at for fault in away):
        return "PostgreSQL was away until the bridge was killed or stopped"
    return f"unexplained: {line}"


# The result, as tables


def table(result: Result) -> str:
    account = result.account
    mails = account.mails
    deferred = Counter(cause_of(tried) for mail in mails for tried in mail.tries if is_deferred(tried))
    waits = [tried.seconds for mail in mails if mail.way != "queue" for tried in mail.tries]
    delays = [mail.tries[-1].began + mail.tries[-1].seconds - mail.tries[0].began for mail in mails if mail.tries]
    rows: list[tuple[str, object]] = [
        ("date", time.strftime("%Y-%m-%d")),
        ("seed", result.seed),
        ("length", f"{result.seconds / 60:.1f} min"),
        ("mails", len(mails)),
    ]
    for way in WAYS:
        mine = [mail for mail in mails if mail.way == way]
        tries = sum(len(mail.tries) for mail in mine)
        accepted, refused = sum(mail.accepted for mail in mine), sum(mail.refused for mail in mine)
        rows.append((f"via `{way}`", f"{len(mine)} mails, {tries} tries: {accepted} accepted, {refused} refused"))
    huge = [mail for mail in mails if mail.kind == "huge"]
    restarts = result.monkey.operator.restarts
    rows += [
        ("through the object store", f"{len(huge)} mails: {sum(mail.accepted for mail in huge)} accepted"),
        ("**accepted and never arrived**", f"**{len(account.lost)}**"),
        ("**released twice**", f"**{len(result.released_twice)}**"),
        ("not where the decision sent them", len(account.astray)),
        ("with changed bytes", len(account.damaged)),
        ("without a final reply at the end", len(account.open)),
        ("released from two machines at once", f"{len(result.releases.codes)} mails, {len(account.released)} arrived"),
        ("exit codes of these commands", _counted(result.releases.counts())),
        ("rows in the history", result.rows),
        ("... of mail that cannot be found", len(result.unknown_rows)),
        ("mails without a row", sum(map(len, result.unrecorded.values()))),
        *((f"... {why}", len(ids)) for why, ids in sorted(result.unrecorded.items())),
        ("mails that arrived more than once", sum(map(len, account.duplicates.values()))),
        *((f"... {why}", len(ids)) for why, ids in sorted(account.duplicates.items())),
        ("longest wait for a reply", f"{max(waits, default=0):.1f} s"),
        ("longest time until a mail was accepted", f"{max(delays, default=0):.1f} s"),
        (f"NATS servers restarted after {PATIENCE_S:.0f} s of `{NOT_ENABLED}`", restarts[NOT_ENABLED]),
        (f"NATS servers restarted after {PATIENCE_S:.0f} s of `{NOT_CURRENT}`", restarts[NOT_CURRENT]),
        ("faults", _counted(result.monkey.counts())),
    ]
    text = "| | |\n|---|---|\n" + "\n".join(f"| {name} | {value} |" for name, value in rows)
    causes = "\n".join(f"| `{cause}` | {count} |" for cause, count in deferred.most_common())
    return f"{text}\n\nWhat made clients try again:\n\n| reply | times |\n|---|---|\n{causes}\n"


def _counted(counts: Counter[Any]) -> str:
    return ", ".join(
        f"{name} {count}" if isinstance(name, str) else f"{name}: {count}" for name, count in sorted(counts.items())
    )


def scenario_table(scenarios: list[Scenario]) -> str:
    names = ("killed, down for 15 s", "accepted meanwhile", "deferred", "longest wait", "normal again after", "restart")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for seen in scenarios:
        deferred = "; ".join(f"`{cause}`: {count}" for cause, count in seen.deferred.most_common(3)) or "0"
        normal = f"{seen.disturbed_s:.0f} s" if seen.disturbed_s else "not disturbed"
        lines.append(
            f"| {seen.name} | {seen.accepted} | {deferred} | {seen.longest_s:.1f} s | {normal} | {seen.back_s:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def check(result: Result) -> None:
    """What must hold after any faults."""
    account = result.account
    check_account(result)
    assert result.status[0] == 0, result.status[1]
    assert not result.released_twice, (result.seed, result.released_twice)
    assert not result.unknown_rows, (result.seed, result.unknown_rows[:10])
    for causes in (account.duplicates, result.unrecorded):
        assert not [cause for cause in causes if cause.startswith("unexplained")], (result.seed, causes)


PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "cluster.md"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=10.0, help="mails a second")
    parser.add_argument("--keep", action="store_true", help="keep all files, even after a success")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the cluster rig needs root, for Postfix, small disks and network namespaces")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is cleaned up
    print(f"seed {chosen.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))  # kept after a failure, for its logs
    print(directory, flush=True)
    result = run(directory, chosen.seed, chosen.minutes * 60, chosen.rate, scenarios=chosen.minutes >= 3)
    text, scenarios = table(result), scenario_table(result.scenarios)
    print(text, scenarios, sep="\n", flush=True)
    check(result)
    if chosen.minutes >= 10:
        publish(text, PAGE)
        publish(scenarios, PAGE, "scenarios")
    if not chosen.keep:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
