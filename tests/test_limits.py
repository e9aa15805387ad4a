"""docs/reference/limits.md is complete and correct: its defaults match the code, its metrics and tests exist."""

from __future__ import annotations

import dataclasses
import re
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge.config.limits import Limits
from bridge.config.model import Config
from bridge.observe.metrics import LIMITS, Metrics
from bridge.runtime.units import parse_duration, parse_size

ROOT = Path(__file__).parent.parent
METRIC = re.compile(r'(\w+)(?:\{(\w+)="(\w+)"\})?')


class Row(NamedTuple):
    what: str
    where: str
    default: str
    why: str
    passed: str
    metric: str
    test: str


def rows() -> list[Row]:
    lines = [
        line for line in (ROOT / "docs" / "reference" / "limits.md").read_text().splitlines() if line.startswith("| ")
    ]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(*[cell.strip("`") if i in (1, 5, 6) else cell for i, cell in enumerate(row)]) for row in cells
            if row[0] != "what"]  # fmt: skip


ROWS = rows()


def number(text: str) -> float | None:
    """The default that the page states."""
    if text == "none":
        return None
    if text.endswith("B"):
        return parse_size(text)
    return float(text) if text.isdigit() else parse_duration(text)


def value(where: str) -> Any:
    """The default in the code."""
    if not where.startswith("bridge."):
        return reduce(_default, where.split("."), Config)
    *module, name = where.split(".")
    if module[-1][0].isupper():
        owner = getattr(import_module(".".join(module[:-1])), module[-1])
        defaults = (
            {field.name: field.default for field in dataclasses.fields(owner)}
            if dataclasses.is_dataclass(owner)
            else {}
        )
        return defaults.get(name, getattr(owner, name, None))
    return getattr(import_module(".".join(module)), name)


def _default(section: Any, key: str) -> Any:
    field = section.model_fields[key]
    if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
        return field.annotation
    inner = [kind for kind in getattr(field.annotation, "__args__", ()) if hasattr(kind, "model_fields")]
    return inner[0] if inner else field.default


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.where)
def test_default_matches_the_code(row: Row) -> None:
    assert value(row.where) == number(row.default)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.where)
def test_metric_exists(row: Row) -> None:
    """The metric has this label, with this value."""
    match = METRIC.fullmatch(row.metric)
    assert match is not None
    name, label, wanted = match.groups()
    metrics = Metrics(["name"])
    metrics.next_hop_mails.start(["hop"], ("taken", "deferred", "refused", "unreachable", "lost"))
    metrics.start_events(["sink"], [])
    samples = [sample for family in metrics.collect() for sample in family.samples if sample.name == name]
    assert samples
    assert label is None or wanted in {sample.labels[label] for sample in samples}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.where)
def test_test_exists(row: Row) -> None:
    path, _, name = row.test.partition("::")
    assert (ROOT / path).is_file()
    assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_every_limit_has_a_row_and_a_reason() -> None:
    """All keys of `limits`, and all limits that are counted."""
    assert {f"limits.{key}" for key in Limits.model_fields} <= {row.where for row in ROWS}
    assert set(LIMITS) == set(re.findall(r'limits_hit_total\{limit="(\w+)"\}', "\n".join(row.metric for row in ROWS)))
    assert all(row.why and row.passed for row in ROWS)
