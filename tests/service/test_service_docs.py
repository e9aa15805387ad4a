"""docs/operate/service.md agrees with the code, and its commands work."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

from bridge.service.analysis.default_scores import TAG_SCORES
from bridge.service.decision_settings import Decisions
from bridge.service.lists.store import PREDEFINED
from bridge.service.metrics import ServiceMetrics
from bridge.service.settings import ServiceConfig
from tests.requirements import need
from tests.service.service_kit import Lists, service, wait_for

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "service.md").read_text()


def test_the_documented_table_is_the_default():
    """The decision table in the documentation is the default one."""
    block = re.search(r"```yaml\n(decisions:\n.*?)```", DOCUMENT, re.DOTALL).group(1)
    assert Decisions.model_validate(yaml.safe_load(block)["decisions"]) == Decisions()


def test_the_documented_configuration_is_valid():
    """The configuration in the documentation is valid and shows the defaults."""
    block = re.search(r"```yaml\n(listen:.*?)```", DOCUMENT, re.DOTALL).group(1)
    given = yaml.safe_load(block)
    given["abby"]["staticApiTokens"][0]["token"] = "x" * 64
    del given["records"]  # a duration with a unit, which only our own loader can read
    config = ServiceConfig.model_validate(given)
    default = ServiceConfig()
    assert config.analyzers == default.analyzers
    assert config.decisions == default.decisions
    assert config.guard.model_dump(exclude={"scanSources"}) == default.guard.model_dump(exclude={"scanSources"})


def test_every_tag_metric_and_list_is_documented():
    """An operator can look up every tag with a score, every metric and every list."""
    names = re.findall(r"HELP (\w+)", ServiceMetrics().text().decode())
    metrics = [name for name in names if not name.endswith("_created")]
    for name in [*TAG_SCORES, *(definition.name for definition in PREDEFINED), *metrics]:
        assert name in DOCUMENT, name


def test_the_life_of_a_list_with_curl(tmp_path):
    """The commands in the documentation work as printed."""
    need("curl", "bash")
    commands = re.search(r"<!-- tested: lists -->\n```sh\n(.*?)```", DOCUMENT, re.DOTALL).group(1)
    with service(tmp_path) as running:
        lists = Lists(running)
        wait_for(lambda: lists.call("getLists", {}).status == 200)
        (tmp_path / "key-header").write_text(f"Authorization: apikey {lists.key}\n")
        environment = {"URL": f"http://127.0.0.1:{running.port}", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(
            ["bash", "-euc", commands.replace('-d "$2"; }', '-d "$2"; echo; }')],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert answers[1:] == [
        {"modifiedEntries": 1},
        {"entry": "spammer@example.org", "comment": "ticket 12"},
        {"modifiedEntries": 1},
        {"modifiedEntries": 1},
    ]
