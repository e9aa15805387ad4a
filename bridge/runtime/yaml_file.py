"""Loads a YAML file into a pydantic model and reports all mistakes together, each with file and line.

No other file knows YAML; `config_mistakes` words the messages about values that the model refuses. The loader is
stricter than YAML 1.1: duplicate keys are errors, and everything except `true`, `false`, decimal numbers and `null` is
text (so `no` is not False and `1:30` is not 90). Values are never printed, because they may be secrets.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from bridge.errors import ConfigError
from bridge.runtime import config_mistakes, whole_file
from bridge.runtime.renamed_keys import Path_, Renamed, read_old_names

if TYPE_CHECKING:  # `read` alone must be quick to import
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")

CHECK_PATH = "check the path given with -c"  # the command line replaces it with how the path was really given

_ALIASED = 100_000
_MAX_DEPTH = 200
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]+\Z")
_SCALARS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


def load(path: Path, model: type[M], text: str | None = None, renamed: Sequence[Renamed] = ()) -> M:
    """Read `path` (or `text` instead) as a `model`. Raises ConfigError with one line per error.

    Validators find the file's `directory` in the validation context, and the `warnings` about renamed keys.
    """
    if text is None:
        text = read_text(path)
    tree = Tree(path)
    value = tree.read(text)
    old_names = read_old_names(value, renamed, tree)
    result, mistakes = None, tree.mistakes + old_names.mistakes
    if tree.parsed:
        context = {"directory": path.parent, "warnings": old_names.warnings}
        result, more = config_mistakes.validate({} if value is None else value, model, tree, context)
        mistakes = mistakes + more
    if mistakes or result is None:
        raise ConfigError("\n".join(sorted(mistakes, key=_line_of)))
    return result


def read_text(path: Path) -> str:
    """Raises ConfigError."""
    try:
        return whole_file.read_text(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {_reason(exc)}; {_next_step(exc)}") from exc


def read(
    path: Path, text: str, renamed: Sequence[Renamed] = (), max_values: int | None = None
) -> tuple[Any, Callable[[Path_], int]]:
    """Plain data, and a function for the line of each part. Raises ConfigError. Ten times faster, for long lists.

    A value takes about 0.5 KB of memory, even if it is one character long; keys are values, too.
    """
    tree = Tree(path)
    value = tree.read(text, functools.partial(_QuickLoader, max_values=max_values))
    read_old_names(value, renamed, tree)
    if tree.mistakes:
        raise ConfigError("\n".join(sorted(tree.mistakes, key=_line_of)))
    return value, tree.line


def lines(path: Path, text: str, renamed: Sequence[Renamed] = ()) -> dict[Path_, int]:
    """The line of every key and list item. Raises ConfigError."""
    tree = Tree(path)
    read_old_names(tree.read(text), renamed, tree)
    if tree.mistakes:
        raise ConfigError("\n".join(sorted(tree.mistakes, key=_line_of)))
    return tree.lines


def dump(data: object, width: float | None = 110) -> str:
    """Plain data as YAML, with the keys in their order. Without a width, every value is on one line."""
    width = width or math.inf
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=width)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.safe_dump(data, sort_keys=False, width=width)  # escapes what cannot be seen


class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The loader in C follows nested values on its own stack, and crashes the process when that is used up.

    It calls the resolver at the beginning and the end of each value. We need no resolver, so we count there.
    """

    def __init__(self, text: str, max_values: int | None) -> None:
        super().__init__(text)
        self._depth = 0
        self._left = math.inf if max_values is None else max_values

    def descend_resolver(self, *_: Any) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError
        self._left -= 1
        if self._left < 0:
            raise _TooMany

    def ascend_resolver(self) -> None:
        self._depth -= 1


class Tree:
    """Converts YAML nodes to plain values and remembers the line of every key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Path_, int] = {}
        self._scalars: set[Path_] = set()
        self.mistakes: list[str] = []
        self.parsed = False
        self._left = 0  # values that are still allowed

    def read(self, text: str, loader: Any = yaml.SafeLoader) -> Any:
        try:
            self._left = len(text) + _ALIASED  # every value has at least one character, unless an alias repeats it
            node = yaml.compose(text, Loader=loader)
            value = None if node is None else self._value(node, (), frozenset())
            self.parsed = True
        except yaml.MarkedYAMLError as exc:
            mark = exc.context_mark if _NO_COLON in (exc.problem or "") else exc.problem_mark
            line = mark.line + 1 if mark else 1
            self.mistakes.append(f"{self.path}:{line}: not YAML: {_problem(exc)}")
            return None
        except yaml.YAMLError:
            self.mistakes.append(f"{self.path}:1: not YAML: a character that is not allowed")
            return None
        except RecursionError:
            self.mistakes.append(f"{self.path}:1: nested too deeply")
            return None
        except _TooMany:
            self.mistakes.append(f"{self.path}:1: too many values; each use of an alias counts")
            return None
        return value

    def _value(self, node: yaml.Node, where: Path_, above: frozenset[int]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooMany
        self.lines.setdefault(where, node.start_mark.line + 1)
        if id(node) in above:
            return self._mistake(node, where, "an alias must not contain itself")
        above |= {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, where, above)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, (*where, i), above) for i, child in enumerate(node.value)]
        self._scalars.add(where)
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, where: Path_, above: frozenset[int]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, child in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._mistake(key_node, where, "a key must be a word")
                continue
            key = str(key_node.value)
            if key in result:
                first = self.lines[(*where, key)]
                self._mistake(key_node, (*where, key), f"this key appears twice, first on line {first}; remove one")
                continue
            if "\u00a0" in key:
                self._mistake(key_node, where, "a no-break space, perhaps copied from a web page; use a plain space")
                continue
            self.lines[(*where, key)] = key_node.start_mark.line + 1
            result[key] = self._value(child, (*where, key), above)
        return result

    def _scalar(self, node: yaml.Node) -> Any:
        text = str(node.value)
        if getattr(node, "style", None) in ("'", '"', "|", ">"):
            return text
        if text.lower() in _SCALARS:
            return _SCALARS[text.lower()]
        if _INT.match(text) and len(text) < 20:
            return int(text)
        if _FLOAT.match(text):
            return float(text)
        return text

    def _mistake(self, node: yaml.Node, where: Path_, what: str) -> None:
        self.mistakes.append(f"{self.path}:{node.start_mark.line + 1}: {_dotted(where) or 'the file'}: {what}")

    def at(self, where: Path_) -> str:
        """File, line and name of a key."""
        return f"{self.path}:{self.line(where)}: {_dotted(where) or 'the file'}"

    def place(self, loc: tuple[int | str, ...]) -> Path_:
        """The key of an error: `loc` also names union branches, which are not keys.

        It may name keys that the file does not have, if a model takes one word for a whole section.
        """
        where: Path_ = ()
        for part in loc:
            if where in self._scalars:
                break
            if (*where, part) in self.lines or not _is_branch(part):
                where = (*where, part)
        return where

    def rename(self, old: Path_, new: Path_) -> None:
        """Everything below the key `old` counts as below `new`, on its own lines."""
        for where in [where for where in self.lines if where[: len(old)] == old]:
            self.lines[(*new, *where[len(old) :])] = self.lines.pop(where)
        moved = {where for where in self._scalars if where[: len(old)] == old}
        self._scalars = self._scalars - moved | {(*new, *where[len(old) :]) for where in moved}

    def line(self, where: Path_) -> int:
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


@dataclass(frozen=True)
class Trees:
    """Several files that are one configuration, each below its own keys: `()` for a file that has all of them."""

    parts: Sequence[tuple[Path_, Tree]]

    def at(self, where: Path_) -> str:
        part = self._part(where)
        if part is None:  # a key that none of these files has
            return f"{self.parts[0][1].path}: {_dotted(where)}"
        below, tree = part
        return tree.at(where[len(below) :])

    def place(self, loc: tuple[int | str, ...]) -> Path_:
        part = self._part(loc)
        if part is None:
            return loc
        below, tree = part
        return (*below, *tree.place(loc[len(below) :]))

    def _part(self, where: Path_) -> tuple[Path_, Tree] | None:
        """The file with the most specific keys."""
        fitting = [part for part in self.parts if where[: len(part[0])] == part[0]]
        return max(fitting, key=lambda part: len(part[0]), default=None)


class _TooMany(Exception):
    """Nested aliases expand to too many values."""


def _problem(exc: yaml.MarkedYAMLError) -> str:
    """PyYAML quotes the text in question: one character is fine, but an alias may be part of a secret."""
    problem = exc.problem or "it cannot be read"
    if "'\\t'" in problem:
        return "a tab; indent with spaces"
    if "<stream end>" in problem or "end of stream" in problem:
        closing = re.search(r"expected (',' or '[]}]')", problem)
        missing = (
            f"{closing[1]} is missing" if closing else "close its bracket" if "<" in problem else "close its quote"
        )
        return f"the file ends in the middle of a value; {missing}"
    for words, meaning in _YAML_WORDS.items():
        if words in problem:
            return meaning
    return re.sub(r" '(?!<)[^']{3,}'", "", problem) + _open_bracket(exc)


def _open_bracket(exc: yaml.MarkedYAMLError) -> str:
    """The mistake is usually where the bracket was opened, lines above the place at which it was noticed."""
    if exc.context_mark is None or "parsing a flow" not in (exc.context or ""):
        return ""
    return f"; close the bracket that was opened on line {exc.context_mark.line + 1}"


_NO_COLON = "could not find expected ':'"  # noticed on a later line; the context is where the key is
# PyYAML's words for the commonest mistakes, and what to do.
_YAML_WORDS = {
    _NO_COLON: "a word without a colon; write `key: value`",
    "mapping values are not allowed here": "a second colon on this line; put the value in quotes, or start a new line",
    "expected <block end>": "this line is indented differently from the other lines of its section; align them",
    "cannot start any token": "a value that starts with a special character (@, %, `); put it in quotes",
    "found undefined alias": "no anchor (&) has this name; if this is text that starts with *, put it in quotes",
    "expected the node content": "a value is missing or incomplete",
    "'<document start>'": "text after the end of the only value; is the file in another format, such as TOML or INI?",
}


def _is_branch(part: str | int) -> bool:
    return isinstance(part, str) and not _WORD.fullmatch(part)


def _dotted(where: Path_) -> str:
    return ".".join(
        str(part) if not isinstance(part, str) or _WORD.fullmatch(part) else json.dumps(part) for part in where
    )


def _line_of(text: str) -> tuple[int, str]:
    match = re.search(r":(\d+): ", text)
    return (int(match.group(1)) if match else 0, text)


def _next_step(exc: Exception) -> str:
    match exc:
        case UnicodeDecodeError():
            return "save it as UTF-8"
        case PermissionError():
            return "run this command as a user who may read it, or as root"
        case _:
            return CHECK_PATH


def _reason(exc: Exception) -> str:
    return (exc.strerror or type(exc).__name__) if isinstance(exc, OSError) else "not UTF-8 text"
