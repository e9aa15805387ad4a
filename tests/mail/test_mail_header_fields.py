"""Header fields: what belongs to one field, and that every reader of the header agrees on it."""

from __future__ import annotations

import pytest

from bridge.mail.header_fields import ANY_FIELD, field_named, fields_with_prefix, without_fields

HEAD = (
    b"Received: from a\r\n"
    b"\tby b\r\n"
    b"X-Scan-Decision: deliver\r\n"
    b"x-scan-tags : a,\r\n"
    b" b\r\n"
    b"X-Scan-broken\r\n"
    b"Subject: one\r\n"
    b" two\r\n"
)


def test_a_field_ends_where_the_next_line_does_not_continue_it() -> None:
    """Continuation lines begin with a space or a tab."""
    fields = [(name.lower(), b" ".join(value.split())) for name, value in ANY_FIELD.findall(HEAD)]
    assert fields == [
        (b"received", b"from a by b"),
        (b"x-scan-decision", b"deliver"),
        (b"x-scan-tags", b"a, b"),
        (b"subject", b"one two"),
    ]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("X-Scan-Tags", [b" a,\r\n b"]),
        ("x-scan-decision", [b" deliver"]),
        ("X-Scan", []),
        ("X.Scan-Tags", []),
    ],
)
def test_a_field_is_found_by_its_whole_name(name: str, values: list[bytes]) -> None:
    """In any letter case, with white space before the colon; a dot matches only a dot."""
    assert field_named(name).findall(HEAD) == values


def test_fields_with_a_prefix_are_removed_whole() -> None:
    """Continuation lines are removed, too, and lines with that prefix that are not fields."""
    assert fields_with_prefix("X-Scan-").sub(b"", HEAD) == (
        b"Received: from a\r\n\tby b\r\nSubject: one\r\n two\r\n"
    )  # fmt: skip


def test_a_header_section_cut_in_a_continuation_line_loses_only_whole_lines() -> None:
    """A header section above the limit may end anywhere: bytes after the last CRLF are left alone."""
    assert fields_with_prefix("X-Scan-").sub(b"", b"X-Scan-Tags: a\r\n b") == b" b"


def test_fields_are_removed_by_name() -> None:
    """Every other byte is unchanged."""
    kept = without_fields(HEAD, {b"received", b"x-scan-tags"})
    assert kept == b"X-Scan-Decision: deliver\r\nX-Scan-broken\r\nSubject: one\r\n two\r\n"
