"""Files of entries: every format, what is kept, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.lists import ListEntry, tree
from bridge.lists.files import Format, InputError, format_of, header, read, read_file, show
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
    """Entries come with their comment, with an empty one, or with none at all."""
    found = read(text.encode(), kind, "x")
    assert found and found.items() <= WANTED.items()


@pytest.mark.parametrize("kind", list(Format))
def test_an_empty_file_is_an_empty_list(kind):
    """Nothing in it is no mistake, except where the format needs a list."""
    assert read(b"[]" if kind is Format.JSON else b"", kind, "x") == {}


@pytest.mark.parametrize(
    ("kind", "text", "mistake"),
    [
        (Format.TEXT, b"ok@x.org\n\xff\n", "x:2: not UTF-8 text"),
        (Format.TEXT, b"ok@x.org\n{oops\n", "x:2: not JSON"),
        (Format.TEXT, b'{"comment": "x"}', "x:1: an entry must be a text"),
        (Format.CSV, b'entry\n"a@x.org\n', "x:2: not CSV"),
        (Format.CSV, b"comment,entry\nonly a comment\n", "x:2: this row has no entry"),
        (Format.CSV, b"entry,comment\n,lost\n", "x:2: the entry is empty"),
        (Format.JSONL, b'"a"\n17\n', "x:2: an entry must be a text"),
        (Format.JSONL, b'{"entry": "a", "comment": 5}', "x:1: a comment must be a text"),
        (Format.JSONL, b"[" * 100_000, "x:1: not JSON"),
        (Format.JSON, b"[1,\n2", "x:2: not JSON"),
        (Format.JSON, b'{"a": 1}', "x:1: must be a list"),
        (Format.YAML, b"- ok\n- 10.1\n", r"x:2: an entry must be a text.*needs quotes"),
        (Format.YAML, b"entries:\n- ok\n- {entry: a, comment: 1}\n", "x:3: a comment must be a text"),
        (Format.YAML, b"- {entry: a, entry: b}\n", "x:1: .*twice"),
        (Format.YAML, b"a: [", r"x:\d: not YAML"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_line(kind, text, mistake):
    """A line skipped in silence would be an address that nobody blocks."""
    with pytest.raises(InputError, match=mistake):
        read(text, kind, "x")


def test_all_mistakes_are_told_at_once_but_not_a_million():
    """Twenty lines are enough to see what is wrong."""
    with pytest.raises(InputError) as caught:
        read(b"{\n" * 50, Format.TEXT, "x")
    told = str(caught.value).splitlines()
    assert len(told) == 21 and told[-1] == "x: and 30 more like these"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.txt", Format.TEXT), ("a.CSV", Format.CSV), ("a.ndjson", Format.JSONL), ("a.yaml", Format.YAML),
     ("a.json", Format.JSON), ("a", Format.TEXT), ("a.feed", Format.TEXT)],
)  # fmt: skip
def test_the_name_tells_the_format(name, kind):
    """Anything unknown is plain text."""
    assert format_of(Path(name)) is kind


# Any text a service may hold, but an entry is never empty; CSV has no way to keep outer white space.
_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_entries = st.lists(st.builds(ListEntry, _texts.filter(str.strip), _texts), max_size=5, unique_by=lambda one: one.entry)


@given(_entries)
@pytest.mark.parametrize("kind", [Format.TEXT, Format.JSONL, Format.YAML])
def test_what_is_shown_can_be_read_again(kind, entries):
    """The entries of a list, saved and read, are the same entries with the same comments."""
    text = header(kind) + show(entries, kind)
    found = read(text.encode(), kind, "x")
    assert {entry: comment or "" for entry, comment in found.items()} == {one.entry: one.comment for one in entries}


@given(_entries)
def test_csv_that_is_shown_can_be_read_again(entries):
    """The same for CSV, beside white space around a cell and line ends in it."""
    entries = [ListEntry(*(" ".join(text.split()) for text in (one.entry, one.comment))) for one in entries]
    text = header(Format.CSV) + show(entries, Format.CSV)
    assert read(text.encode(), Format.CSV, "x") == {one.entry: one.comment for one in entries}


def test_text_shows_nothing_that_moves_the_cursor():
    """An entry with control characters is shown as JSON, escaped."""
    shown = show([ListEntry("a\x1b[2J", "b\nc"), ListEntry("# d"), ListEntry("e #f"), ListEntry("{g")], Format.TEXT)
    assert shown.splitlines() == [
        '{"entry": "a\\u001b[2J", "comment": "b\\nc"}',
        '{"entry": "# d", "comment": ""}',
        '{"entry": "e #f", "comment": ""}',
        '{"entry": "{g", "comment": ""}',
    ]


def test_a_file_that_is_not_there_is_named(tmp_path):
    """The reason comes with the name."""
    with pytest.raises(InputError, match=r"gone\.txt: cannot be read: No such file"):
        read_file(tmp_path / "gone.txt")


def test_a_directory_names_lists_and_tenants(tmp_path):
    """Files are lists of the deployment, directories are tenants; what is neither is left alone."""
    (tmp_path / TENANT.upper()).mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("blocked-senders.txt", "README.md", ".hidden.txt", f"{TENANT.upper()}/blocked-senders.csv"):
        (tmp_path / name).touch()
    found = tree.find(tmp_path)
    assert [(one.name, one.tenant) for one in found.targets] == [("blocked-senders", None), ("blocked-senders", TENANT)]
    assert found.ignored == [tmp_path / "README.md"]


def test_a_directory_with_mistakes_is_refused_whole(tmp_path):
    """A tenant that is none, two files for one list, and files too deep are all told at once."""
    (tmp_path / "not-a-tenant").mkdir()
    (tmp_path / TENANT / "deep").mkdir(parents=True)
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        tree.find(tmp_path)
    assert len(str(caught.value).splitlines()) == 3
    for part in ("not-a-tenant: a directory is named", "a.txt: a.csv is for the same list", "deep: too deep"):
        assert part in str(caught.value)


def test_a_directory_without_lists_is_a_mistake(tmp_path):
    """Nothing to do is more likely the wrong directory."""
    with pytest.raises(InputError, match="holds no lists"):
        tree.find(tmp_path)
