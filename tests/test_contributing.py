"""What helps a contributor stays true: the map of the tree, the dependencies, the hooks, the jobs of both forges."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

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


@pytest.mark.parametrize("forge", [".github", ".forgejo"])
def test_a_forge_builds_a_tag_and_has_no_key(forge: str) -> None:
    """Its files are only for comparison with those that the releaser signs."""
    text = (ROOT / forge / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as a boolean
    (job,) = workflow["jobs"].values()
    build, upload = job["steps"][-2:]
    assert build == {"run": 'make release TAG="$GITHUB_REF_NAME"'} and upload["with"]["path"] == "dist/"
    assert "secrets." not in text and "KEY" not in text


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


def test_every_direct_dependency_is_justified_once_and_no_other() -> None:
    """Whoever adds a library says why, and what would replace it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    wanted = [*settings["build-system"]["requires"], *project["dependencies"]]
    wanted += [one for extra in project["optional-dependencies"].values() for one in extra]
    page = (ROOT / "docs" / "develop" / "dependencies.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:3] == "| `"]
    assert all(cells[-2] and cells[-1] for cells in rows)
    justified = Counter(cells[0].strip("`") for cells in rows)
    assert justified == Counter({Requirement(one).name for one in wanted} - {project["name"]})
