"""JSON of clients: what no request needs would stop the event loop for seconds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bridge.service.requests import decode_json
from tests.processor_time import fair_cpu_s

_MANY: dict[str, Callable[[], bytes]] = {
    "names": lambda: b"{" + b",".join(b'"%d":1' % number for number in range(600_000)) + b"}",
    "strings": lambda: b"[" + b",".join([b'"["'] * 1_500_000) + b"]",
    "numbers": lambda: b"[" + b",".join([b"1"] * 3_000_000) + b"]",
    "lists": lambda: b"[" + b",".join([b"[]"] * 5000) + b"]",
}


@pytest.mark.parametrize("kind", _MANY)
def test_millions_of_values_stopped_the_service(kind: str) -> None:
    text = _MANY[kind]()

    def refuse() -> None:
        with pytest.raises(ValueError, match="too many values"):
            decode_json(text)

    assert fair_cpu_s(refuse) < 0.5


def test_an_ordinary_request_with_many_signs_in_its_texts_is_read() -> None:
    entries = [{"entry": f"a{number}@example.org", "comment": '"[{,:}]"' * 200} for number in range(500)]
    assert decode_json(json.dumps({"entries": entries}).encode()) == {"entries": entries}
