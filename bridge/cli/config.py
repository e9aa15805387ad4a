"""`scanbridge config`: the effective configuration, and the schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.single_values import Group
from bridge.cli.terminal import say, say_json, say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.fields import Section


@click.group("config", cls=Group)
def configuration() -> None:
    """Show the effective configuration or its schema."""


@configuration.command()
@config_option
@click.option("--demo", is_flag=True, help="Show the embedded default, even if there is a configuration file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of YAML.")
def show(path: Path | None, demo: bool, as_json: bool) -> None:
    """Print the effective configuration: every value and its origin. Secrets are kept in files and never shown.

    A comment after each value shows where it comes from: a line in the file, a profile, an environment variable or the
    default.
    """
    from bridge.config.effective import effective
    from bridge.config.origin import with_origins
    from bridge.daemon import directories

    path = None if demo else path
    conf = load_or_exit(path)
    data = effective(conf)
    place, origin = directories.found_state_directory(conf.state_directory)
    data["state_directory"] = str(place)
    if as_json:
        say_json(data, indent=2)
    else:
        say_lines(with_origins(data, conf, path, state_directory_from=origin))


@configuration.command()
def schema() -> None:
    """Print a JSON Schema (draft 7) of the configuration, for editors."""
    say_json(json_schema(), indent=2)


@configuration.command()
@config_option
@click.argument("address")
def address(path: Path | None, address: str) -> None:
    """Print a mail address as the log shows it (see `log.addresses`), so that you can search the log for it."""
    from bridge.cli.state import state_directory
    from bridge.daemon import history_place

    conf = load_or_exit(path)
    try:
        say(history_place.redaction(conf, state_directory(conf, path)).address(address))
    except ConfigError as exc:
        fail_config(exc)


def json_schema() -> dict[str, Any]:
    from bridge.config.fields import Section
    from bridge.config.model import Config

    schema = Config.model_json_schema(ref_template="#/definitions/{model}", mode="validation")
    definitions = schema["definitions"] = schema.pop("$defs")
    sections: list[type[Section]] = Section.__subclasses__()
    for section in sections:
        _show_defaults(section, schema if section is Config else definitions[section.__name__])
    # A policy entry may be given as its action alone.
    definitions["PolicyEntry"] = {"anyOf": [{"$ref": "#/definitions/Action"}, definitions["PolicyEntry"]]}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema, "title": "scanbridge configuration"}


def _show_defaults(section: type[Section], schema: dict[str, Any]) -> None:
    """Defaults as users write them: `5s`, `1GiB`, `relay`. pydantic gives the values as they are in memory."""
    from bridge.config.effective import shorten

    shown = section.model_construct().model_dump(mode="json", warnings=False, by_alias=True)
    shorten(shown)
    for name, about in schema["properties"].items():
        if "default" in about:
            about["default"] = shown[name]
        if "$ref" in about:  # draft 7 ignores other keys next to $ref
            about["allOf"] = [{"$ref": about.pop("$ref")}]
