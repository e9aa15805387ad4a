"""Makes the references from the code: docs/configuration.md and docs/metrics.md. `make docs` runs it.

Keys, types, defaults and descriptions come from the models of `bridge.config.model`, names and labels from
`bridge.observe.metrics`. Nothing in the two pages is written by hand, and a test fails when they are out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.cli.config import json_schema
from bridge.config.model import EMBEDDED
from bridge.config.profiles import DEFAULT_PROFILE, PROFILES
from bridge.mail.action import Action
from bridge.observe.metric_types import BUCKETS
from bridge.observe.metrics import Metrics
from bridge.runtime.units import show_duration

DOCS = Path(__file__).parent

Schema = dict[str, Any]

CONFIGURATION = """\
# Configuration

<!-- Made by docs/generate.py from bridge/config/model.py: change it there, then `make docs`. -->

`scanbridge run -c FILE` reads one YAML file (or the file that `$SCANBRIDGE_CONFIG` names); without one the
[embedded default](#the-embedded-default) runs. Unknown and doubled keys are refused, all mistakes are shown at once
with file and line, and the exit code is then 78.

- Sizes and times carry their unit: `50MiB`, `256B`, `90s`, `5m`, `30d`, `500ms`.
- Secrets are in files, never in the configuration. A relative file name is looked for in `$CREDENTIALS_DIRECTORY` if
  that is set (systemd's `LoadCredential=`), else, or if it is not there, in the directory of the configuration file.
- A changed file is read at the next start, or by `scanbridge reload` (SIGHUP) without one: see
  [workers and reload](workers.md).
- `scanbridge config show` prints what is in force, `scanbridge config schema` a JSON Schema for editors,
  `scanbridge check` tries it out.

**Required** in the column "default" means that there is none and the key must be given.
"""

METRICS = """\
# Metrics

<!-- Made by docs/generate.py from bridge/observe/metrics.py: change it there, then `make docs`. -->

`GET /metrics` at the admin address (`admin.address`, 127.0.0.1:9082), in Prometheus' text form or OpenMetrics, as asked
for. Label values come from closed sets, never from mail. Every combination of them that can be known starts at 0.

| metric | kind | labels | what it says |
|---|---|---|---|
"""

# Values that depend on the configuration.
LABELS = {
    "listener": "name of the listener",
    "host": "URL of the scanner",
    "list": "name of the list",
    "next_hop": "as configured",
    "state": "busy, idle",
    "result": "taken, deferred, refused, unreachable, lost",
    "role": "listener, scanner, scanner_client, next_hop",
    "name": "name of the listener, URL of the scanner, next hop",
    "cause": "limit, scanner",
}
SUFFIXES = {"counter": "_total", "info": "_info"}


def pages() -> dict[Path, str]:
    """Every generated file and what it must hold."""
    return {DOCS / "configuration.md": configuration(), DOCS / "metrics.md": metrics()}


# The configuration


def configuration() -> str:
    schema = json_schema()
    parts = [CONFIGURATION, "## The file\n", _table(schema, schema["definitions"])]
    for name, section in _sections(schema):
        parts += [f"## {name}\n", _table(section, schema["definitions"])]
    parts += [_actions(), _profiles(), _embedded()]
    return "\n".join(parts)


def _sections(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Every section once, in the order of the file; what several share comes after its first user."""
    definitions, seen = schema["definitions"], set()
    names = [(key, name) for key, value in schema["properties"].items() for name in _references(value)]
    for key, name in names:
        section = definitions[name]
        if name in seen or not _properties(section):
            continue
        seen.add(name)
        yield key, section
        for child in _properties(section).values():
            names += [(f"{key}: {inner.lower()}", inner) for inner in _references(child)]


def _references(value: Any) -> list[str]:
    """The names of the sections that a key holds."""
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"].rpartition("/")[2]] if "$ref" in value else []
    return own + [name for key, item in value.items() if key != "default" for name in _references(item)]


def _properties(section: Schema) -> Schema:
    """The keys of a section; an outcome may be a word instead, its section is the other choice."""
    for choice in [section, *section.get("anyOf", [])]:
        if "properties" in choice:
            properties: Schema = choice["properties"]
            return properties
    return {}


def _required(section: Schema) -> dict[str, str]:
    """The keys without which the section is refused, and how to say so."""
    choices = section.get("anyOf", []) + section.get("oneOf", [])
    words = {key: "**one of them**" for choice in choices for key in choice.get("required", [])}
    whole = [section, *(choice for choice in choices if "properties" in choice)]
    return words | {key: "**required**" for choice in whole for key in choice.get("required", [])}


def _table(section: Schema, definitions: Schema) -> str:
    lines = ["| key | type | default | what it is for |", "|---|---|---|---|"]
    for key, value in _properties(section).items():
        default = _required(section).get(key) or _default(value)
        description = value.get("description", "").replace("|", "\\|")
        lines.append(f"| `{key}` | {_type(value, definitions)} | {default} | {description or _see(key)} |")
    return "\n".join(lines) + "\n"


def _see(key: str) -> str:
    return f"see [{key}](#{key})"


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None or default == "":
        return "-"
    if isinstance(default, dict):
        return "see there" if default else "`{}`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default}`"


def _type(value: Schema, definitions: Schema) -> str:
    choices = [choice for choice in value.get("anyOf", []) if choice.get("type") != "null"]
    if choices:
        return " or ".join(_type(choice, definitions) for choice in choices)
    if "allOf" in value:
        return _type(value["allOf"][0], definitions)
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return _choice(definitions[name]["enum"]) if "enum" in definitions[name] else _section_type(name)
    if "enum" in value:
        return _choice(value["enum"])
    if value.get("type") == "array":
        return f"list of {_type(value['items'], definitions)}".replace("section", "sections")
    if value.get("type") == "object":
        return f"name: {_type(value['additionalProperties'], definitions)}"
    return _plain_type(value)


def _choice(words: list[str]) -> str:
    return " \\| ".join(f"`{word}`" for word in words)


def _section_type(name: str) -> str:
    return "action or outcome" if name == "PolicyEntry" else "section"


def _plain_type(value: Schema) -> str:
    if "MiB" in value.get("pattern", ""):
        return "size"
    if "ms|" in value.get("pattern", ""):
        return "time"
    kinds = {"string": "text", "integer": "number", "number": "number", "boolean": "`true` \\| `false`"}
    kind = kinds[value["type"]]
    low, high = value.get("minimum"), value.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    return kind if low is None else f"{kind}, {low} or more"


def _actions() -> str:
    words = ", ".join(f"`{action}`" for action in Action)
    return (
        "## Actions and outcomes\n\n"
        f"An action is one of {words}.\n"
        "Where a policy wants an outcome, the action alone will do (`bounce: quarantine`), or the section above with\n"
        "the action and what goes with it (`bounce: {action: reject, code: 554, keep_copy: true}`).\n"
        "A listener's policy overrides the general one, a tenant's overrides the listener's, key by key.\n"
    )


def _profiles() -> str:
    lines = [
        "## Profiles\n",
        "A profile knows the mail server in front: how long it waits, and which outcomes differ there.\n",
        "| profile | protocol | the mail server waits | our deadline | outcomes |",
        "|---|---|---|---|---|",
    ]
    for name, profile in PROFILES.items():
        outcomes = ", ".join(f"`{case}: {action}`" for case, action in profile.policy.items()) or "-"
        times = f"{_seconds(profile.limit_s)} | {_seconds(profile.deadline_s)}"
        lines.append(f"| `{name}` | {profile.protocol} | {times} | {outcomes} |")
    defaults = ", ".join(f"`{name}` for {protocol}" for protocol, name in DEFAULT_PROFILE.items())
    return "\n".join([*lines, "", f"When none is named: {defaults}.\n"])


def _seconds(value: float) -> str:
    return show_duration(value) if value < 60 else f"{value:.0f}s"


def _embedded() -> str:
    return (
        "## The embedded default\n\n"
        "What runs without a file. `STATE` is `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/scanbridge`, else\n"
        f"`~/.local/state/scanbridge`.\n\n```yaml\n{EMBEDDED.format(state='STATE')}```\n"
    )


# The metrics


def metrics() -> str:
    lines = [_metric(family) for family in Metrics(["name"]).collect()]
    buckets = ", ".join(f"{bucket:g}" for bucket in BUCKETS)
    return METRICS + "\n".join(lines) + f"\n\nBuckets of the histograms, in seconds: {buckets}.\n"


def _metric(family: Any) -> str:
    labels = "<br>".join(f"`{name}`: {_values(family, name)}" for name in family._labelnames)
    name = family.name + SUFFIXES.get(family.type, "")
    return f"| `{name}` | {family.type} | {labels or '-'} | {family.documentation} |"


def _values(family: Any, label: str) -> str:
    if label in LABELS:
        return LABELS[label]
    return ", ".join(dict.fromkeys(sample.labels[label] for sample in family.samples))


if __name__ == "__main__":
    import httppage  # beside this file
    import manpages

    for path, text in pages().items():
        path.write_text(text)
    httppage.write()
    manpages.write()
