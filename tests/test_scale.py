"""The page about many mails a day is what the program prints, and its simulation repeats what was measured."""

from __future__ import annotations

import pytest

from tools import simulate
from tools.queueing import Cell
from tools.queueing_points import points


def test_the_page_has_the_tables_that_the_program_prints() -> None:
    page = simulate.PAGE.read_text()
    assert page == simulate.page_with(simulate.tables(simulate.options([])), page), "python -m tools.simulate --write"


def test_the_simulation_repeats_what_was_measured() -> None:
    found = list(points(simulate.options([]).before))
    assert len(found) > 20
    assert [point for point in found if abs(point.difference) > point.tolerance] == []


def test_ten_times_more_mail_needs_as_many_times_more_cores_and_requests() -> None:
    """One bridge lists the quarantine for all, so that the requests do not grow with the number of bridges as well."""
    model = simulate.Model(simulate.options([]))
    small, large = (model.day(millions, most=20) for millions in (100, 1000))
    cores = "analysis (API nodes, workers, NATS): cores"
    assert 9 <= _number(large[cores]) / _number(small[cores]) <= 10
    assert _number(large["S3: LIST/s"]) / _number(small["S3: LIST/s"]) == pytest.approx(10, rel=0.01)


def test_another_price_on_the_command_line_changes_the_cost() -> None:
    usual, free = (simulate.Model(simulate.options(words)).day(10, 20) for words in ([], ["--network_price", "0"]))
    assert free["cost a month: network"] == "0" != usual["cost a month: network"]


def test_mail_above_the_limit_is_refused_and_the_rest_is_not_delayed() -> None:
    """A scanner of ten mails a second: of twenty a second, half is accepted, each after one scan."""
    run = Cell(0.0, iter(lambda: 0.1, None), 1, limit=1).open_loop(iter(lambda: 0.0501, None), 10.0)
    assert run.most == 1 and len(run.waits) == run.refused == 100
    assert run.percentile_ms(1.0) == pytest.approx(100)


def _number(text: str) -> float:
    return float(text.strip("*").replace(",", ""))
