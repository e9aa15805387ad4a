"""Types of command-line values that several commands take."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import click

from bridge.runtime.suggestion import did_you_mean

_MOST_RESULTS = 10**12  # more than any database has; SQLite's numbers have 64 bits


class DecisionWord(click.ParamType[str]):
    """Errors are recorded in other words, and other services may use their own: only a near miss is surely an error."""

    name = "word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bridge.api.scanning import Decision

        words = [str(word) for word in Decision]
        hint = did_you_mean(value, words) if value not in words else ""
        if hint:
            self.fail(f"{value!r} is not a decision{hint}", param, ctx)
        return str(value)


class Network(click.ParamType[str]):
    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bridge.matching.spelling import network

        try:
            return str(network(str(value).strip("[] ")))
        except ValueError:
            self.fail("expected an IP address or a network, for example 192.0.2.7 or 192.0.2.0/24", param, ctx)


class Tenant(click.ParamType[str]):
    """A tenant's UUID, in the usual spelling."""

    name = "uuid"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from uuid import UUID

        try:
            return str(UUID(str(value)))  # an empty one is refused: it is an unset variable in a script
        except ValueError:
            example = "for example 123e4567-e89b-12d3-a456-426614174000"
            self.fail(f"a tenant must be a UUID, {example}: see `tenants` in the configuration", param, ctx)


class MailAddress(click.ParamType[str]):
    """The address of one recipient, or of a sender, which may be empty."""

    name = "address"

    def __init__(self, *, may_be_empty: bool = False) -> None:
        self._may_be_empty = may_be_empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from bridge.intake.smtp.paths import parse_path
        from bridge.mail.address import domain_of
        from bridge.mail.reply import Reply

        text = str(value)
        if self._may_be_empty and text in ("", "<>"):
            return ""
        found = parse_path(b"<%b>" % text.encode("utf-8", "surrogateescape"), syntax="not an address")
        if isinstance(found, Reply) or not found.address or found.params:
            self.fail(f"{text!r} is not a mail address{_other_form(text)}", param, ctx)
        if not domain_of(found.address) and found.address.lower() != "postmaster":
            self.fail(f"{found.address!r} has no domain: write it as {found.address}@example.org", param, ctx)
        return found.address


def _other_form(text: str) -> str:
    from email.utils import parseaddr

    if "," in text:
        return "; give the option once for each address"
    alone = parseaddr(text)[1]
    return f"; write {alone}" if "<" in text and "@" in alone else ""


class Seconds(click.ParamType[float]):
    """`30`, or with a unit, as in the configuration."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from bridge.runtime.units import parse_duration

        text = str(value)
        with suppress(ValueError):
            found = float(text) if text[-1:].isdigit() else parse_duration(text)
            if 0 < found < math.inf:
                return found
        expected = "expected seconds, for example 30, or a number with a unit, for example 2m"
        self.fail(f"{text!r} is not a time: {expected}", param, ctx)


class Limit(click.IntRange):
    """The maximum number of results. 0 means no limit; where that is not possible, `least` is 1."""

    def __init__(self, least: int = 0) -> None:
        super().__init__(least)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return min(super().convert(value, param, ctx), _MOST_RESULTS)
        except click.BadParameter:
            expected = "a positive number" if self.min else "0 (no limit) or a positive number"
            self.fail(f"{value!r} is not a number of results: expected {expected}", param, ctx)


def need_span(wanted: dict[str, Any]) -> None:
    """Refuse a --since that is not before --until."""
    if "since" in wanted and "until" in wanted and wanted["since"] >= wanted["until"]:
        raise click.UsageError("--since is not before --until, so no mail can match: swap the two")


class Moment(click.ParamType[float]):
    """The type of an option that takes a point in time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        from bridge.runtime.moments import parse

        try:
            return parse(str(value))
        except ValueError as exc:
            self.fail(str(exc), param, ctx)
