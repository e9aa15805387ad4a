"""A package says which commit it was built from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bridge.runtime.build import built_from
from tests.requirements import need, need_package_index

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
PROJECT = """\
[build-system]
requires = ["hatchling>=1.28"]
build-backend = "hatchling.build"
[project]
name = "small"
version = "1.0"
[tool.hatch.build.hooks.custom]
[tool.hatch.build.targets.wheel]
packages = ["bridge"]
"""


class Checkout:
    """A small project with our build hook, in a repository of its own."""

    def __init__(self, root: Path) -> None:
        need("git")
        need_package_index()
        self.root = root
        (root / "bridge").mkdir(parents=True)
        (root / "bridge/__init__.py").touch()
        (root / "pyproject.toml").write_text(PROJECT)
        (root / ".gitignore").write_text("__pycache__/\n")  # of hatch_build.py
        shutil.copy(ROOT / "hatch_build.py", root)
        self.git("init", "--quiet")

    def git(self, *words: str) -> str:
        person = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
        command = ["git", "-C", self.root, *person, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")[:12]

    def built(self, out: Path, *options: str, **variables: str) -> tuple[str, bytes]:
        """What the program from a new wheel says, and the wheel."""
        command = [UV, "build", "--quiet", *options, "--out-dir", out, self.root]
        subprocess.run(command, env=os.environ | variables, check=True, timeout=180)
        (wheel,) = out.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract("bridge/commit.txt", out)
        return built_from(out / "bridge/commit.txt"), wheel.read_bytes()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.mark.long
def test_two_builds_of_one_version_can_be_told_apart(checkout: Checkout, tmp_path: Path) -> None:
    """Each names its commit, in a wheel that was built from the source archive, and two of one commit are equal."""
    first = checkout.commit()
    builds = [checkout.built(tmp_path / name) for name in ("1", "2")]
    assert builds[0][0] == f"commit {first}" and builds[0] == builds[1]
    second = checkout.commit()
    assert checkout.built(tmp_path / "3", "--wheel")[0] == f"commit {second}" != f"commit {first}"
    (checkout.root / "bridge/__init__.py").write_text("# not committed\n")
    assert checkout.built(tmp_path / "4", "--wheel")[0] == f"commit {second}, with changes"


def test_a_build_without_a_repository_names_the_commit_it_is_told(checkout: Checkout, tmp_path: Path) -> None:
    """A container is built from files alone. The repository around them, if there is one, is not theirs."""
    shutil.rmtree(checkout.root / ".git")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert checkout.built(tmp_path / "1", "--wheel")[0] == "unknown commit"
    told = checkout.built(tmp_path / "2", "--wheel", SCANBRIDGE_COMMIT="0123456789abcdef0123")
    assert told[0] == "commit 0123456789ab"


def test_a_checkout_says_that_it_is_one() -> None:
    assert built_from() == "source tree"
