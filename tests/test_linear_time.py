"""Every regular expression that runs on mail takes time in proportion to the mail.

A pattern in which white space can be matched in two ways took hours for one header field. So each pattern of a module
that reads mail is tried as that module uses it, with texts made from the pattern itself, its characters and
its structure (`hard_texts`): a beginning that it expects, a piece repeated very often, and an end that it does not
expect.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _parser as parser
from typing import Any

import pytest

import bridge
from bridge.filter.headers import message_id
from bridge.mime import names, readings, structure, words
from bridge.service.analysis import headers
from bridge.service.analysis.content import link_address, page_text
from bridge.service.analysis.content.links import Links
from bridge.service.detection import link_targets, page
from bridge.service.detection.material import Material
from tests.hard_texts import attacks
from tests.processor_time import fair_cpu_s, is_linear

PARTS = (
    *("api", "events", "filter", "history", "intake", "lists", "mail", "matching", "mime", "observe", "quarantine"),
    *("relay", "runtime", "scanner", "service"),
)
METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
SHORT, LONG = 3_000, 12_000
SHARE_OF_TEXT = 2  # `make test` takes half as long texts: a pattern in quadratic time still takes tens of milliseconds
ENDS = ("", "\r", "\x01", "x", '"', "\n")
OTHERS = (" ", "\t", "\r\n ", "a", "0", "=", ".")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(bridge.__path__, "bridge."):
        if found.name.split(".")[1] in PARTS:
            try:
                yield importlib.import_module(found.name)
            except ImportError:  # an optional dependency
                continue


def patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Each pattern of a module with the method that the module calls."""
    for module in modules():
        source = Path(module.__file__).read_text(encoding="utf-8")
        for name, value in vars(module).items():
            found = value if isinstance(value, tuple) else (value,)
            if isinstance(value, re.Pattern):
                methods = set(re.findall(rf"\b{name}\.({'|'.join(METHODS)})\b", source))
            else:
                methods = {"search"}
            for number, pattern in enumerate(item for item in found if isinstance(item, re.Pattern)):
                for method in sorted(methods):
                    yield f"{module.__name__}.{name}[{number}].{method}", pattern, method
        yield from inline_patterns(module.__name__, source)


def inline_patterns(module: str, source: str) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Those that are written where they are used: `re.sub("[ \\t]+", ...)`."""
    called = re.search(rf"\bre\.(?:{'|'.join(METHODS)})\b", source)  # parsing all modules takes seconds
    for node in ast.walk(ast.parse(source)) if called else ():
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("re"), method), args=[ast.Constant(str() | bytes() as text), *_]):
                if method in METHODS:
                    flags = [getattr(re, found) for found in re.findall(r"\bre\.([A-Z]+)", ast.unparse(node))]
                    yield f"{module}:{node.lineno}.{method}", re.compile(text, sum(flags)), method


def pieces(tree: Any) -> Iterator[str]:
    """The characters of a parsed pattern, and the words in it."""
    word = ""
    for kind, argument in tree:
        if str(kind) == "LITERAL" and argument < 0x110000:
            word += chr(argument)
            continue
        if word:
            yield word
            word = ""
        for inner in argument if isinstance(argument, (list, tuple)) else ():
            for branch in inner if isinstance(inner, list) else [inner]:
                if isinstance(branch, parser.SubPattern):
                    yield from pieces(branch)
        if str(kind) == "IN":
            yield from (chr(value) for name, value in argument if str(name) == "LITERAL")
            yield from (chr(value[0]) for name, value in argument if str(name) == "RANGE")
    if word:
        yield word


def beginnings(found: list[str]) -> list[str]:
    """In the same order each time: the number of a text decides its end."""
    return sorted({"", *found[:2], "".join(found[:2])})


PATTERNS = {name: (pattern, method) for name, pattern, method in patterns()}


EACH_END = pytest.mark.parametrize(
    "each_end", [False, pytest.param(True, marks=pytest.mark.long)], ids=["a share", "all"]
)


def sizes(each_end: bool) -> tuple[int, int]:
    return (SHORT, LONG) if each_end else (SHORT // SHARE_OF_TEXT, LONG // SHARE_OF_TEXT)


def ends_of(number: int, each_end: bool) -> tuple[str, ...]:
    """All; or the one that hardly any pattern expects and, every fourth time, another one."""
    if each_end:
        return ENDS
    others = [end for end in ENDS if end != "\x01"]
    return ("\x01",) if number % 4 else ("\x01", others[number // 4 % len(others)])


@EACH_END
@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_takes_quadratic_time(name: str, each_end: bool) -> None:
    """Four times as long a text never takes much more than four times as long."""
    pattern, method = PATTERNS[name]
    text = pattern.pattern
    as_input: Callable[[str], Any] = str if isinstance(text, str) else lambda value: value.encode("utf-8")
    source = text if isinstance(text, str) else text.decode("latin-1")
    found = list(dict.fromkeys(pieces(parser.parse(source, pattern.flags & ~re.UNICODE))))
    repeated = [piece for piece in dict.fromkeys([*found, *OTHERS, "".join(found[:2]), "".join(found[:3])]) if piece]

    def work(value: Any) -> None:
        if method == "sub":
            pattern.sub(as_input(""), value)
        elif method == "finditer":
            list(pattern.finditer(value))
        else:
            getattr(pattern, method)(value)

    tried = dict.fromkeys((beginning, piece) for beginning in beginnings(found) for piece in repeated[:40])
    for number, (beginning, piece) in enumerate(tried | dict.fromkeys(attacks(pattern))):
        for end in ends_of(number, each_end):
            short, long = (as_input(beginning + piece * (size // len(piece)) + end) for size in sizes(each_end))
            assert is_linear(work, short, long), (beginning, piece, end)


def moves_too_far(tree: Any) -> bool:
    """Whether a group that is repeated possessively contains a repeat that something follows.

    Python before 3.11.5 does not go back to where the last, incomplete round began: `(?:[0-9]{1,3},){3,}+[0-9]` did
    not match `1,2,3,4`.
    """
    for kind, argument in tree:
        inner = [branch for branch in _flat(argument) if isinstance(branch, parser.SubPattern)]
        if str(kind) == "POSSESSIVE_REPEAT" and any(has_repeat(list(body)[:-1]) for body in map(_body, inner)):
            return True
        if any(map(moves_too_far, inner)):
            return True
    return False


def _flat(argument: Any) -> Iterator[Any]:
    for inner in argument if isinstance(argument, (list, tuple)) else (argument,):
        yield from inner if isinstance(inner, list) else [inner]


def _body(tree: Any) -> Any:
    """Without the parentheses around it."""
    while len(tree) == 1 and str(tree[0][0]) == "SUBPATTERN":
        tree = tree[0][1][3]
    return tree


def has_repeat(tree: Any) -> bool:
    return any(
        str(kind).endswith("REPEAT")
        or any(isinstance(inner, parser.SubPattern) and has_repeat(inner) for inner in _flat(argument))
        for kind, argument in tree
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_relies_on_what_old_python_matches_wrongly(name: str) -> None:
    pattern, _ = PATTERNS[name]
    assert not moves_too_far(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE))


@pytest.mark.parametrize(
    ("pattern", "is_wrong"),
    [
        (r"(?:[0-9]{1,3},){3,}+[0-9]", True),
        (r"((?:\r?\n[ \t][^\n]*+)*+)", True),
        (r"(?:(?:\r\n|\n)[ \t][^\n]*+)*+", False),
        (r"[0-9]{3,}+(?:ab?c)+", False),
    ],
)
def test_the_check_itself(pattern: str, is_wrong: bool) -> None:
    assert moves_too_far(parser.parse(pattern)) is is_wrong


UNITS = [
    *("name", "name=", 'name="', 'name="\\"', "; name=a.b", "name*1=", "filename*1*=utf-8''%41.", "name ", "name=(a."),
    *("=?", "=?a?q?", "=?a?x?b", "=?utf-8?b?QQ==?= ", "=?gb2312?q?=ff?=", "%ff", 'boundary="'),
    *(";", "=", '"', "\\", "(", ")", "(()", "' ", "a'", "?", '\\"', " ", "\t", "a.b ", "//", "<", "@"),
    *("a@b,", "<a@b>", '"a" ', "(a", "<a", "a@", "a:b;"),
    *(
        "// ",
        "//'a ",
        "https:(",
        "https:(@",
        "http:/'@",
        "file:///",
        '0;url="https:',
        "<area href=",
        "<meta ",
        "<input &#",
    ),
    *("//a", "http:", "https:/\t", "h\tt\tt\tp", "www.", "<a href=", "&#0", "&#9;", "//a (", "'//a\"", "=\n\n//x"),
]
READERS: dict[str, Callable[[str], object]] = {
    "file names": names.candidates,
    "locations": names.located,
    "parameters": structure.parse_value,
    "encoded words": words.decode_words,
    "names anywhere": lambda text: names.everywhere(b"content-type: " + text.encode()),
    "addresses": headers.addresses,
    "header fields": lambda text: headers.check([("from", text), ("reply-to", text), ("date", text)]),
    "links in text": lambda text: Links(10**9).scan(text, is_html=False),
    "links in HTML": lambda text: Links(10**9).scan(text, is_html=True),
    "a link": lambda text: (link_address.read(text), link_address.read("https:" + text), Links(10**9).add(text)),
    "input fields": page_text.escaped_inputs,
    "a page for the model": page.read,
    "a plain text for the model": lambda text: link_targets.all_of(Material(plain=text)),
    "Message-ID": lambda text: message_id(b"message-id:" + text.encode(), b"message-id:" + text.lower().encode()),
}


@EACH_END
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("start", ["", 'a; name="', "=?utf-8?q?", '<a href="'])
def test_no_reader_takes_quadratic_time(reader: str, start: str, each_end: bool) -> None:
    """The same for the functions that read header fields and links, which may look at a text several times."""
    for number, unit in enumerate(UNITS):
        for end in ("x", '"') if each_end else 'x"'[number % 2]:
            short, long = (start + unit * (size // len(unit)) + end for size in sizes(each_end))
            assert is_linear(READERS[reader], short, long), (unit, end)


def test_a_message_id_of_spaces_blocked_the_event_loop() -> None:
    """`Message-ID:`, a megabyte of spaces and a bare CR took hours."""
    head = b"Message-ID:" + b" " * 1024 * 1024 + b"\rx\r\n"
    assert fair_cpu_s(lambda: message_id(head, head.lower())) < 1
    assert message_id(head, head.lower()) == ""
    assert message_id(b"Message-ID:\r\n <a@b> \r\n", b"message-id:\r\n <a@b> \r\n") == "<a@b>"


def test_header_sections_without_a_colon_were_searched_from_the_end_of_the_mail() -> None:
    """Parts with text before their fields, and then 45 MB without a line end, took 50 seconds instead of 0.3."""
    part = b"--x\nContent-Type: a/b\nb\n" + b"\nb\n\na:\n" * 4 + b"\n"
    mail = b"\n" + part * 500 + b"Z" * 20_000_000
    assert fair_cpu_s(lambda: list(readings.regions(mail, readings.Budget(len(mail))))) < 0.5
