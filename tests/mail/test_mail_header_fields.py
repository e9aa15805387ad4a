"""Header fields: what belongs to one field, and that every reader of the header agrees on it."""

from __future__ import annotations

import pytest

from bridge.mail.header_fields import clean_fields, field_named, fields_with_prefix
from tests.processor_time import fair_cpu_s, is_linear

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
    """Continuation lines begin with a space or a tab; white space before the colon belongs to the name."""
    fields = clean_fields(HEAD.replace(b"X-Scan-broken\r\n", b""))
    assert fields is not None and b"".join(field.raw for field in fields) == HEAD.replace(b"X-Scan-broken\r\n", b"")
    assert [(field.name, field.value) for field in fields] == [
        (b"Received", b" from a\r\n\tby b"),
        (b"X-Scan-Decision", b" deliver"),
        (b"x-scan-tags ", b" a,\r\n b"),
        (b"Subject", b" one\r\n two"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        *(b"no colon\r\n", b": no name\r\n", b"two words: x\r\n", b"\xc3\xa4: x\r\n", b"\r\n"),
        *(
            b"A: x\r\n \r\n",
            b"A: x\r\n\t\r\n y\r\n",
            b"A: x\ry\r\n",
            b"A: x\ny\r\n",
            b"A: \0\r\n",
            b"A: x\r\n y\rz\r\n",
        ),
    ],
)
def test_a_line_that_is_no_field_is_seen_wherever_it_is(line: bytes) -> None:
    """Readers disagree about it: it ends the header section, continues a field, or is skipped."""
    for head in (line, b"To: b\r\n" + line, line + b"To: b\r\n", b"To: b\r\n" + line + b"To: b\r\n"):
        assert clean_fields(head) is None
    assert clean_fields(b" first\r\nTo: b\r\n") is None
    assert clean_fields(b"") == [] and [field.name for field in clean_fields(b"To: b") or ()] == [b"To"]


def test_a_field_that_holds_a_bare_carriage_return_is_removed_whole() -> None:
    """Milter mail may have one."""
    assert fields_with_prefix("X-Scan-").remove(b"A: 1\r\nX-Scan-A: x\ry\r\n z\r\nB: 2\r\n") == b"A: 1\r\nB: 2\r\n"


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        (b"A: ", b"\r\n "),
        (b"", b"A:\r\n"),
        pytest.param(b"", b"aaaa", marks=pytest.mark.long),
        pytest.param(b"A", b"    ", marks=pytest.mark.long),
    ],
)
def test_a_header_section_is_read_in_linear_time(start: bytes, repeated: bytes) -> None:
    def read(head: bytes) -> None:
        clean_fields(head)
        field_named("A").remove(head)

    assert is_linear(read, start + repeated * (1 << 16), start + repeated * (1 << 18))


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
    assert [field.value for field in field_named(name).find(HEAD)] == values


def test_fields_with_a_prefix_are_removed_whole() -> None:
    """Continuation lines are removed, too, and lines with that prefix that are not fields."""
    assert fields_with_prefix("X-Scan-").remove(HEAD) == (
        b"Received: from a\r\n\tby b\r\nSubject: one\r\n two\r\n"
    )  # fmt: skip


def test_a_header_section_cut_in_a_continuation_line_loses_only_whole_lines() -> None:
    """A header section above the limit may end anywhere: bytes after the last CRLF are left alone."""
    assert fields_with_prefix("X-Scan-").remove(b"X-Scan-Tags: a\r\n b") == b" b"


@pytest.mark.parametrize(
    "head",
    [
        b"X-Scan-Released:" + b"\r\n x" * (1 << 18) + b"\r\n",
        b"X-Scan-Released:" + b"\r\n " * (1 << 18) + b"\r\n",
        b"X-Scan-Released:" + b"\r" * (1 << 20) + b"\r\n",
        b"X-Scan-Released:\r\n" * (1 << 16),
        b"X-Scan-a\n" * (1 << 17),
        b"X-Scan-a\r\n " * (1 << 17) + b"x",
    ],
)
def test_a_header_section_of_one_mebibyte_took_a_second(head: bytes) -> None:
    """Other mail waited for it, although it was neither admitted nor scanned yet."""
    finders = (fields_with_prefix("X-Scan-"), field_named("X-Scan-Released"))
    assert fair_cpu_s(lambda: [(finder.remove(head), finder.first(head)) for finder in finders]) < 0.5
    assert not fields_with_prefix("X-Scan-").remove(head).startswith(b"X-Scan-Released")


def test_a_bare_line_feed_does_not_end_a_field() -> None:
    """As a bare CR does not: a field with one is removed whole, and no reader is left with its beginning."""
    assert fields_with_prefix("X-Scan-").remove(b"A: 1\r\nX-Scan-A: x\ny\r\n z\r\nB: 2\r\n") == b"A: 1\r\nB: 2\r\n"
    assert fields_with_prefix("X-Scan-").remove(b"A: 1\nX-Scan-A: x\r\nB: 2\r\n") == b"A: 1\nB: 2\r\n"
    assert fields_with_prefix("X-Scan-").remove(b"X-Scan-A: x") == b"X-Scan-A: x"
