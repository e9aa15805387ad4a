"""What helps a contributor stays true: the map of the tree, the hooks, and the jobs of both forges."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "docs" / "develop" / "where-to-start.md").read_text()
JOBS = (".github/workflows/ci.yml", ".forgejo/workflows/ci.yml")


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:bridge|tests|deploy)(?:/[\w.-]+)*)`", MAP))))
def test_the_map_names_what_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("file", JOBS)
def test_a_forge_runs_what_the_project_calls_its_check(file: str) -> None:
    (job,) = yaml.safe_load((ROOT / file).read_text())["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"} and job["timeout-minutes"] == 90


def test_both_forges_ask_the_same_questions() -> None:
    for name in ("problem.md", "wish.md"):
        ours = (ROOT / ".github/ISSUE_TEMPLATE" / name).read_text()
        assert ours == (ROOT / ".forgejo/issue_template" / name).read_text()
    change = "pull_request_template.md"
    assert (ROOT / ".github" / change).read_text() == (ROOT / ".forgejo" / change).read_text()


def test_the_hooks_use_the_tools_of_the_environment() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"  # nothing is downloaded before a commit
    programs = {shlex.split(hook["entry"])[0] for hook in repository["hooks"]}
    assert programs == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/python"}
    assert all(hook["language"] == "system" for hook in repository["hooks"])
