"""Types of command-line values that several commands take."""

from __future__ import annotations

from typing import Any

import click

from bridge.runtime.suggestion import did_you_mean


class DecisionWord(click.ParamType[str]):
    """Errors have words of their own, and another service may, too: only a near miss is certain to be a mistake."""

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
