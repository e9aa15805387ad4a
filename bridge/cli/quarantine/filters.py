"""The options that select quarantined mail: defined once, for `list` and for every command that acts on mail."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any

import click

from bridge.cli.parameters import DecisionWord, Moment, Network, Tenant, need_span
from bridge.runtime.suggestion import did_you_mean

_NO_WORD = re.compile(r"[@.*%\s-]*")
_NOW_S = 60.0  # `--until 0d` meant the moment at which it was read
STATES = ("kept", "interrupted", "unsure", "released")


class _State(click.ParamType[str]):
    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in STATES:
            self.fail(
                f"{value!r} is not a state: expected {', '.join(STATES)}{did_you_mean(value, STATES)}", param, ctx
            )
        return str(value)


_OPTIONS = (
    click.option("--recipient", metavar="TEXT",
                 help="Recipient: a whole address or @domain must match exactly; other text matches any part; "
                 "'*' is a wildcard."),
    click.option("--sender", metavar="TEXT",
                 help="Envelope sender: a whole address or @domain must match exactly; other text matches any part; "
                 "'*' is a wildcard; '<>' is the null sender."),
    click.option("--subject", metavar="TEXT",
                 help="Subject contains TEXT; if TEXT contains a '*' (a wildcard), it must match the whole subject."),
    click.option("--since", type=Moment(), metavar="TIME",
                 help="Quarantined since TIME: 2h, 3d, today, yesterday, monday, 2026-01-31, '2026-01-31 12:00'."),
    click.option("--until", type=Moment(), metavar="TIME", help="Quarantined before TIME (same formats)."),
    click.option("--tag", metavar="TAG", help="Has this tag; * is a wildcard, as in 'malware:*'."),
    click.option("--client", type=Network(), metavar="ADDRESS",
                 help="Received by the mail server from this IP address or network."),
    click.option("--decision", type=DecisionWord(), metavar="WORD",
                 help="The scanner's decision or, if there was none, the error (such as `unreachable`)."),
    click.option("--state", type=_State(), metavar="STATE", help=f"Release state: {', '.join(STATES)}."),
    click.option("--tenant", type=Tenant(), metavar="UUID", help="Belongs to this tenant (tenantUid)."),
    click.option("--listener", metavar="NAME", help="Received by this listener."),
)  # fmt: skip
NAMES = ("recipient", "sender", "subject", "since", "until", "tag", "client", "decision", "state", "tenant", "listener")


def _refuse_what_excludes_nothing(wanted: dict[str, Any]) -> None:
    """Values that match every mail, by their form alone."""
    matching = [name for name in ("recipient", "sender", "subject", "tag") if _NO_WORD.fullmatch(wanted.get(name, "x"))]
    if wanted.get("client", "").endswith("/0"):
        matching.append("client")
    if wanted.get("until", 0.0) >= time.time() - _NOW_S:
        matching.append("until")
    if wanted and len(matching) == len(wanted):
        raise click.UsageError(f"--{matching[0]} as given matches all mail; use --all if that is what you want")


def with_filters(command: Callable[..., None], *, acts: bool = True) -> Callable[..., None]:
    """Adds the options; the command gets those that were given, by name, as `wanted`.

    A command that `acts` on the mail refuses a value that is empty, which is an unset variable in a script, and one
    that matches all mail: that is what --all is for.
    """

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        values = {name: given.pop(name) for name in NAMES}
        wanted = {name: value for name, value in values.items() if value is not None}
        for name, value in wanted.items():
            if value == "" and (acts or name != "sender"):
                hint = ": the null sender is '<>'" if name == "sender" else ""
                raise click.UsageError(f"--{name} is empty{hint}")
        if wanted.get("since", 0.0) > time.time():
            raise click.UsageError("--since is in the future, so no mail can match: use a time in the past")
        need_span(wanted)
        if acts:
            _refuse_what_excludes_nothing(wanted)
        if wanted.get("sender") == "<>":
            wanted["sender"] = ""
        command(wanted=wanted, **given)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), wrapped)
