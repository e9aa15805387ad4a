"""Files of entries: plain text, CSV, JSON lines, JSON, YAML.

An entry is a string, with or without a comment. Without one (`None`), the comment in the list is
kept; an empty comment removes it. Anything that cannot be parsed is an error with file and line, and
all errors are reported together: a silently skipped line would be an address that is not blocked.

Plain text has one entry per line, with the comment after ` # `. Empty lines and lines that start with
# are skipped. A line that starts with { is a JSON object, for entries that plain text cannot express.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO, assert_never

from bridge.api.lists import ListEntry
from bridge.errors import BridgeError, ConfigError
from bridge.matching import spelling
from bridge.runtime.csv_row import no_formula, original
from bridge.runtime.visible_text import visible

MAX_MISTAKES = 20
MAX_LINE = 1024 * 1024  # characters, if a file is read line by line
_COMMENT = re.compile(r"(?<!\s)\s+#")  # from the first space on: a line of spaces took quadratic time
_ASTRAL = re.compile("([\U00010000-\U0010ffff])")


class InputError(BridgeError):
    """A file of entries cannot be used; the text has one line for each mistake."""


class Format(StrEnum):
    TEXT = "text"
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"
    YAML = "yaml"


SUFFIXES = {
    ".txt": Format.TEXT,
    ".list": Format.TEXT,
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".json": Format.JSON,
    ".yml": Format.YAML,
    ".yaml": Format.YAML,
}

Row = tuple[int, str, str | None]  # line, entry, comment
_HEADER = {Format.CSV: "entry,comment\r\n"}


def format_of(path: Path) -> Format:
    """The format by the suffix of the name; plain text for any other suffix."""
    return SUFFIXES.get(path.suffix.lower(), Format.TEXT)


def read_file(path: Path, kind: Format | None = None) -> dict[str, str | None]:
    """A file's entries and comments. Raises InputError."""
    try:
        raw = path.read_bytes()
    except OSError as exc:
        raise InputError(f"{visible(str(path))}: cannot read the file: {exc.strerror}; check its path") from exc
    return read(raw, kind or format_of(path), visible(str(path)))


def read(raw: bytes, kind: Format, shown: str) -> dict[str, str | None]:
    """Entry -> comment, in order; if an entry appears twice, the last one wins. Raises InputError."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = len((raw[: exc.start] + b".").splitlines())
        raise InputError(f"{shown}:{line}: not UTF-8 text") from None
    mistakes = _Mistakes(shown)
    found: dict[str, str | None] = {}
    for line, entry, comment in _rows(_of_text(text, kind), kind, mistakes):
        mistakes.check_row(line, entry, comment)
        found[entry] = comment
    mistakes.check()
    return found


def rows(file: BinaryIO, kind: Format, shown: str, max_yaml_values: int | None = None) -> Iterator[Row]:
    """The same one by one, without holding the file in memory; an entry may appear twice. JSON and YAML are read whole.

    Raises InputError, for most mistakes only at the end of the file.
    """
    mistakes = _Mistakes(shown)
    text = io.TextIOWrapper(file, "utf-8-sig", newline=_newline(kind))
    line = 0
    try:
        for line, entry, comment in _rows(_Lines(text, shown), kind, mistakes, max_yaml_values):
            mistakes.check_row(line, entry, comment)
            yield line, entry, comment
    except UnicodeDecodeError:
        raise InputError(f"{shown}:{line + 1}: not UTF-8 text on this line or a few lines below") from None
    finally:
        text.detach()  # the file is the caller's
    mistakes.check()


class _Lines:
    """The lines of a file; none is so long that it takes much memory."""

    def __init__(self, text: TextIO, shown: str = "", limit: int = MAX_LINE) -> None:
        self._text, self._shown, self._limit = text, shown, limit

    def __iter__(self) -> Iterator[str]:
        number = 0
        while line := self._text.readline(self._limit):
            number += 1
            if len(line) == self._limit and not line.endswith(("\n", "\r")):
                raise InputError(f"{self._shown}:{number}: the line is longer than {self._limit:,} characters")
            yield line

    def whole(self) -> str:
        return self._text.read()


def places(raw: bytes, kind: Format, shown: str, wanted: Container[str]) -> dict[str, str]:
    """Where some of the entries are, as `file:line`; for content that `read` has accepted."""
    rows = _rows(_of_text(raw.decode("utf-8-sig"), kind), kind, _Mistakes(shown))
    return {entry: f"{shown}:{line}" for line, entry, _ in rows if entry in wanted}


class _Mistakes:
    def __init__(self, shown: str) -> None:
        self.shown = shown
        self._found: list[str] = []
        self._more = 0

    def add(self, line: int, what: str) -> None:
        if len(self._found) < MAX_MISTAKES:
            self._found.append(f"{self.shown}:{line}: {what}")
        else:
            self._more += 1

    def check_row(self, line: int, entry: str, comment: str | None) -> None:
        if not entry:
            self.add(line, "the entry is empty")
        elif len(entry) > spelling.MAX_ENTRY:
            self.add(line, f"the entry has more than {spelling.MAX_ENTRY} characters")
        elif comment is not None and len(comment) > spelling.MAX_COMMENT:
            self.add(line, f"the comment has more than {spelling.MAX_COMMENT} characters")

    def check(self) -> None:
        if self._found:
            rest = [f"{self.shown}: and {self._more} more like these"] if self._more else []
            raise InputError("\n".join(map(visible, [*self._found, *rest])))


def _of_text(text: str, kind: Format) -> _Lines:
    return _Lines(io.StringIO(text, newline=_newline(kind)), limit=len(text) + 1)


def _newline(kind: Format) -> str | None:
    """`newline` for `io`: lines end with LF, CR LF, or CR alone. The csv module must see them unchanged."""
    return "" if kind is Format.CSV else None


def _rows(text: _Lines, kind: Format, mistakes: _Mistakes, max_yaml_values: int | None = None) -> Iterable[Row]:
    match kind:
        case Format.TEXT:
            return _text_rows(text, mistakes)
        case Format.CSV:
            return _csv_rows(text, mistakes)
        case Format.JSONL:
            return _json_lines(text, mistakes)
        case Format.JSON:
            return _json_rows(text.whole(), mistakes)
        case Format.YAML:
            return _yaml_rows(text.whole(), mistakes, max_yaml_values)
        case _:
            assert_never(kind)


def _text_rows(text: _Lines, mistakes: _Mistakes) -> Iterator[Row]:
    for number, whole in enumerate(text, 1):
        line = whole.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("{"):
            yield from _json_line(number, line, mistakes)
        elif mark := _COMMENT.search(line):
            yield number, line[: mark.start()], line[mark.end() :].strip()
        else:
            yield number, line, None


def _json_lines(text: _Lines, mistakes: _Mistakes) -> Iterator[Row]:
    for number, line in enumerate(text, 1):
        if line.strip():
            yield from _json_line(number, line, mistakes)


def _json_line(number: int, line: str, mistakes: _Mistakes) -> Iterator[Row]:
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        mistakes.add(number, "not JSON")
        return
    yield from _item(number, item, mistakes)


def _json_rows(text: str, mistakes: _Mistakes) -> Iterator[Row]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        mistakes.add(exc.lineno, f"not JSON: {exc.msg}")
        return
    except ValueError:
        mistakes.add(1, "not JSON: a number is too long")
        return
    except RecursionError:
        mistakes.add(1, "nested too deeply")
        return
    yield from _items(value, lambda _: 1, mistakes)


def _yaml_rows(text: str, mistakes: _Mistakes, max_values: int | None) -> Iterator[Row]:
    try:
        from bridge.runtime import yaml_file  # only this format needs it

        value, line_of = yaml_file.read(Path(mistakes.shown), text, max_values=max_values)
    except ConfigError as exc:
        raise InputError(str(exc)) from None
    yield from _items(value, line_of, mistakes)


def _items(value: Any, line_of: Callable[[tuple[str | int, ...]], int], mistakes: _Mistakes) -> Iterator[Row]:
    """A list, or an object whose `entries` is one."""
    above: tuple[str | int, ...] = ()
    if isinstance(value, dict) and set(value) == {"entries"}:
        value, above = value["entries"], ("entries",)
    if value is None:
        return
    if not isinstance(value, list):
        mistakes.add(1, "must be a list of entries, each a string or an object with `entry` and `comment`")
        return
    for i, item in enumerate(value):
        yield from _item(line_of((*above, i)), item, mistakes)


def _item(line: int, item: Any, mistakes: _Mistakes) -> Iterator[Row]:
    if isinstance(item, str):
        yield line, item, None
        return
    if not isinstance(item, dict) or not isinstance(item.get("entry"), str):
        mistakes.add(line, "an entry must be a string, or an object whose `entry` is a string (quote numbers)")
        return
    comment = item.get("comment")
    if comment is not None and not isinstance(comment, str):
        mistakes.add(line, "a comment must be a string (quote numbers)")
        return
    yield line, item["entry"], comment  # other fields are ignored


def _csv_rows(text: _Lines, mistakes: _Mistakes) -> Iterator[Row]:
    """A first row may name the columns `entry` and `comment`; without it, they are the first two."""
    lines = iter(text)
    first = next(lines, "")
    reader = csv.reader(chain([first], lines), strict=True, delimiter=";" if _semicolons(first) else ",")
    at, comment_at, named = 0, 1, False
    try:
        for number, row in enumerate(reader):
            cells = [cell.strip() for cell in row]
            if number == 0 and "entry" in (names := [cell.lower() for cell in cells]):
                at, comment_at = names.index("entry"), names.index("comment") if "comment" in names else -1
                named = True
                continue
            if not any(cells) or (not named and cells[0].startswith("#")):
                continue
            if len(cells) <= at:
                mistakes.add(reader.line_num, "the row has no entry")
                continue
            yield reader.line_num, cells[at], original(cells[comment_at]) if 0 <= comment_at < len(cells) else None
    except csv.Error as exc:
        mistakes.add(reader.line_num, f"not CSV: {exc}")


def _semicolons(first: str) -> bool:
    return ";" in first and "," not in first


def header(kind: Format) -> str:
    """The text before the first entry."""
    return _HEADER.get(kind, "")


def show(entries: Iterable[ListEntry], kind: Format) -> str:
    """Entries in a format that `read` accepts; JSON is written as JSON lines."""
    match kind:
        case Format.TEXT:
            return "".join([_text_line(entry) for entry in entries])
        case Format.CSV:
            target = io.StringIO()
            csv.writer(target).writerows((entry.entry, no_formula(entry.comment)) for entry in entries)
            return target.getvalue().encode("utf-8", "replace").decode()
        case Format.JSONL | Format.JSON:
            return "".join([json.dumps(entry.to_dict()) + "\n" for entry in entries])
        case Format.YAML:
            return "".join([_yaml_line(entry) for entry in entries])
        case _:
            assert_never(kind)


def _yaml_line(entry: ListEntry) -> str:
    return f"- {{entry: {_quoted(entry.entry)}, comment: {_quoted(entry.comment)}}}\n"


def _quoted(text: str) -> str:
    """A YAML string in ASCII: like JSON, except that YAML has one escape where JSON writes two surrogates."""
    parts = _ASTRAL.split(text.encode("utf-8", "replace").decode())
    shown = [f"\\U{ord(part):08x}" if i % 2 else json.dumps(part)[1:-1] for i, part in enumerate(parts)]
    return f'"{"".join(shown)}"'


def _text_line(item: ListEntry) -> str:
    entry, comment = item.entry, item.comment
    plain = entry.isprintable() and comment.isprintable() and entry == entry.strip() and comment == comment.strip()
    if not plain or not entry or entry[0] in "#{" or _COMMENT.search(entry):
        return json.dumps(item.to_dict()) + "\n"
    return f"{entry}  # {comment}\n" if comment else f"{entry}\n"
