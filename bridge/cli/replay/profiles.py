"""`scanbridge replay --profiles`: what each profile of the phishing model would have done with the same mail.

The included service is started once for each profile, one after the other, so the rest of its
configuration (lists, rules and other engines) applies as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bridge.cli.progress import meter
from bridge.cli.replay import report
from bridge.cli.replay.judgement import NO_DECISION, Replay
from bridge.cli.replay.mails import Source
from bridge.cli.replay.run import Asked, Settings, Work
from bridge.cli.replay.scanners import Choice, opened
from bridge.cli.terminal import say, say_cells
from bridge.config.model import Config
from bridge.runtime.counted import counted
from bridge.runtime.visible_text import visible

PROFILES = ("cautious", "balanced", "strict")
_BEFORE = "at the time"


async def run(conf: Config, service: Choice, sources: Sequence[Source], settings: Settings) -> dict[str, Replay]:
    """Raises ConfigError, BridgeError, TokenRefused."""
    found: dict[str, Replay] = {}
    with meter("replay", len(PROFILES) * len(sources), hidden=len(sources) < 2, what="mails") as advance:
        for profile in PROFILES:
            found[profile] = Replay(f"{service.name(conf)} ({profile})", _BEFORE, settings.level)
            async with opened(replace(service, profile=profile), conf) as scanner:
                await Work(found[profile], Asked(scanner, settings), settings).run(sources, advance)
    return found


def table(replays: dict[str, Replay]) -> dict[str, dict[str, int]]:
    """How many mails each profile would deliver, quarantine and so on; the first line is what was decided before."""
    first = next(iter(replays.values()))
    before = Counter(row.before.label for row in first.done if row.before is not None)
    lines = {profile: Counter(row.now.label for row in replay.done) for profile, replay in replays.items()}
    return {name: dict(counts) for name, counts in {_BEFORE: before, **lines}.items() if counts}


def show(replays: dict[str, Replay]) -> None:
    """The mails that the profiles treat differently, then the table."""
    report.show_problems(next(iter(replays.values())))
    rows = list(zip(*(replay.done for replay in replays.values()), strict=True))
    differing = [row for row in rows if len({mail.now.decision for mail in row}) > 1]
    if differing:
        say_cells("MAIL", *map(str.upper, replays), "FROM", "SUBJECT")
    for row in differing:
        say_cells(
            *map(visible, (row[0].name, *(mail.now.label for mail in row), row[0].sender or "<>", row[0].subject))
        )
    if differing:
        say()
    decisions = table(replays)
    for line in report.matrix_lines(decisions, "profile", list(decisions)):
        say(line)
    say()
    say(f"{counted(len(rows), 'mail')} replayed; the profiles differ in {len(differing):,} of them")


def to_dict(replays: dict[str, Replay]) -> dict[str, Any]:
    return {
        "version": 1,
        "decisions": table(replays),
        "profiles": {name: replay.to_dict() for name, replay in replays.items()},
    }


def lacks_decisions(replays: dict[str, Replay]) -> bool:
    return any(row.now.label == NO_DECISION for replay in replays.values() for row in replay.done)
