"""Each object of an ambiguous mail is inspected once, however large it is."""

from __future__ import annotations

from bridge.mime.duplicates import MAX_KEPT, Seen


def test_a_content_is_new_once_even_if_it_is_too_large_to_be_kept() -> None:
    seen = Seen()
    small, large, half = b"a" * 9, b"b" * (MAX_KEPT + 1), b"c" * (MAX_KEPT - 20)
    contents = [small, large, half, b"d" * 30, b"", b"e" * 9]
    assert [seen.is_new(content) for content in contents] == [True] * 6
    assert [seen.is_new(bytes(bytearray(content))) for content in contents] == [False] * 6


def test_other_contents_of_the_same_size_are_new() -> None:
    seen = Seen()
    assert all(seen.is_new(b"%03d" % number) for number in range(1000))
    assert all(seen.is_new(bytes([number]) * (MAX_KEPT // 4)) for number in range(8))
