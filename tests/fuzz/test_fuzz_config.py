"""Any file gives a configuration, or an error that names the file and a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.config.model import Config
from bridge.config.model import load as load_bridge
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.service.config_files import load as load_service
from bridge.service.settings import ServiceConfig

Model = type[Config] | type[ServiceConfig]


def names_of(model: Model) -> list[str]:
    schema = model.model_json_schema()
    sections = [schema, *schema.get("$defs", {}).values()]
    return sorted({name for section in sections for name in section.get("properties", {})})


NAMES = [*names_of(Config), *names_of(ServiceConfig)]
WORDS = [
    *(
        "true",
        "no",
        "~",
        "0",
        "-1",
        "1.5",
        "9" * 19,
        "9" * 400 + ".0",
        "1e400",
        "30s",
        "1h30m",
        "10 MiB",
        "0 GiB",
        "auto",
        "",
        " ",
    ),
    *("smtp", "lmtp", "milter", "required", "tempfail", "relay", "shadow", "database", "postfix-proxy", "deployment"),
    *(
        "127.0.0.1:0",
        "127.0.0.1:25",
        "[::1]:70000",
        "[::1",
        "unix:/run/x",
        "unix:",
        ":25",
        "h:\u00b2",
        "x" * 300,
        "a\0b",
        "\u2028",
    ),
    *(
        "http://127.0.0.1:9081",
        "http://[::1",
        "https://h:99999/",
        "http://u:p@h",
        "//",
        "http://\u2488/",
        "smtp://h:25",
        "smtp://[h",
    ),
    *(
        "lmtp+unix:/x",
        "maildir:/x",
        "maildir:",
        "postgresql://u@h/d",
        "postgresql://u@[h/d",
        "sqlite:///x",
        "sqlite://",
        "192.0.2.0/33",
    ),
    *(
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "example.org",
        "@example.org",
        "./token",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ),
]
scalars = st.one_of(
    st.sampled_from(WORDS),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=25,
)
LINES = [
    *(f"{name}:" for name in ("scanner", "listeners", "relay", "limits", "quarantine", "tenants", "lists", "x")),
    *(
        "  urls: [http://h]",
        "  - {name: a, address: '127.0.0.1:1'}",
        "  next_hop: smtp://h:25",
        "- a",
        "? [a]",
        ": b",
        "&a [*a]",
        "a: &x {b: *x}",
    ),
    *(
        "a: 1",
        "a: 2",
        "<<: *x",
        "!!binary x",
        "a: !!set {b}",
        "\t- x",
        "'",
        '"\\',
        "{",
        "}",
        "]",
        "|",
        ">-",
        "%YAML 9.9",
        "---",
        "...",
        "# x",
        "\x07",
        "\ufeff",
    ),
]
texts = st.lists(
    st.sampled_from(LINES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=12
).map("\n".join)
FILE = Path("/etc/scanbridge/x.yml")


def wrong_answers(model: Model, text: str) -> list[str]:
    """Results that are neither a configuration nor an error that names the file and one of its lines."""
    try:
        made = yaml_file.load(FILE, model, text)
    except ConfigError as exc:
        last = text.count("\n") + len(re.findall("[\r\x85\u2028\u2029]", text)) + 1
        return [line for line in str(exc).split("\n") if not names_a_line(line, last + 1)]
    return [] if isinstance(made, model) else [repr(made)]


def names_a_line(mistake: str, last: int) -> bool:
    match = re.match(r"/etc/scanbridge/x\.yml:(\d+): .", mistake)
    return match is not None and 1 <= int(match.group(1)) <= last


MODELS = st.sampled_from([Config, ServiceConfig])
KEYS = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)


@given(MODELS, KEYS)
@settings(max_examples=25)
def test_any_values_give_a_configuration_or_errors_with_their_lines(model: Model, data: dict[str, object]) -> None:
    """Existing keys with values of any type."""
    assert wrong_answers(model, yaml_file.dump(data)) == []


@pytest.mark.long
@given(MODELS, KEYS)
def test_many_more_values_do(model: Model, data: dict[str, object]) -> None:
    """As above; `make fuzz` decides how many."""
    assert wrong_answers(model, yaml_file.dump(data)) == []


@given(st.sampled_from([Config, ServiceConfig]), texts)
def test_any_text_gives_a_configuration_or_an_error_with_its_line(model: Model, text: str) -> None:
    """Half a file, two files, a file in another format."""
    assert wrong_answers(model, text) == []


@pytest.mark.parametrize("load", [load_bridge, load_service])
@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"a: \xff", b"\0", "a: é".encode("latin-1"), b"a: b".decode().encode("utf-16")]
)
def test_the_error_for_a_binary_file_names_it(tmp_path: Path, load: object, content: bytes) -> None:
    """The error has no line number, because the file has no lines."""
    path = tmp_path / "x.yml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load(path)  # type: ignore[operator]
