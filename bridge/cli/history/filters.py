"""The options that select mails of the history: defined once, for `history`, `explain` and `stats`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from bridge.cli.parameters import DecisionWord, Moment, Network, Tenant, need_span
from bridge.history.query import ACTIONS, STAGES
from bridge.runtime.suggestion import did_you_mean

_NULL = "<>"


class _Word(click.ParamType[str]):
    name = "word"

    def __init__(self, what: str, words: tuple[str, ...]) -> None:
        self._what, self._words = what, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._words:
            hint = did_you_mean(str(value), self._words)
            self.fail(f"{value!r} is not {self._what}: expected {', '.join(self._words)}{hint}", param, ctx)
        return str(value)


class _Address(click.ParamType[str]):
    """A whole address or a whole domain: those are indexed."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if text == _NULL:
            return text
        text = text.removeprefix("<").removesuffix(">")
        if text.startswith("*@"):
            text = text[1:]
        if not text or "*" in text:
            self.fail("expected a whole address or a domain: jane@example.org, example.org, '<>'", param, ctx)
        return text


_ADDRESS_FORMS = "a whole address (jane@example.org) or a domain (example.org)"
_WHO = (
    click.option("--recipient", type=_Address(), metavar="ADDRESS", help=f"Recipient: {_ADDRESS_FORMS}."),
    click.option("--sender", type=_Address(), metavar="ADDRESS",
                 help=f"Envelope sender: {_ADDRESS_FORMS}; '<>' for the null sender."),
    click.option("--subject", metavar="WORDS",
                 help="Subject contains these words; invo* matches all words that start with invo."),
    click.option("--client", type=Network(), metavar="ADDRESS",
                 help="Received by the mail server from this IP address or network."),
)  # fmt: skip
_WHEN = (
    click.option("--since", type=Moment(), metavar="TIME",
                 help="Since TIME: 2h, 3d, today, yesterday, monday, 2026-01-31, '2026-01-31 12:00'."),
    click.option("--until", type=Moment(), metavar="TIME", help="Before TIME (same formats)."),
)  # fmt: skip
_WHAT = (
    click.option("--tag", metavar="TAG", help="Has this tag; * is a wildcard, as in 'malware:*'."),
    click.option("--decision", type=DecisionWord(), metavar="WORD", help="The scanner's decision."),
    click.option("--action", type=_Word("an action", ACTIONS), metavar="ACTION",
                 help=f"What was done: {', '.join(ACTIONS)}."),
    click.option("--rule", metavar="NAME", help="The rule that applied, such as policy.bounce or lists.NAME."),
    click.option("--stage", type=_Word("a stage", STAGES), metavar="STAGE",
                 help=f"Refused at this stage, before the content was sent: {', '.join(STAGES)}."),
    click.option("--tenant", type=Tenant(), metavar="UUID", help="Belongs to this tenant (tenantUid)."),
    click.option("--listener", metavar="NAME", help="Received by this listener."),
)  # fmt: skip
_NAMES = (
    *("recipient", "sender", "subject", "client", "since", "until"),
    *("tag", "decision", "action", "rule", "stage", "tenant", "listener"),
)


def with_filters(command: Callable[..., None], *, brief: bool = False) -> Callable[..., None]:
    """Adds the options; the command gets those that were given, by name, as `wanted`. `brief`: who and when only."""
    options = (*_WHO, *_WHEN) if brief else (*_WHO, *_WHEN, *_WHAT)
    names = [name for name in _NAMES if not brief or name in _NAMES[:6]]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        values = {name: given.pop(name) for name in names}
        wanted = {name: value for name, value in values.items() if value is not None}
        for name, value in wanted.items():
            if value == "":
                raise click.UsageError(f"--{name} is empty")
        need_span(wanted)
        if "subject" in wanted:
            from bridge.history.query import HistoryQuery

            if not HistoryQuery(subject=wanted["subject"]).words:
                raise click.UsageError("--subject contains no word; it needs letters or digits")
        if "client" in wanted:
            wanted["client"] = _without_length(wanted["client"])
        command(wanted=wanted, **given)

    return functools.reduce(lambda made, option: option(made), reversed(options), wrapped)


def _without_length(network: str) -> str:
    """A network of one address, written as that address: that is what is indexed."""
    return network.removesuffix("/128") if ":" in network else network.removesuffix("/32")
