"""What OCSF itself says about our events: required attributes, unknown ones, types and enumerations.

`ocsf-1.6.0.json` has the classes and objects that we use, from OCSF's own files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parent / "ocsf-1.6.0.json").read_text())
_TYPES: dict[str, type] = {"string_t": str, "integer_t": int, "long_t": int, "boolean_t": bool, "object": dict}


def problems_of(event: dict[str, Any]) -> list[str]:
    """What is wrong with it; empty if nothing is."""
    found = list(_in_object(SCHEMA["classes"][str(event["class_uid"])], event, "event"))
    if event["type_uid"] != event["class_uid"] * 100 + event["activity_id"]:
        found.append("type_uid is not class_uid * 100 + activity_id")
    for number, name in (("activity_id", "activity_name"), ("action_id", "action"), ("disposition_id", "disposition")):
        if event.get(number) == 99 and event.get(name, "Other") == "Other":
            found.append(f"{number} is 99 (other), and {name} does not say what")
    return found


def _in_object(schema: dict[str, Any], value: dict[str, Any], place: str) -> Iterator[str]:
    known = schema["attributes"]
    yield from (f"{place}.{name} is missing" for name in known if known[name].get("required") and name not in value)
    one_of = schema["constraints"].get("at_least_one", ())
    if one_of and not any(name in value for name in one_of):
        yield f"{place} has none of {one_of}"
    for name, child in value.items():
        if name not in known:
            yield f"{place}.{name} is unknown"
        else:
            yield from _in_attribute(known[name], child, f"{place}.{name}")


def _in_attribute(schema: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    if schema.get("is_array"):
        if not isinstance(value, list):
            yield f"{place} is not an array"
            return
        for child in value:
            yield from _in_attribute({**schema, "is_array": False}, child, place)
        return
    if schema["type"] in SCHEMA["objects"]:
        yield from _in_object(SCHEMA["objects"][schema["type"]], value, place)
    elif schema["type"] != "json_t" and type(value) is not _TYPES[schema["type"]]:
        yield f"{place} is not a {schema['type']}: {value!r}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{place} has the unknown value {value}"
    if schema.get("is_ip"):
        ip_address(value)
