"""What a replay shows: a line for each mail that changed, the totals and a confusion matrix; CSV and JSON.

Everything in it was written by somebody else (senders, a service), so it is made visible before it is laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bridge.cli import table
from bridge.cli.replay.judgement import Judgement, Replay, Row, Status, in_order
from bridge.cli.terminal import say, say_cells, say_csv, width
from bridge.runtime.counted import counted
from bridge.runtime.visible_text import visible

_COLUMNS = ("MAIL", "STATUS", "DECISION", "VERDICT", "TAGS", "FROM", "SUBJECT")
_SHARED = ("MAIL", "TAGS", "FROM", "SUBJECT", "VERDICT", "DECISION")
_LEAST_IMPORTANT = ("SUBJECT", "FROM", "STATUS", "TAGS", "VERDICT")
_CSV = (
    *("mail", "status", "decision_before", "decision_now", "verdict_before", "verdict_now", "tags_before", "tags_now"),
    *("sender", "recipients", "subject", "sha256", "envelope", "problem"),
)


def show(replay: Replay, *, everything: bool) -> None:
    """The table, the matrix and the totals on standard output."""
    rows = [row for row in replay.done if everything or row.status is not Status.SAME]
    if rows:
        _show_table(rows)
        say()
    for line in matrix_lines(replay.matrix):
        say(line)
    if replay.matrix:
        say()
    say(f"scanner: {replay.scanner}; compared with {replay.compared_with}")
    say(totals(replay))


def show_csv(replay: Replay) -> None:
    say_csv(*_CSV)
    for row in replay.done:
        before = row.before or Judgement()
        say_csv(
            *(row.name, str(row.status), before.decision, row.now.decision, before.verdict, row.now.verdict),
            *(" ".join(before.tags), " ".join(row.now.tags), row.sender, " ".join(row.recipients), row.subject),
            *(row.sha256, row.envelope, row.why),
        )


def show_problems(replay: Replay) -> None:
    """On standard error."""
    for row in replay.done:
        if row.why:
            say(f"{row.name}: {row.why}", err=True)
    assumed = sum(row.envelope == "default" for row in replay.done)
    if assumed:
        mails = "1 file has" if assumed == 1 else f"{assumed:,} files have"
        say(f"{mails} no recipient, so `postmaster` was assumed; --to sets another one", err=True)
    if replay.missing:
        say(f"in --expect, but not replayed: {counted(replay.missing, 'mail')}", err=True)
    if replay.stopped:
        say(f"stopped: {replay.stopped}", err=True)


def totals(replay: Replay) -> str:
    """`12 mails replayed: 9 unchanged, 2 changed, 1 without an earlier decision`"""
    counts, done = replay.counts, len(replay.done)
    words = {
        Status.SAME: "unchanged",
        Status.CHANGED: "changed",
        Status.NEW: "without an earlier decision",
        Status.FAILED: "failed",
    }
    parts = [f"{counts[status]:,} {word}" for status, word in words.items() if counts[status] or status == "changed"]
    of = f" of {len(replay.rows):,}" if done < len(replay.rows) else ""
    cut = "interrupted: " if replay.is_interrupted else ""
    return f"{cut}{done:,}{of} {'mail' if done == 1 and not of else 'mails'} replayed: {', '.join(parts)}"


def matrix_lines(
    matrix: dict[str, dict[str, int]], corner: str = "before \\ now", befores: list[str] | None = None
) -> Iterator[str]:
    """Rows are the earlier decisions, columns the new ones; a dot is zero, and the diagonal is what did not change."""
    if not matrix:
        return
    befores, nows = befores or in_order(set(matrix)), in_order({now for line in matrix.values() for now in line})
    cells = [[corner, *map(visible, nows)]]
    for before in befores:
        counts = (matrix[before].get(now, 0) for now in nows)
        cells.append([visible(before), *(f"{count:,}" if count else "." for count in counts)])
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *others in cells:
        numbers = "  ".join(cell.rjust(size) for cell, size in zip(others, sizes[1:], strict=True))
        yield f"{first.ljust(sizes[0])}  {numbers}"


def _show_table(rows: Iterable[Row]) -> None:
    cells = [list(_COLUMNS), *(list(map(visible, _cells(row))) for row in rows)]
    columns = width()
    if columns is None:
        for row in cells:
            say_cells(*row)
        return
    for line in table.lines(cells, columns, shared=_SHARED, least_important=_LEAST_IMPORTANT):
        say(line)


def _cells(row: Row) -> tuple[str, ...]:
    before, now = row.before, row.now
    decision = now.label if before is None else _arrow(before.label, now.label)
    verdict, tags = now.verdict, ",".join(now.tags)
    if before is not None and before.decision and now.decision:
        verdict, tags = _arrow(before.verdict or "-", now.verdict or "-"), _tags(before, now)
    return row.name, str(row.status), decision, verdict, tags, row.sender or "<>", row.subject


def _arrow(before: str, now: str) -> str:
    return now if before == now else f"{before} -> {now}"


def _tags(before: Judgement, now: Judgement) -> str:
    """The tags that were removed and added; all tags if nothing changed."""
    if set(before.tags) == set(now.tags):
        return ",".join(now.tags)
    gone = [f"-{tag}" for tag in before.tags if tag not in now.tags]
    return " ".join(gone + [f"+{tag}" for tag in now.tags if tag not in before.tags])
