"""`config show` says where each value comes from: a line of the file, a profile, the environment or a default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.config.model import Config
from bridge.runtime import yaml_file
from tests.config.config_kit import EXAMPLE, ROUND_TRIPS, SMALL
from tests.daemon.process_kit import environment, scanbridge

FILE = """\
scanner:
  urls:
    - http://127.0.0.1:9081
    - http://127.0.0.1:9082
  token_file: token
listeners:
  - {name: mx, address: "127.0.0.1:10025"}
  - name: queue
    address: 127.0.0.1:10027
    profile: postfix-content-filter
    policy:
      drop: quarantine
policy:
  undecided: relay
  too_large: {action: reject, text: Too large}
relay: {next_hop: "127.0.0.1:10026"}
"""


def shown(directory: Path, *options: str, text: str = FILE, **variables: str) -> dict[str, str]:
    """Each value's place, as in `listeners.0.name`, and the comment after it."""
    file = directory / "bridge.yml"
    file.write_text(text)
    done = scanbridge("config", "show", *(options or ("-c", str(file))), env=environment(**variables))
    assert done.returncode == 0, done.stderr
    comments = {number: line.rpartition("  # ")[2] for number, line in enumerate(done.stdout.splitlines(), 1)}
    places = yaml_file.lines(Path("shown"), done.stdout)
    return {".".join(map(str, where)): comments[line] for where, line in places.items()}


@pytest.mark.parametrize(
    ("key", "origin"),
    [
        ("scanner.urls.0", "bridge.yml:3"),
        ("scanner.urls.1", "bridge.yml:4"),
        ("scanner.token_file", "bridge.yml:5"),
        ("scanner.tenant_uid", "default"),
        ("listeners.0.name", "bridge.yml:7"),
        ("listeners.0.profile", "default"),
        ("listeners.0.deadline", "profile postfix-proxy"),
        ("listeners.0.policy.drop", "default"),
        ("listeners.0.policy.undecided", "bridge.yml:14"),
        ("listeners.1.profile", "bridge.yml:10"),
        ("listeners.1.deadline", "profile postfix-content-filter"),
        ("listeners.1.policy.drop", "bridge.yml:12"),
        ("listeners.1.policy.bounce", "profile postfix-content-filter"),
        ("listeners.1.policy.undecided", "bridge.yml:14"),
        ("listeners.1.policy.too_large.text", "bridge.yml:15"),
        ("policy.undecided", "bridge.yml:14"),
        ("policy.drop", "default"),
        ("policy.too_large.text", "bridge.yml:15"),
        ("relay.next_hop", "bridge.yml:16"),
        ("relay.connect_timeout", "default"),
        ("quarantine.retention", "default"),
        ("workers", "default"),
    ],
)
def test_each_value_names_its_origin(origins: dict[str, str], key: str, origin: str) -> None:
    """The line of the file is the one that an operator would change."""
    assert origins[key] == origin


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return shown(tmp_path_factory.mktemp("origins"))


@pytest.mark.parametrize("text", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_every_value_has_an_origin_and_every_line_of_the_file_is_one(tmp_path: Path, text: str) -> None:
    """No value without a comment; and each line that sets a value is named by that value."""
    found = shown(tmp_path, text=text)
    written = {".".join(map(str, where)): line for where, line in yaml_file.lines(Path("bridge.yml"), text).items()}
    for key, line in written.items():
        children = [other for other in found if other.startswith(f"{key}.")]
        if key and key in found and not children:
            assert found[key] == f"bridge.yml:{line}", key
    assert all(re.fullmatch(r"bridge\.yml:\d+|profile [\w-]+|default|\$\w+", found[key]) for key in leaves(found))


def leaves(found: dict[str, str]) -> list[str]:
    return [key for key in found if key and not any(other.startswith(f"{key}.") for other in found)]


@pytest.mark.parametrize(
    ("variables", "more", "origin"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b", "XDG_STATE_HOME": "/x"}, "", "$STATE_DIRECTORY"),
        ({"XDG_STATE_HOME": "/x"}, "", "$XDG_STATE_HOME"),
        ({"XDG_STATE_HOME": "relative"}, "", "default"),
        ({"XDG_STATE_HOME": ""}, "", "default"),
        ({"STATE_DIRECTORY": "/var/lib/a"}, "state_directory: /srv/scan\n", "bridge.yml:9"),
        ({"STATE_DIRECTORY": "/var/lib/a"}, "state_directory: null\n", "$STATE_DIRECTORY"),
    ],
)
def test_the_environment_is_named_only_if_it_is_used(
    tmp_path: Path, variables: dict[str, str], more: str, origin: str
) -> None:
    """A relative XDG_STATE_HOME, which is ignored, was named; so was the line of a key without a value."""
    assert shown(tmp_path, text=SMALL + more, **variables)["state_directory"] == origin


def test_the_embedded_default_is_named(tmp_path: Path) -> None:
    """There is no file; and a file that exists is not used."""
    found = shown(tmp_path, "--demo", SCANBRIDGE_CONFIG=str(tmp_path / "bridge.yml"))
    assert found["listeners.0.name"] == "embedded default" and found["workers"] == "default"
    assert not [key for key, origin in found.items() if "bridge.yml" in origin]


def test_the_output_with_its_comments_is_a_configuration(tmp_path: Path) -> None:
    """The same one."""
    file = tmp_path / "bridge.yml"
    file.write_text(EXAMPLE)
    again = tmp_path / "again.yml"
    again.write_text(scanbridge("config", "show", "-c", str(file)).stdout)
    first, second = (yaml_file.load(path, Config).model_dump() for path in (file, again))
    assert first | {"state_directory": None} == second | {"state_directory": None}
