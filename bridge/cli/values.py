"""Values of options that several commands take: read here, with the same message for a mistake."""

from __future__ import annotations

import click


def duration(context: click.Context, _option: click.Parameter, value: str) -> float:
    """A duration with its unit, in seconds."""
    if context.resilient_parsing:  # completion
        return 0.0
    from bridge.runtime import units

    try:
        return units.parse_duration(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def ip_address(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    from bridge.mail.session import canonical_ip

    try:
        return canonical_ip(value) if value is not None else None
    except ValueError:
        raise click.BadParameter("expected an IP address, for example 192.0.2.7 or 2001:db8::7") from None
