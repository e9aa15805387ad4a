"""The time that a refusal takes reveals nothing about a token or a key."""

from __future__ import annotations

import hmac

import pytest

from bridge.service.abby_settings import StaticApiToken
from bridge.service.auth import StaticTokens
from bridge.service.responses import Refused

TOKENS = [f"{digit}" * 64 for digit in "123"]
GUESSES = [
    *(TOKENS[0], TOKENS[2], TOKENS[0][:-1] + "x", "x" + TOKENS[0][1:], TOKENS[0][:32], TOKENS[0] + "1"),
    *("x", "x" * 5000, "\udcff", "\u00e9"),
]


@pytest.mark.parametrize("guess", GUESSES, ids=range(len(GUESSES)))
def test_a_guess_is_compared_with_every_token_in_constant_time(guess: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a guess matches the first, the last or no token, it costs as many comparisons of equal length."""
    compared: list[int] = []

    def compare(known: bytes, given: bytes, real=hmac.compare_digest) -> bool:
        compared.append(len(known))
        assert len(known) == len(given)
        return real(known, given)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    tokens = StaticTokens([StaticApiToken(name=f"t{n}", token=token) for n, token in enumerate(TOKENS)])
    given = f"Bearer {guess}".encode("utf-8", "surrogateescape")
    try:
        name = tokens.check({"headers": [(b"authorization", given)]}, "scan")
    except Refused as exc:
        assert exc.status == 401 and guess not in TOKENS
    else:
        assert name == f"t{TOKENS.index(guess)}"
    assert compared == [32, 32, 32]
