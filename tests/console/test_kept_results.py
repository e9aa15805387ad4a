"""Results that are kept for all who ask."""

from __future__ import annotations

from bridge.console.kept_results import KeptResults


def test_a_result_is_fresh_for_a_while_and_kept_for_longer() -> None:
    kept: KeptResults[str, int] = KeptResults(10)
    kept.keep("a", 1, fresh_s=3600)
    kept.keep("b", 0, fresh_s=-1)
    assert (kept.fresh("a"), kept.latest("a")) == (1, 1)
    assert (kept.fresh("b"), kept.latest("b")) == (None, 0)
    assert (kept.fresh("c"), kept.latest("c")) == (None, None)


def test_of_too_many_keys_the_first_are_forgotten() -> None:
    """Each set of tenants has its own results; one that was renewed is not the first any more."""
    kept: KeptResults[int, int] = KeptResults(3)
    for number in (1, 2, 3, 1, 4):
        kept.keep(number, number, 60)
    assert [kept.latest(number) for number in (1, 2, 3, 4)] == [1, None, 3, 4]
