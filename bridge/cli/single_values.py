"""Commands that refuse an option that is given twice but can have only one value.

click keeps the last value and says nothing: `quarantine delete --tag a --tag b` would delete mail that lacks `a`.
All our commands use these classes.
"""

from __future__ import annotations

from collections import Counter

import click


class Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(order).items() if not ctx.resilient_parsing else ():  # a shell is completing words
            if times > 1 and isinstance(param, click.Option) and not (param.multiple or param.is_flag or param.count):
                name = max(param.opts, key=len)
                raise click.UsageError(f"{name} was given {times} times, but takes only one value", ctx)
        return super().parse_args(ctx, args)


class Group(Command, click.Group):
    command_class = Command
    group_class = type  # the same class
