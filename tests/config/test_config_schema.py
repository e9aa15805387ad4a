"""The schema of the configuration, for editors."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs

from bridge.cli.config import json_schema
from bridge.config.effective import effective
from bridge.runtime import yaml_file
from tests.config.config_kit import ROUND_TRIPS, changed, listener, load


def test_the_schema_is_draft_7_and_agrees_with_the_loader() -> None:
    """Editors accept what the daemon accepts, and underline what it refuses."""
    schema = json_schema()
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in json.dumps(schema)
    validator = jsonschema_rs.Draft7Validator(schema)
    for text in ROUND_TRIPS.values():
        validator.validate(yaml_file.Tree(Path("x")).read(text))
        validator.validate(effective(load(text)))
    for wrong in (
        changed(nonsense={}),
        changed(drain_timeout=5),
        changed(policy={"bounce": "refuse"}),
        listener(protocol="ftp"),
        changed(scanner={"urls": []}),
    ):
        assert not validator.is_valid(yaml_file.Tree(Path("x")).read(wrong))


def test_the_schema_shows_defaults_as_one_would_write_them() -> None:
    """`5s`, not 5.0; and none if it depends on another key."""
    schema = json_schema()
    assert schema["definitions"]["Scanner"]["properties"]["status_interval"]["default"] == "5s"
    assert schema["properties"]["drain_timeout"]["default"] == "1m"
    assert schema["definitions"]["Policy"]["properties"]["bounce"]["default"] == "reject"
    assert "default" not in schema["definitions"]["Listener"]["properties"]["deadline"]
    validator = jsonschema_rs.Draft7Validator(schema)
    for name, section in schema["definitions"].items():
        for key, about in section.get("properties", {}).items():
            if "default" in about:
                part = {**about, "definitions": schema["definitions"]}
                assert jsonschema_rs.Draft7Validator(part).is_valid(about["default"]), f"{name}.{key}"
    assert validator is not None


def test_every_key_has_a_description() -> None:
    """The reference is generated from the models, so a key without a description would be undocumented."""
    for name, section in json_schema()["definitions"].items():
        for key, about in section.get("properties", {}).items():
            assert about.get("description", "").endswith("."), f"{name}.{key}"
