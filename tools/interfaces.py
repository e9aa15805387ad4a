"""The interfaces that a version promises, as lists of lines: docs/reference/stability.md says what each one means.

The lists are read from the code. `python -m tools.interfaces` compares them with the recorded ones in tests/interfaces,
and `--record` updates the record; a test fails while they differ. So no interface changes unnoticed, and
a reviewer sees every change as a line that was added or removed.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from sqlalchemy import create_engine, inspect

import bridge
from bridge.api.scanning import AnalysisResult, Decision
from bridge.cli import main
from bridge.cli.config import json_schema
from bridge.daemon.http_api import document as history_api
from bridge.events import schema as events_schema
from bridge.filter.headers import HeaderEditor
from bridge.history.entry import Kind, Row
from bridge.mail import authentication_results
from bridge.observe import mail_log
from bridge.runtime import schema_version
from bridge.service import openapi
from bridge.service.metrics import ServiceMetrics
from bridge.service.settings import ServiceConfig
from tools import commands, generate

PROJECT = Path(__file__).parents[1]
RECORDED = PROJECT / "tests" / "interfaces"
PACKAGE = Path(bridge.__file__).parent
# Components with their own tables; in PostgreSQL they may share a database.
STORES = (
    *("console.database", "digests.database", "events.outbox", "feedback.store", "filter.late.store"),
    *("filter.rate_store", "lists.personal_store", "quarantine.index", "quarantine.used_tokens", "runtime.turns"),
    *("service.learning_tables", "service.store"),
)
PYTHON = {"bridge.service.analysis.engine": 4, "bridge.service.engine_kit": 4}  # see docs/reference/python.md
HOW = """\
The interface "{name}" has changed:

{difference}

If this is intended: read docs/reference/stability.md (a removed line needs a deprecation first), write a line for
operators in CHANGELOG.md, and record the change with `python -m tools.interfaces --record`.
"""

Schema = dict[str, Any]


# Commands and configuration


def command_lines() -> Iterator[str]:
    """Every command with its arguments, every option with its short form, its choices and whether it takes a value."""
    for words, command in [(("scanbridge",), main), *commands.descendants(("scanbridge",), main)]:
        name = " ".join(words)
        yield f"{name} {' '.join(_argument(one) for one in command.params if isinstance(one, click.Argument))}".strip()
        for option in (one for one in command.params if isinstance(one, click.Option)):
            names = ", ".join([*option.opts, *option.secondary_opts])
            yield f"{name} {names}{'' if option.is_flag else f' {_kind(option)}'}"
    yield from (f"exit status {code}: {meaning}" for code, meaning in commands.EXIT_STATUS)


def _argument(argument: click.Argument) -> str:
    written = (argument.name or "").upper() + ("..." if argument.nargs != 1 else "")
    return written if argument.required else f"[{written}]"


def _kind(option: click.Option) -> str:
    kind = option.type
    return "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name.upper()


def bridge_keys() -> Iterator[str]:
    schema = json_schema()
    for name, section in [("", schema), *generate.sections(schema)]:
        for key, value in generate.properties(section).items():
            must = generate.required_of(section).get(key)
            kind = _plain(generate.type_of(value, schema["definitions"]))
            default = _plain(must or generate.default_of(value))
            yield f"{f'{name}: ' if name else ''}{key} ({kind}) = {default}"


def service_keys() -> Iterator[str]:
    """One line per key; the service's models have no readable type names."""
    schema = ServiceConfig.model_json_schema(ref_template="#/definitions/{model}")
    yield from _keys("", schema, schema.get("$defs", {}), ())


def _keys(path: str, schema: Schema, definitions: Schema, above: tuple[str, ...]) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        place = f"{path}.{key}".lstrip(".")
        yield f"{place}{' (required)' if key in schema.get('required', []) else ''}"
        for name in generate.references(value):
            if name not in above:
                yield from _keys(place, definitions[name], definitions, (*above, name))


def _plain(markdown: str) -> str:
    return re.sub(r"[`*\\]", "", markdown)


# What operators and programs read


def metric_names() -> Iterator[str]:
    registry = ServiceMetrics().registry
    for family in [*generate.every_metric().collect(), *registry.collect()]:
        labels = sorted({label for sample in family.samples for label in sample.labels if label != "le"})
        written = getattr(family, "_labelnames", None) or labels
        name = family.name + generate.SUFFIXES.get(family.type, "")
        yield f"{name} {family.type}{{{','.join(written)}}}"
    for path in sorted((PACKAGE / "service").rglob("*.py")):  # they are set when the service starts
        yield from (f"scanservice_{name} gauge{{}}" for name in re.findall(r'\.gauge\(\s*"(\w+)"', path.read_text()))


def log_keys() -> Iterator[str]:
    yield from (field.name for field in mail_log._FIELDS)


def events() -> Iterator[str]:
    yield from (f"every event: {name}{_field(field)}" for name, field in events_schema.ENVELOPE.items())
    for type_, (_, fields, always) in events_schema.TYPES.items():
        for name, field in fields.items():
            yield f"{type_}: {name}{_field(field)}{' always' if name in always else ''}"


def _field(field: Schema) -> str:
    words = f" {'|'.join(map(str, field['enum']))}" if "enum" in field else ""
    return f" ({field['type']}){words}"


def header_fields() -> Iterator[str]:
    editor = HeaderEditor("PREFIX-", "")
    scanned = editor.stamp("x", AnalysisResult(Decision.DELIVER, "x", "x", ("x",)))
    names = [name for name, _ in (*scanned, *editor.stamp("x", None, "x"))]
    yield from dict.fromkeys(["Received", authentication_results.FIELD, *names])


def replies() -> Iterator[str]:
    """Every code with its enhanced status that is written in the source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Reply" and len(node.args) > 1:
                code, status = node.args[:2]
                if isinstance(code, ast.Constant) and isinstance(status, ast.Constant):
                    yield f"{code.value} {status.value}".strip()


# HTTP, databases, files, Python


def http() -> Iterator[str]:
    """Requests, their fields and their answers. Pages for people (the console) are not an interface."""
    for name, document in (("service", openapi.document()), ("history", history_api.document())):
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                request = f"{name}: {method.upper()} {path}"
                yield f"{request} -> {', '.join(operation['responses'])}"
                yield from (f"{request} ?{one.get('name') or _name(one)}" for one in operation.get("parameters", []))
        for title, schema in document["components"]["schemas"].items():
            must = schema.get("required", [])
            yield from (
                f"{name}: {title}.{field}{' (always)' if field in must else ''}"
                for field in schema.get("properties", {})
            )
    source = (PACKAGE / "daemon" / "admin.py").read_text()
    yield from (f"admin: GET {path}" for path in re.findall(r'Route\("([^"]+)"', source))


def _name(reference: Schema) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def tables() -> Iterator[str]:
    """The schemas that the migrations make, with their versions; the history's are written by hand in SQL."""
    for name in STORES:
        store = importlib.import_module(f"bridge.{name}")
        engine = create_engine("sqlite://")
        with engine.begin() as connection:
            schema_version.migrate(connection, store.MIGRATIONS, getattr(store, "VERSION_TABLE", "schema_version"))
            found = inspect(connection)
            yield f"{name}: version {len(store.MIGRATIONS)}"
            for table in sorted(found.get_table_names()):
                for column in found.get_columns(table):
                    must = "" if column["nullable"] else " not null"
                    yield f"{name}: {table}.{column['name']} {column['type']}{must}"
        engine.dispose()
    yield from (f"history: mail.{name}" for name in (*Row._fields, *Kind._fields))


def files() -> Iterator[str]:
    """What the packages install outside /opt and /usr/share, and the units."""
    contents = yaml.safe_load((PROJECT / "deploy/package/nfpm.yaml").read_text())["contents"]
    places = [f"{one['dst']} ({one.get('packager', 'deb, rpm')})" for one in contents]
    yield from (place for place in places if not place.startswith(("/usr/share", "/opt/scanbridge (")))
    yield from (f"unit {unit.name}" for unit in (PROJECT / "systemd").glob("scanbridge*"))


def python_names() -> Iterator[str]:
    lists = importlib.import_module("bridge.lists")
    yield from (f"bridge.lists.{name}" for name in lists.__all__)
    for module in ("bridge.api.scanning", "bridge.api.lists"):
        found = importlib.import_module(module)
        own = {name for name, value in vars(found).items() if getattr(value, "__module__", module) == module}
        yield from (f"{module}.{name}" for name in own - {"annotations", "json"} if not name.startswith("_"))
    page = (PROJECT / "docs/reference/python.md").read_text()
    for module, count in PYTHON.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{module}`"))
        names = re.findall(r"`(\w+)`", row)
        assert len(names) == count, f"{module}: {names}"
        assert all(hasattr(importlib.import_module(module), name) for name in names), f"{module}: {names}"
        yield from (f"{module}.{name}" for name in names)


INTERFACES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": command_lines,
    "configuration": bridge_keys,
    "service-configuration": service_keys,
    "metrics": metric_names,
    "log-keys": log_keys,
    "events": events,
    "header-fields": header_fields,
    "replies": replies,
    "http": http,
    "database": tables,
    "files": files,
    "python": python_names,
}


def current(name: str) -> list[str]:
    return sorted(set(INTERFACES[name]()))


def recorded(name: str, place: Path = RECORDED) -> list[str]:
    path = place / f"{name}.txt"
    return path.read_text().splitlines() if path.exists() else []


def change(name: str, place: Path = RECORDED) -> str:
    """What has changed and what to do about it; "" if nothing has."""
    lines = difflib.unified_diff(recorded(name, place), current(name), "recorded", "in the code", lineterm="", n=0)
    difference = "\n".join(line for line in lines if not line.startswith("@@"))
    return HOW.format(name=name, difference=difference) if difference else ""


def record(names: Iterable[str] = tuple(INTERFACES), place: Path = RECORDED) -> None:
    place.mkdir(exist_ok=True)
    for name in names:
        (place / f"{name}.txt").write_text("\n".join(current(name)) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        record()
    changes = [found for name in INTERFACES if (found := change(name))]
    print("\n".join(changes) or "No interface has changed.")
    sys.exit(bool(changes))
