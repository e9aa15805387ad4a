"""Every recipe is tested."""

from __future__ import annotations

import re

from tests.recipes.recipe_kit import DEPLOY, ROOT


def test_every_recipe_is_in_the_table_of_results() -> None:
    """A new directory in deploy/ needs a test, or a note in both pages that it was not run."""
    recipes = {path.parent.name for path in DEPLOY.glob("*/bridge.yml")} - WAYS_TO_INSTALL
    rows = re.findall(
        r"(?m)^\| \[([\w-]+)\]\(\.\./\.\./deploy/\1/README\.md\) \|(?: `[^|]+` ?[^|]*\|){7}$", PAGE.read_text()
    )
    not_run = re.findall(r"(?m)^\*\*Not run:\*\* \[([\w-]+)\]", PAGE.read_text())
    assert all("**This recipe has not been run.**" in (DEPLOY / name / "README.md").read_text() for name in not_run)
    assert sorted(rows + not_run) == sorted(recipes)


PAGE = ROOT / "docs" / "operate" / "recipes.md"
# Not for a particular mail server
WAYS_TO_INSTALL = {"ansible", "cluster", "compose", "container", "kubernetes", "package"}
