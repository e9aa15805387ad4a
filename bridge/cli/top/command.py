"""`scanbridge top`: watch a running daemon in a terminal, or as one JSON object per interval."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click

from bridge.cli.config_option import admin_address, config_option, load_or_exit
from bridge.cli.single_values import Command


class _Interval(click.FloatRange):
    """`nan` is in no range, but click accepts it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        interval_s = float(super().convert(value, param, ctx))
        if math.isnan(interval_s):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return interval_s


@click.command(cls=Command)
@config_option
@click.option(
    "--interval",
    "interval_s",
    type=_Interval(0.1, 86_400.0),
    default=1.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per interval.")
@click.option("--once", is_flag=True, help="Stop after one interval; same exit codes as `status`.")
def top(path: Path | None, interval_s: float, as_json: bool, once: bool) -> None:
    """Watch a running daemon. Shows load, rates, decisions, times, scanner and next hops; press q to quit."""
    from bridge.cli.top.live import watch

    # If no daemon answers, an error in the file may be the reason.
    good = watch(admin_address(path), interval_s, as_json=as_json, once=once, on_silence=lambda: load_or_exit(path))
    sys.exit(1 if once and not good else 0)
