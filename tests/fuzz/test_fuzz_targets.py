"""Runs every fuzz target on its corpus and a few hundred mutations of it; `make fuzz` does the same for longer."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.runner import Broken, Run, changed, smaller
from tests.fuzz.targets import CORPUS, TARGETS, seeds


@pytest.mark.parametrize("inputs", [60, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_seed_or_mutation_breaks_a_promise(name: str, inputs: int) -> None:
    """The seed is fixed, so a failure is reproducible."""
    run = Run(name, Random(1))
    try:
        run.replay(watch_each=4 if inputs == 60 else 1)
        run.mutate(inputs=inputs // 5 if name == "configuration" else inputs)
    except Broken as broken:
        pytest.fail(f"{broken}: {smaller(broken, 2.0)!r}")
    assert len(run.reached) > 10, "the target does not reach its parser"


def test_every_target_and_only_a_target_has_a_small_corpus() -> None:
    """Seeds stay small enough to read."""
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    for name in TARGETS:
        assert 5 <= len(seeds(name)) <= 60
        assert max(map(len, seeds(name))) <= 10_000


def test_the_runner_finds_a_failure_and_minimises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the fuzzer can find a known bug."""

    def brittle(data: bytes) -> None:
        if b"\r\n.\n" in data:
            raise KeyError("smuggled")

    monkeypatch.setitem(TARGETS, "intake_data", brittle)
    run = Run("intake_data", Random(1))
    run.replay()
    with pytest.raises(Broken) as caught:
        run.mutate(inputs=20_000)
    assert smaller(caught.value) == b"\r\n.\n"


def test_mutations_are_reproducible_and_bounded() -> None:
    """`make fuzz SEED=` repeats a run exactly."""
    pool = [b"a" * 9000, b"b"]
    first, second = Random(7), Random(7)
    children = [changed(first, pool) for _ in range(200)]
    assert children == [changed(second, pool) for _ in range(200)]
    assert len(set(children)) > 100
    assert max(map(len, children)) <= 12_000
