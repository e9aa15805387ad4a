"""What a configuration file's author is told about each mistake: an unknown key, a wrong value, a missing one.

In our own words instead of pydantic's, with a suggestion where a key or value looks like another one. Values are never
printed, because they may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bridge.runtime.renamed_keys import Path_
from bridge.runtime.suggestion import did_you_mean, nearest

if TYPE_CHECKING:  # `yaml_file.read` alone must be quick to import
    from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound="BaseModel")

_FEW_KEYS = 20  # named in a message


class _Places(Protocol):
    """Knows the file and line of every key."""

    def at(self, where: Path_) -> str: ...

    def place(self, loc: tuple[int | str, ...]) -> Path_: ...


def validate(value: Any, model: type[M], trees: _Places, context: dict[str, Any]) -> tuple[M | None, list[str]]:
    """`value` as a `model`, or None and its mistakes, each with the file and line that `trees` knows for it."""
    from pydantic import ValidationError

    try:
        return model.model_validate(value, context=context), []
    except ValidationError as exc:
        return None, _describe(exc, trees, model)


# Our own words for pydantic's errors; the names in braces are pydantic's.
_WORDS = {
    "extra_forbidden": "unknown key",
    "missing": "this key is required",
    "model_type": "expected keys and values, for example {{key: value}}",
    "dict_type": "expected keys and values, for example {{key: value}}",
    "model_attributes_type": "expected keys and values, for example {{key: value}}",
    "list_type": "expected a list, for example [first, second]",
    "string_type": "expected text",
    "string_too_short": "expected text",
    "too_short": "expected {min_length} or more entries",
    "too_long": "expected at most {max_length} entries",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "finite_number": "expected a finite number",
    "greater_than": "expected a number above {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected a number below {lt}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected one of these: {expected}",
    "enum": "expected one of these: {expected}",
}


def _describe(exc: ValidationError, tree: _Places, model: type[BaseModel]) -> list[str]:
    """pydantic's errors in our words, without the values."""
    found: dict[str, None] = {}
    for error in exc.errors(include_url=False):
        where = tree.place(error["loc"])
        what = _WORDS.get(error["type"], "").format_map(error.get("ctx", {}))
        what = what.replace("'", "") or error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            what += _suggestion(model, where)
        elif error["type"] in ("literal_error", "enum") and isinstance(error["input"], str):
            what += did_you_mean(error["input"], re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        elif error["type"] == "string_pattern_mismatch":
            form = f"{_example(model, where)} (pattern {error['ctx']['pattern']})"
            what = f"this value does not have the expected form{form}"
        found[f"{tree.at(where)}: {what}"] = None
    return list(found)


def _example(model: type[BaseModel], where: Path_) -> str:
    """The default, which shows the form of a value."""
    schema = _schema(model)
    default = _keys_at(schema, schema, where[:-1]).get(str(where[-1]), {}).get("default")
    return f", for example {default}" if default else ""


def _suggestion(model: type[BaseModel], where: Path_) -> str:
    """A similar key of the same section, or else of another one; and all keys of the section, if they are few."""
    schema = _schema(model)
    word, keys = str(where[-1]), _keys_at(schema, schema, where[:-1])
    if found := did_you_mean(word, keys):
        return found
    if len(longer := [key for key in keys if set(word.split("_")) < set(key.split("_"))]) == 1:
        return f"; did you mean {longer[0]}?"
    outer, _, inner = word.partition(".")
    if outer in keys and inner:
        return f"; write `{outer}:`, and `{inner}:` indented below it"
    here = f"; the keys here are {', '.join(keys)}" if 0 < len(keys) <= _FEW_KEYS else ""
    places = sorted(_sections(schema, schema, ""), key=lambda section: "[" not in section[0])
    elsewhere = {key: place for place, keys in places for key in keys}  # a place that is not in a list wins
    key = nearest(word, elsewhere, 0.8)
    return f"; did you mean {elsewhere[key]}{key}?{here.replace('; the', ' The')}" if key else here


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Cached: creating the schema of the daemon's configuration takes a tenth of a second."""
    return model.model_json_schema()


def _keys_at(schema: dict[str, Any], node: dict[str, Any], where: Path_) -> dict[str, Any]:
    """The keys of the section at `where` in a JSON schema, each with its own schema."""
    for branch in _branches(schema, node):
        if not where and "properties" in branch:
            return dict(branch["properties"])
        if where and (below := branch.get("items") if isinstance(where[0], int) else _property(branch, where[0])):
            return _keys_at(schema, below, where[1:])
    return {}


def _property(branch: dict[str, Any], name: str) -> Any:
    return branch.get("properties", {}).get(name) or branch.get("additionalProperties")


def _sections(schema: dict[str, Any], node: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every section below `node`, as `a.b.`, with its keys; those of the entries of a list as `a[].b.`."""
    for branch in _branches(schema, node):
        keys = branch.get("properties", {})
        yield place, keys
        for name, child in keys.items():
            yield from _sections(schema, child, f"{place}{name}.")
        if isinstance(entry := branch.get("items"), dict):
            yield from _sections(schema, entry, f"{place[:-1]}[].")


def _branches(schema: dict[str, Any], node: Any) -> Iterator[dict[str, Any]]:
    """The schema itself, what it refers to, and the alternatives in it."""
    if not isinstance(node, dict):
        return
    yield node
    if "$ref" in node:
        yield from _branches(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    for child in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from _branches(schema, child)
