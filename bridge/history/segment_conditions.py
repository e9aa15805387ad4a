"""What is searched for in one segment, as conditions on its table `mail`, and the functions that they call.

A live segment has no index and is read from end to end, so cheap comparisons come before functions in Python, which
cost microseconds each. A condition on a finished segment may have an index: `segment_plan` chooses one. Values are
never part of a statement.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from glob import escape
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from bridge.history.conditions import common_conditions, common_text
from bridge.history.entry import address_keys, key_of
from bridge.history.odd_addresses import IS_ODD
from bridge.history.query import WORD, HistoryQuery
from bridge.runtime.storable import storable

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """`text` reads the mail's own row. With an index, `by_index` finds the same mails, and `entries` can be counted."""

    text: str
    by_index: str = ""
    source: str = ""  # the table `mail` with the index
    entries: str = ""


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of them must hold."""

    times: list[str]  # and keys, which are looked up in any case
    others: list[Condition]
    values: Values
    has_key: bool

    @property
    def text(self) -> str:
        return " AND ".join([*self.times, *(other.text for other in self.others)]) or "1"

    @property
    def by_any_index(self) -> str:
        """SQLite chooses."""
        return " AND ".join([*self.times, *(other.by_index or other.text for other in self.others)]) or "1"


def conditions(query: HistoryQuery, live: bool) -> Conditions:
    times, values = common_conditions(query, lambda name: f":{name}", _live_queue_id if live else _finished_queue_id)
    others = [
        *_of_kinds(query, values),
        *_of_client(query, values),
        *_of_addresses(query, values, live),
        *_of_subject(query, values, live),
    ]
    stored = {name: storable(value) for name, value in values.items()}
    return Conditions(times, others, stored, bool(query.id or query.what or query.attempt))


def _live_queue_id(marks: list[str]) -> str:
    ids = "','||next_id||','"  # of several next hops, joined by commas
    either = " OR ".join(f"instr({ids}, ','||substr({mark}, 6)||',')" for mark in marks)
    return f"(next_id LIKE '%,%' AND ({either}))"


def _finished_queue_id(marks: list[str]) -> str:
    return f"rowid IN (SELECT mail FROM address WHERE key IN ({', '.join(marks)}))"  # noqa: S608


def _of_kinds(query: HistoryQuery, values: Values) -> Iterator[Condition]:
    kinds, of_kind = on_kinds(query)
    values |= of_kind
    if kinds:
        wanted = f"kind IN (SELECT number FROM kind WHERE {' AND '.join(kinds)})"  # noqa: S608
        source = "mail INDEXED BY mail_kind"
        yield Condition(f"+{wanted}", wanted, source, f"SELECT 1 FROM {source} WHERE {wanted}")  # noqa: S608


def on_kinds(query: HistoryQuery) -> tuple[list[str], Values]:
    """Conditions on the table `kind`."""
    wanted = {name: getattr(query, name) for name in ("action", "decision", "rule", "listener", "stage")}
    values = {name: value for name, value in wanted.items() if value}
    if query.tenant is not None:
        values["tenant"] = query.tenant
    found = [f"kind.{name} = :{name}" for name in values]
    if query.tag:
        found.append("has_tag(kind.tags)")
    if query.tenants is not None:
        allowed = {f"tenant_{number}": uid for number, uid in enumerate(sorted(query.tenants))}
        found.append(f"kind.tenant IN ({', '.join(f':{name}' for name in allowed)})")
        values |= allowed
    return found, values


def _of_addresses(query: HistoryQuery, values: Values, live: bool) -> Iterator[Condition]:
    wanted: dict[str, tuple[str, ...]] = {
        "sender": () if query.sender is None else (key_of("from", query.sender),),
        "recipient": (key_of("to", query.recipient),) if query.recipient else (),
        "address": (key_of("from", query.address), key_of("to", query.address)) if query.address else (),
    }
    for name, keys in wanted.items():
        if live and keys == ("from:",):
            yield Condition("sender = ''")
            continue
        values |= {f"{name}_{number}": key for number, key in enumerate(keys)}
        names = ", ".join(f":{name}_{number}" for number in range(len(keys)))
        if not names:
            continue
        if live:
            values[f"{name}_part"] = f"%{_part_of(keys[0])}%"
            columns = {"sender": ["sender"], "recipient": ["recipients"], "address": ["sender", "recipients"]}[name]
            part = f"LIKE :{name}_part ESCAPE '\\'"  # a cheap test that avoids nearly all calls to `has_key`
            either = " OR ".join(f"{column} {part}" for column in columns)
            compared = ", ".join(column if column in columns else "''" for column in ("sender", "recipients"))
            yield Condition(f"({either} OR {IS_ODD}) AND has_key({compared}, {names})")
        else:
            mails = f"SELECT mail FROM address WHERE key IN ({names})"  # noqa: S608
            own = f"EXISTS (SELECT 1 FROM address WHERE key IN ({names}) AND address.mail = mail.rowid)"  # noqa: S608
            yield Condition(own, f"rowid IN ({mails})", "mail NOT INDEXED", mails)


def _part_of(key: str) -> str:
    """A part that every spelling of the address contains, unless it is odd; "" if that is not certain."""
    address = key.partition(":")[2]
    local, _, domain = address.rpartition("@")
    part = local or domain
    is_plain = part.isascii() and '"' not in part and "xn--" not in part
    return part.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") if is_plain else ""


def _of_client(query: HistoryQuery, values: Values) -> Iterator[Condition]:
    if not query.client:
        return
    source = "mail INDEXED BY mail_client"
    network = ip_network(query.client, strict=False)
    if network.num_addresses == 1:
        values["client"] = str(network.network_address)
        wanted = "client = :client"
    elif prefix := common_text(network):
        values |= {"client_from": prefix, "client_to": prefix + "~"}
        wanted = "client BETWEEN :client_from AND :client_to"
    else:
        yield Condition(_wide(network, values))
        return
    exact = "" if network.num_addresses == 1 else " AND in_network(client)"
    yield Condition(f"+{wanted}{exact}", f"{wanted}{exact}", source, f"SELECT 1 FROM {source} WHERE {wanted}")  # noqa: S608


def _wide(network: IPv4Network | IPv6Network, values: Values) -> str:
    """A network without a common beginning: for IPv4, the first number is enough; 'unknown' is not an address."""
    if network.version == 6:
        return "instr(client, ':') AND in_network(client)"
    values |= {"client_from": network.network_address.packed[0], "client_to": network.broadcast_address.packed[0]}
    is_address = "client NOT GLOB '*[^0-9.]*' AND client GLOB '[0-9]*.*'"
    return f"{is_address} AND CAST(client AS INTEGER) BETWEEN :client_from AND :client_to"


def _of_subject(query: HistoryQuery, values: Values, live: bool) -> Iterator[Condition]:
    if query.words and live:
        likes = [f"subject LIKE '%{word}%'" for word, _ in query.words if word.isascii()]  # letters and digits
        yield Condition(" AND ".join([*likes, "has_words(subject)"]))
    elif query.words:
        values["words"] = " ".join(f'"{word}"{"*" if is_beginning else ""}' for word, is_beginning in query.words)
        mails = "SELECT rowid FROM words WHERE words MATCH :words"
        yield Condition(f"+rowid IN ({mails})", f"rowid IN ({mails})", "mail NOT INDEXED", mails)


def add_functions(connection: sqlite3.Connection, query: HistoryQuery) -> None:
    words = query.words
    tag = _with_wildcards(query.tag)
    network = ip_network(query.client, strict=False) if query.client else None

    def has_words(subject: str) -> bool:
        found = [word.lower() for word in WORD.findall(subject)]
        return all(
            any(part == word or (is_beginning and part.startswith(word)) for part in found)
            for word, is_beginning in words
        )

    def has_tag(tags: str) -> bool:
        return any(part and tag(part) for part in tags.split(","))

    @lru_cache(50_000)  # many mails have the same sender or recipients
    def has_key(sender: str, recipients: str, *keys: str) -> bool:
        return any(key in keys for key in address_keys(sender, recipients.split("\n") if recipients else ()))

    def in_network(client: str) -> bool:
        try:
            return network is not None and ip_address(client) in network
        except ValueError:
            return False

    connection.create_function("has_words", 1, has_words, deterministic=True)
    connection.create_function("has_tag", 1, has_tag, deterministic=True)
    connection.create_function("has_key", -1, has_key, deterministic=True)
    connection.create_function("in_network", 1, in_network, deterministic=True)


def _with_wildcards(pattern: str) -> Callable[[str], object]:
    """`*` stands for anything, everything else for itself. Takes linear time, however many `*` there are."""
    return re.compile(translate("*".join(map(escape, pattern.split("*"))))).match
