"""What both databases compare in the same way: keys, times and the place where a page begins.

A database has its own way to mark a value in a statement, and its own indexes for addresses, words and tags. Values are
never part of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from bridge.history.query import HistoryQuery

_KEYS = ("id", "session", "queue_id", "next_id", "ggrid")  # what `what` may be, besides a Message-ID


def common_conditions(
    query: HistoryQuery, mark: Callable[[str], str], has_queue_id: Callable[[list[str]], str]
) -> tuple[list[str], dict[str, Any]]:
    """Conditions on the columns of a row, and their values.

    `mark`: the placeholder of a value, by its name. `has_queue_id`: a condition on mail that several next hops have,
    one of which gave it one of these queue ids; the placeholders stand for keys, as `queue_id_keys` makes them.
    """
    values: dict[str, Any] = {name: value for name in ("id", "attempt") if (value := getattr(query, name))}
    conditions = [f"{name} = {mark(name)}" for name in values]
    for name, comparison in (("since", ">="), ("until", "<")):
        if (moment := getattr(query, name)) is not None:
            conditions.append(f"at {comparison} {mark(name)}")
            values[name] = moment
    if (cursor := query.cursor) is not None:
        conditions.append(f"(at, id) < ({mark('before_at')}, {mark('before_id')})")
        values |= {"before_at": cursor[0], "before_id": cursor[1]}
    if query.what:
        conditions.append(_any_key(query, mark, has_queue_id, values))
    return conditions, values


def _any_key(
    query: HistoryQuery, mark: Callable[[str], str], has_queue_id: Callable[[list[str]], str], values: dict[str, Any]
) -> str:
    whats = {f"what_{number}": what for number, what in enumerate(dict.fromkeys((query.what, *query.spellings)))}
    bare = query.what.strip("<>")  # some programs write a Message-ID without brackets
    ids = {"in_brackets": f"<{bare}>", "without_brackets": bare or query.what, **whats}  # many mails have no Message-ID
    keys = {f"next_{name}": f"next:{what}" for name, what in whats.items()}
    values |= ids | keys
    same, same_id = (", ".join(map(mark, names)) for names in (whats, ids))
    by_key = has_queue_id([mark(name) for name in keys])
    return f"({' OR '.join(f'{name} IN ({same})' for name in _KEYS)} OR message_id IN ({same_id}) OR {by_key})"


def common_text(network: IPv4Network | IPv6Network) -> str:
    """What all addresses of the network begin with, as they are written; "" if that is not certain."""
    if network.version == 4:
        return "".join(f"{part}." for part in str(network.network_address).split(".")[: network.prefixlen // 8])
    groups = network.network_address.exploded.split(":")[: network.prefixlen // 16]
    parts = [group.lstrip("0") for group in groups]
    return "".join(f"{part}:" for part in parts) if all(parts) else ""  # zeros are written in several ways
