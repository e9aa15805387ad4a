"""The check before dangerous entries are added: `--force` is needed for them.

Only additions are checked, and nothing is sent before the check. Such entries can always be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.cli.lists.session import DangerousEntries, Session
from bridge.cli.lists.sources import Source, places_of
from bridge.lists.client import ListClient
from bridge.lists.danger import Dangers
from bridge.runtime.counted import counted

_MAX_SHOWN = 20


async def check(session: Session, name: str, entries: Iterable[str], sources: Iterable[Source]) -> None:
    """Raises DangerousEntries. Asks the service for the list's category only if an entry looks dangerous."""
    dangers = Dangers(session.own_domains)
    suspicious = [entry for entry in entries if dangers.may_be(entry)]
    if not suspicious:
        return
    async with ListClient(session.settings) as client:
        categories = {info.name: info.category for info in await client.lists(session.tenant)}
    if name in categories:  # otherwise there is no such list, and the addition reports that
        refuse(found(dangers, session.category(name, categories[name]), suspicious), sources)


def found(dangers: Dangers, category: str, entries: Iterable[str]) -> dict[str, str]:
    """The dangerous ones, and why."""
    return {entry: why for entry in entries if (why := dangers.reason(category, entry))}


def refuse(reasons: dict[str, str], sources: Iterable[Source] = ()) -> None:
    """Raises DangerousEntries if there are any."""
    if reasons:
        raise DangerousEntries(
            "\n".join([*lines(reasons, sources), "nothing was changed; add --force if this is intended"])
        )


def lines(reasons: dict[str, str], sources: Iterable[Source] = ()) -> list[str]:
    """Each with its file and line, if it came from a file."""
    places = places_of(sources, reasons)
    shown = [_line(entry, why, places.get(entry, "")) for entry, why in list(reasons.items())[:_MAX_SHOWN]]
    more = len(reasons) - len(shown)
    return [*shown, f"and {counted(more, 'more dangerous entry', 'more dangerous entries')}"] if more else shown


def _line(entry: str, why: str, place: str) -> str:
    return f"{place}: {entry!r} is dangerous: {why}" if place else f"{entry!r} is dangerous: {why}"
