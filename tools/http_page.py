"""Makes docs/reference/http-api.md from the OpenAPI document of the scanning service. `make docs` runs it.

Nothing in the page is written by hand but its beginning, and a test fails when it is out of date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.service.openapi import document

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "http-api.md"

Schema = dict[str, Any]

BEGINNING = """\
# HTTP API

<!-- Made by tools/http_page.py from bridge/service/openapi.py: change it there, then `make docs`. -->

The two interfaces of the [scanning service](../operate/service.md).
That page has examples with curl, explains tokens and keys, and says what the interface descriptions leave open.
The machine-readable form is [openapi.json](openapi.json) (OpenAPI 3.1).
A running service has it at `/openapi.json`, and a page to read at `/docs`.
The bridge speaks the first interface to any service that implements it.
The bridge's own HTTP pages (`/metrics`, `/livez`, `/readyz`, `/status`) are on the page about
[monitoring](../operate/monitoring.md).

An answer other than 200 is an `Error`: a stable word and a sentence for people.
A 503 says in `Retry-After` when to try again.
"""


def page() -> str:
    described = document()
    parts, tag = [BEGINNING], ""
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                parts.append(f"## {tag}\n")
            parts.append(_operation(f"{method.upper()} {path}", operation))
    parts.append("## Objects\n")
    parts += [_object(name, schema) for name, schema in described["components"]["schemas"].items()]
    return "\n".join(parts)


def _operation(title: str, operation: Schema) -> str:
    keys = [" ".join(one) for one in operation.get("security", [])]
    said = {"token": "a token (`Authorization: Bearer ...`)", "apikey": "an API key (`Authorization: apikey ...`)"}
    needs = " or ".join(said.get(key, "nothing, from this machine") for key in keys) or "nothing"
    lines = [f"### {title}\n", f"{operation['summary']} It needs {needs}.\n"]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Body, `{kind}`:\n", _fields(content["schema"])]
    lines += ["| answer | |", "|---|---|"]
    for status, response in operation["responses"].items():
        if status != "default":
            lines.append(f"| {status} | {response['description']}{_answer(status, response)} |")
    return "\n".join(lines) + "\n"


def _answer(status: str, response: Schema) -> str:
    """The object of a good answer; all others are errors."""
    schemas = [content["schema"] for content in response.get("content", {}).values() if "schema" in content]
    return f" ({_type(schemas[0])})" if status == "200" and schemas else ""


def _object(name: str, schema: Schema) -> str:
    text = _fields(schema) if "properties" in schema else f"{_type(schema)}. {schema.get('description', '')}\n"
    return f"### {name}\n\n{text}"


def _fields(schema: Schema) -> str:
    lines = ["| field | type | |", "|---|---|---|"]
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        must = "" if name in required else "may be absent"
        about = "; ".join(filter(None, [must, field.get("description", "").rstrip(".")]))
        lines.append(f"| `{name}` | {_type(field)} | {about} |")
        for inner, one in field.get("properties", {}).items():
            must = "" if inner in field.get("required", []) else "may be absent"
            about = "; ".join(filter(None, [must, one.get("description", "").rstrip(".")]))
            lines.append(f"| `{name}.{inner}` | {_type(one)} | {about} |")
    return "\n".join(lines) + "\n"


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    kinds = schema.get("type", "any")
    text = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    return f"{text} ({schema['format']})" if "format" in schema else text


def write() -> None:
    PAGE.write_text(page())


if __name__ == "__main__":
    write()
