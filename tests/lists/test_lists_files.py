"""Files of entries: every format, round trips, and mistakes with their lines."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.lists import ListEntry, tree
from bridge.lists.files import MAX_LINE, Format, InputError, format_of, header, read, read_file, rows, show
from tests.lists.lists_kit import TENANT

WANTED = {"a@x.org": "first", "b@x.org": "", "c@x.org": None}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Format.TEXT, "# our partners\na@x.org # first\n\n  b@x.org #\nc@x.org\n"),
        (Format.TEXT, '\ufeffa@x.org\t#first\r\nb@x.org #\r\n{"entry": "c@x.org"}'),
        (Format.CSV, "entry,comment\na@x.org,first\nb@x.org,\nc@x.org\n"),
        (Format.CSV, 'id;Comment;ENTRY\r\n1;first;a@x.org\r\n2;;"b@x.org"\r\n\r\n'),
        (Format.CSV, '# no header\na@x.org," first "\nb@x.org,""\nc@x.org\n'),
        (Format.JSONL, '{"entry": "a@x.org", "comment": "first", "n": 1}\n\n{"entry": "b@x.org", "comment": ""}\n'),
        (Format.JSON, '["c@x.org", {"entry": "b@x.org", "comment": ""}, {"comment": "first", "entry": "a@x.org"}]'),
        (Format.JSON, '{"entries": ["c@x.org"]}'),
        (Format.YAML, "- a@x.org\n- {entry: a@x.org, comment: first}\n- entry: b@x.org\n  comment: ''\n- c@x.org\n"),
        (Format.YAML, "entries:\n  - c@x.org\n"),
    ],
)
def test_each_format_is_read(kind, text):
    """An entry has a comment, an empty comment, or none."""
    found = read(text.encode(), kind, "x")
    assert found and found.items() <= WANTED.items()
    assert streamed(text.encode(), kind) == found


def streamed(raw: bytes, kind: Format) -> dict[str, str | None]:
    with io.BytesIO(raw) as file:
        found = {entry: comment for _, entry, comment in rows(file, kind, "x")}
        assert not file.closed
        return found


@pytest.mark.parametrize("kind", [Format.TEXT, Format.CSV, Format.JSONL])
@given(text=st.text(alphabet='ab,;"# {}\\\r\n\t\x0b\u2028\u00e9', max_size=60))
def test_a_file_is_the_same_line_by_line(kind, text):
    """The console reads long files that way: the same entries, or the same mistake."""
    try:
        whole = read(text.encode(), kind, "x")
    except InputError as exc:
        with pytest.raises(InputError) as found:
            streamed(text.encode(), kind)
        assert str(found.value) == str(exc)
    else:
        assert streamed(text.encode(), kind) == whole


def test_a_line_without_an_end_is_not_read_whole():
    """It would take as much memory as the file."""
    with pytest.raises(InputError, match="x:2: the line is longer than 1,048,576 characters"):
        streamed(b"ok\n" + b"x" * (MAX_LINE + 1), Format.TEXT)
    assert streamed(b"ok\n#" + b"x" * (MAX_LINE - 2) + b"\n", Format.TEXT) == {"ok": None}
    with pytest.raises(InputError, match="not UTF-8"):
        streamed(b"ok\n\xff\n", Format.TEXT)


@pytest.mark.parametrize("kind", list(Format))
def test_an_empty_file_is_an_empty_list(kind):
    """An empty file is not a mistake, except where the format requires a list."""
    assert read(b"[]" if kind is Format.JSON else b"", kind, "x") == {}


@pytest.mark.parametrize(
    ("kind", "text", "mistake"),
    [
        (Format.TEXT, b"ok@x.org\n\xff\n", "x:2: not UTF-8 text"),
        (Format.TEXT, b"ok@x.org\n{oops\n", "x:2: not JSON"),
        (Format.TEXT, b'{"comment": "x"}', "x:1: an entry must be a string"),
        (Format.TEXT, b"ok@x.org\n" + b"a" * 513, "x:2: the entry has more than 512 characters"),
        (Format.TEXT, b"ok@x.org\na # " + b"a" * 2001, "x:2: the comment has more than 2000 characters"),
        (Format.CSV, b'entry\n"a@x.org\n', "x:2: not CSV"),
        (Format.CSV, b"comment,entry\nonly a comment\n", "x:2: the row has no entry"),
        (Format.CSV, b"entry,comment\n,lost\n", "x:2: the entry is empty"),
        (Format.JSONL, b'"a"\n17\n', "x:2: an entry must be a string"),
        (Format.JSONL, b'{"entry": "a", "comment": 5}', "x:1: a comment must be a string"),
        (Format.JSONL, b"[" * 100_000, "x:1: not JSON"),
        (Format.JSON, b"[1,\n2", "x:2: not JSON"),
        (Format.JSON, b'{"a": 1}', "x:1: must be a list"),
        (Format.YAML, b"- ok\n- 10.1\n", r"x:2: an entry must be a string.*quote numbers"),
        (Format.YAML, b"entries:\n- ok\n- {entry: a, comment: 1}\n", "x:3: a comment must be a string"),
        (Format.YAML, b"- {entry: a, entry: b}\n", "x:1: .*twice"),
        (Format.YAML, b"a: [", r"x:\d: not YAML"),
    ],
)
def test_a_mistake_is_reported_with_its_line(kind, text, mistake):
    """A silently skipped line would be an address that is not blocked."""
    with pytest.raises(InputError, match=mistake):
        read(text, kind, "x")


def test_mistakes_are_reported_together_but_at_most_twenty():
    """Twenty lines are enough to see what is wrong."""
    with pytest.raises(InputError) as caught:
        read(b"{\n" * 50, Format.TEXT, "x")
    reported = str(caught.value).splitlines()
    assert len(reported) == 21 and reported[-1] == "x: and 30 more like these"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", Format.TEXT), ("a.CSV", Format.CSV), ("a.ndjson", Format.JSONL), ("a.yaml", Format.YAML),
     ("a.json", Format.JSON), ("a", Format.TEXT), ("a.feed", Format.TEXT)],
)  # fmt: skip
def test_the_suffix_determines_the_format(name, kind):
    """A file with an unknown suffix is plain text."""
    assert format_of(Path(name)) is kind


# Any text that a service may have; an entry is never empty.
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_entries = st.lists(
    st.builds(ListEntry, _texts.filter(str.strip), _texts), max_size=5, unique_by=lambda entry: entry.entry
)


@given(_entries)
@pytest.mark.parametrize("kind", [Format.TEXT, Format.JSONL, Format.YAML])
def test_the_output_can_be_read_back(kind, entries):
    """The entries of a list, saved and read back, are the same entries with the same comments."""
    text = header(kind) + show(entries, kind)
    found = read(text.encode(), kind, "x")
    assert {name: comment or "" for name, comment in found.items()} == {item.entry: item.comment for item in entries}


@given(_entries)
def test_csv_output_can_be_read_back(entries):
    """The same for CSV, except for white space around a cell and line ends within it."""
    entries = [ListEntry(*(" ".join(text.split()) for text in (item.entry, item.comment))) for item in entries]
    text = header(Format.CSV) + show(entries, Format.CSV)
    assert read(text.encode(), Format.CSV, "x") == {item.entry: item.comment for item in entries}


@pytest.mark.parametrize("comment", ["=1+1", "x;@SUM(A1)", "'=1", " \t-1", 'a, "b";\'+1', "it's; '90"])
def test_a_comment_was_a_formula_in_a_spreadsheet(comment):
    """Anyone who may add to one tenant's lists writes comments, and an operator opens the file. It can be read back."""
    text = show([ListEntry("a@x.org", comment)], Format.CSV)
    cell = next(csv.reader([text]))[1]
    assert not re.search(r"""(^|;)[\s"]*[=+@-]""", cell)
    found = read(text.encode(), Format.CSV, "x")["a@x.org"]
    assert found is not None and found.strip() == comment.strip()


def test_text_output_contains_no_control_characters():
    """An entry with control characters is shown as escaped JSON."""
    shown = show([ListEntry("a\x1b[2J", "b\nc"), ListEntry("# d"), ListEntry("e #f"), ListEntry("{g")], Format.TEXT)
    assert shown.splitlines() == [
        '{"entry": "a\\u001b[2J", "comment": "b\\nc"}',
        '{"entry": "# d", "comment": ""}',
        '{"entry": "e #f", "comment": ""}',
        '{"entry": "{g", "comment": ""}',
    ]


def test_the_error_for_a_missing_file_names_it(tmp_path):
    """The error has the name and the reason."""
    with pytest.raises(InputError, match=r"missing\.txt: cannot read the file: No such file"):
        read_file(tmp_path / "missing.txt")


def test_a_directory_contains_lists_and_tenants(tmp_path):
    """Files are deployment-global lists, directories are tenants; other files are ignored."""
    (tmp_path / TENANT.upper()).mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("blocked-senders.txt", "README.md", ".hidden.txt", f"{TENANT.upper()}/blocked-senders.csv"):
        (tmp_path / name).touch()
    found = tree.find(tmp_path)
    targets = [(target.name, target.tenant) for target in found.targets]
    assert targets == [("blocked-senders", None), ("blocked-senders", TENANT)]
    assert found.ignored == [tmp_path / "README.md"]


def test_all_mistakes_in_a_directory_are_reported_together(tmp_path):
    """An invalid tenant, two files for one list, and nested directories are all reported."""
    (tmp_path / "not-a-tenant").mkdir()
    (tmp_path / TENANT / "deep").mkdir(parents=True)
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        tree.find(tmp_path)
    assert len(str(caught.value).splitlines()) == 3
    for part in (
        "not-a-tenant: the name of a directory must be the UUID of a tenant",
        "a.txt: a.csv is for the same list",
        "deep: a tenant's directory must not contain directories",
    ):
        assert part in str(caught.value)


def test_a_directory_without_lists_is_a_mistake(tmp_path):
    """It is probably the wrong directory."""
    with pytest.raises(InputError, match="no lists found"):
        tree.find(tmp_path)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Format.YAML, "[" * 1_000_000, "nested too deeply"),
        (Format.YAML, "- " * 300 + "x", "nested too deeply"),
        (Format.JSON, "[" * 1_000_000, "nested too deeply"),
        (Format.JSON, f"[{'1' * 5000}]", "a number is too long"),
    ],
)
def test_a_file_that_is_too_much_for_a_parser_is_a_mistake(kind, text, said):
    """The YAML parser in C ended the whole process; a long number was an unexpected error."""
    with pytest.raises(InputError, match=said):
        read(text.encode(), kind, "x")


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_every_line_end_ends_a_line(end: str) -> None:
    """A file with CR alone was one entry with all lines in it, and its separator was guessed from the whole file."""
    rows = [f"user{number}@x.org" for number in range(5000)]
    wanted = dict.fromkeys(rows)
    assert read(end.join(rows).encode(), Format.TEXT, "x") == wanted
    assert read(end.join(f'{{"entry": "{row}"}}' for row in rows).encode(), Format.JSONL, "x") == wanted
    table = end.join(["entry;comment", *(f"{row};first, then more" for row in rows)])
    assert read(table.encode(), Format.CSV, "x") == dict.fromkeys(rows, "first, then more")
    with pytest.raises(InputError, match="x:3: not UTF-8 text"):
        read(f"a{end}b{end}".encode() + b"\xff", Format.TEXT, "x")
