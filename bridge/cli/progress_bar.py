"""The progress bar on a terminal, drawn with rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bridge.cli.terminal import console
from bridge.runtime.visible_text import visible


@contextmanager
def bar(label: str, total: int | None, rate: Callable[[float], str]) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        _Rate(rate),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True)) as progress:
        task = progress.add_task(visible(label), total=total)
        yield lambda count: progress.advance(task, count)


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        of = f" of {task.total:,.0f}" if task.total is not None else ""
        return Text(f"{task.completed:,.0f}{of}")


class _Rate(ProgressColumn):
    def __init__(self, shown: Callable[[float], str]) -> None:
        super().__init__()
        self._shown = shown

    def render(self, task: Task) -> Text:
        return Text(self._shown(task.finished_speed or task.speed or 0.0))
