"""Files and pages that the scripts of an attached page put together when a browser opens it.

Nothing runs here: what scripts build a file from is in the page, most often as a literal in Base64. So every long
literal is decoded in the ways in which scripts write it: Base64, hexadecimal, `%41`, `\\x41`, a list of numbers, in
pieces that are joined, on several lines, or reversed. What comes out may be encoded again, or compressed. What a script
decrypts is not found, but if it saves a file, that gets a tag. So does a page that a stylesheet in it builds (XSLT).
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from bridge.mime import references, words
from bridge.mime.rare_charsets import escapes_replaced
from bridge.service.analysis.content import archives, file_types, page_files, page_text
from bridge.service.analysis.content.decompression import inflated
from bridge.service.analysis.content.page_text import escaped_inputs
from bridge.service.analysis.content.text_windows import BEGINNING, codecs_of
from bridge.service.analysis.content.unpacking import Budget, Member

PAGE_NAME = "page.html"  # of a page that a script writes
BUILDS_FILE, BUILDS_PAGE = "attachment:builds-file", "attachment:builds-page"
CREDENTIAL_FORM = "attachment:credential-form"
LITERAL_WORK = 8192  # for each literal that is decoded, and
ESCAPE_WORK = 80  # for each `\x41` or number that is replaced, and
PIECE_WORK = 64  # for each comparison with another
MIN_FILE = 16  # bytes
MAX_LAYERS = 4  # of encodings around each other, besides the first

# Searching for patterns that begin with one literal character is several times as fast (Python 3.11). So those that
# begin with a quote expect a text in which the other quotes are replaced by it, and two of them also what else may be
# there.
_JOINTS = re.compile(r'"\s{0,40}(?:[+,]|\.concat\()\s{0,40}"')
_ADDRESS = re.compile(r"https?:[\\/]{1,4}[^\s\"'`<>\\]+")  # in lower case
# The word `http` in Base64 and in hexadecimal, and what follows: such literals may be shorter than those of files.
_BASE64_ADDRESS = re.compile("aHR0c[A-Za-z0-9+/_-]{9,}+")
_HEX_ADDRESS = re.compile("68747470[0-9a-fA-F]{12,}+")
_AFTER_QUOTE = re.compile(r'"\s{0,99}([A-Za-z0-9+/_=-]{40,}+)')  # Base64, as in the next one; or after these:
_BEFORE_DATA = ">=:#?&*{("  # the ends of a tag, of a name, of a part of an address, of the beginning of a comment
_IN_COMMENT = re.compile(r"<!--\s{0,99}([A-Za-z0-9+/_=-]{40,}+)")
_LINE_END = re.compile(r"\n(?<=[A-Za-z0-9+/_-]{16}\n)\s{0,40}(?=[A-Za-z0-9+/_-])")  # within Base64
_PIECE = re.compile(r'"([A-Za-z0-9+/_-]{16,}+)={0,2}"')
_HEX = re.compile(r"[0-9a-fA-F]{60,}+")
_NUMBERS = re.compile(r'"([0-9a-fA-FxX,;|\s-]{31,}+)')  # or after a bracket
_BETWEEN_NUMBERS = re.compile(r"[,;|\s-]+")
_QUOTED = re.compile(r'"([^"]{16,}+)')
_MIN_ESCAPES = 8
_PERCENT = re.compile(r'"([^"%]{0,200}%(?:u[0-9a-fA-F]{4}|[0-9a-fA-F]{2})[^"]+)')
_PERCENT_CODE = re.compile(r"%(?:u([0-9a-fA-F]{4})|([0-9a-fA-F]{2}))")
_NUMBER = re.compile(r"0x([0-9a-f]{1,2})|((?:(?<=[,;|\s])|^)-?[0-9]{1,3}|[0-9]{1,3})", re.IGNORECASE)
_HEX_NUMBER = re.compile("[0-9a-fA-F]{2}")
_MIN_NUMBERS = 16
# Not `input[type=password]`: a selector. Begins with a literal, so that it is searched ten times as fast (Python 3.11).
_PASSWORD = re.compile(
    r"type(?<![\[\w-]type)(?:(?:\s*+=|\\?[\"']\s*+,)\s*+\\?[\"']?|[\"']?\s*+(?::|\]\s*+=)\s*+[\"'])password"
)
_STYLESHEET, _TRANSFORM = "<?xml-stylesheet", "/1999/xsl/transform"  # in lower case; the second: its namespace
_DATA_STYLESHEET = re.compile(r"<\?xml-stylesheet[^<>]{0,500}?href\s{0,9}=\s{0,9}[\"']data:")
_TRANSFORMS = re.compile(  # elements and attributes whose names or values are computed
    r"<(?:[^\s<>:/]{1,60}:)?(?:element|attribute)\s|disable-output-escaping|\btype\s{0,9}=\s{0,9}[\"'][^\"'<>]{0,200}\{"
)
_TEXT_PASSWORD = re.compile(r">\s{0,99}password")  # the text of an element, which may be such an attribute
_TYPE_ATTRIBUTE = re.compile(
    r"attribute\s[^<>]{0,200}name\s{0,9}=\s{0,9}[\"']type[\"'][^<>]{0,200}(?:>\s{0,99}<[^<>]{1,99})?\Z"
)
_MAX_FIELDS, _FIELD_LENGTH = 100, 600  # texts that are looked at; with more, the page has the other tag
_PICTURE = re.compile(rb"(?:data:image/[^,]{0,100},)?\s{0,99}<(?:svg|\?xml)", re.IGNORECASE)
_ACTIVE = re.compile(rb"<script|<foreignobject|<iframe|<a\s|javascript:|\son[a-z]{3,20}\s{0,9}=", re.IGNORECASE)
_PAGE_START = re.compile(
    rb"<(?:!doctype|html|head|body|form|script|iframe|meta|input|svg|div|a\s)|atob\(|unescape\(|document\.|new blob",
    re.IGNORECASE,
)
_ENCODED = re.compile(rb"[^<>\"'`{}\\]{16,}+")  # all of it: no code and no page
_SAVES = ("mssaveoropenblob", "mssaveblob", "createobjecturl", "showsavefilepicker", "readasdataurl", "new file(")
# A `data:` address that is continued: `"data:a/b;base64,"+x`, `.concat(x)`, `["data:", x].join("")` or `${x}`.
_ASSEMBLED = re.compile(
    r"data:(?<![\w-]data:)(?!image/|font/|text/css)(?:(?:[a-z]{1,20}/[^\"'`\s]{0,100})?[\"'`]\s{0,9}"
    r"(?:\+|\.concat|,[^\[\]()]{1,200}\]\s{0,9}\.join)|[^\"'`\s]{0,100}\$\{)"
)
_HANDLER = re.compile(r"on(?<=[\s\"'/]on)[a-z]{3,24}\s{0,9}=")  # in lower case
# Names in a page. Scripts and JSON in ordinary pages escape the `<` before them, but never their letters.
_PAGE_WORD = re.compile(
    r"doctype|html|head|body|form|script|iframe|meta|input|svg|div|href|atob|unescape|document|blob", re.IGNORECASE
)
_SCRIPTS = (
    b"<script",
    b"javascript:",
    b"onload",
    b"onerror",
    b"onclick",
    b"password",
    b"atob",
    b"unescape",
    b"document.",
    b"location",
    b"xml-stylesheet",
)


def may_build(content: bytes) -> bool:
    """A quick test of a page."""
    text = content.replace(b"\0", b"").lower()
    return any(mark in text for mark in _SCRIPTS) or (b"<input" in text and b"&#" in text)


def page_members(content: bytes, budget: Budget) -> Iterator[Member]:
    """What the page builds, and what it asks for."""
    done: set[bytes] = set()
    for codec in codecs_of(content[:BEGINNING], ""):
        yield from _of_text(words.decoded(content, codec), budget, done)
    if b"\0" in content:  # UTF-16, whatever the page says
        yield from _of_text(content.replace(b"\0", b"").decode("latin-1"), budget, done)


def _of_text(page: str, budget: Budget, done: set[bytes]) -> Iterator[Member]:
    budget.take_work(20 * len(page))
    for text in _with_attributes(page):
        yield from _of_script(text, budget, done)


def _with_attributes(page: str) -> list[str]:
    """The page; and if scripts may be in attributes, with the references in these replaced: `onload="f(&#39;x&#39;)"`.

    A page in an attribute (`srcdoc`) may have such attributes again.
    """
    if "&" not in page:
        return [page]
    lower = page.lower()
    if "srcdoc" in lower:
        return [page, *page_text.inner_pages(page)]
    if "&#" in page or "javascript:" in lower or _HANDLER.search(lower):
        # First with all lines of Base64, which may end in references: those before the first one are a piece of them.
        return list(dict.fromkeys((references.unescaped(page), page)))
    return [page]


def _of_script(text: str, budget: Budget, done: set[bytes]) -> Iterator[Member]:
    budget.take_work(20 * len(text))
    joined = _LINE_END.sub("", _without_joints(text).replace("\r\n", "\n"))
    budget.take_work(ESCAPE_WORK * joined.count("\\"))
    texts = {reading: reading.lower() for reading in dict.fromkeys((joined, escapes_replaced(joined), text))}
    names = tuple(sorted(page_files.names(text, texts[text]))[:20])
    links: dict[str, None] = {}
    tags: set[str] = set()
    is_reversed = "reverse" in text
    for reading, lower in texts.items():
        tags.update(_tags(lower))
        links |= dict.fromkeys(_addresses(reading, "" if reading is text else lower))
        if is_reversed:
            links |= dict.fromkeys(_addresses(reading[::-1], lower[::-1]))
    literals = (found for reading in texts for found in _literals(reading, is_reversed, budget))
    for literal, is_hidden in _layers(literals, is_reversed, budget):
        budget.take_work(LITERAL_WORK + 4 * len(literal) + PIECE_WORK * len(done))
        if literal[:5].lower() == b"http:" or literal[:6].lower() == b"https:":
            links[literal.decode("latin-1")] = None
        links |= dict.fromkeys(_addresses(literal.decode("latin-1"), ""))
        if not _is_file(literal) or any(map(_ends_with(literal), done)):  # a piece of another file
            continue
        done.add(literal)
        budget.take(len(literal))
        is_page = _PAGE_START.search(literal[:4096].replace(b"\0", b"")) is not None
        if is_page and is_hidden and not _is_picture(literal):
            tags.add(BUILDS_PAGE)
        yield Member((PAGE_NAME,) if is_page else names or ("",), literal, is_disputed=True)
    yield Member((), None, tags=tuple(tags), links=tuple(links))


def _without_joints(text: str) -> str:
    """Strings that are joined become one, whatever their quotes are."""
    kept, at = [], 0
    for match in _JOINTS.finditer(_with_one(_OTHER_QUOTES, text)):
        kept.append(text[at : match.start()])
        at = match.end()
    return "".join((*kept, text[at:]))


_OTHER_QUOTES = "'`"


def _with_one(others: str, text: str) -> str:
    """With each of the others replaced by a quote."""
    for other in others:
        text = text.replace(other, '"')
    return text


def _addresses(text: str, lower: str) -> Iterator[str]:
    """Where the page leads to: encoded in the text, or plain in the text in lower case."""
    if "aHR0c" in text:  # searched for much faster than with a pattern
        yield from (_from_base64(literal).decode("latin-1") for literal in _BASE64_ADDRESS.findall(text))
    if "68747470" in text:
        yield from (_from_hex(digits).decode("latin-1") for digits in _HEX_ADDRESS.findall(text))
    yield from _ADDRESS.findall(lower)


def _tags(lower: str) -> Iterator[str]:
    if any(mark in lower for mark in _SAVES) or _ASSEMBLED.search(lower):
        yield BUILDS_FILE
    if ("<form" in lower or "<script" in lower) and any(map(_PASSWORD.search, (lower, *escaped_inputs(lower)))):
        yield CREDENTIAL_FORM
    if _TRANSFORM in lower and _builds_password(lower):
        yield CREDENTIAL_FORM
    if _STYLESHEET in lower:
        builds = _TRANSFORM in lower and _TRANSFORMS.search(lower)
        if builds or _DATA_STYLESHEET.search(lower):
            yield BUILDS_PAGE


def _builds_password(lower: str) -> bool:
    """Whether a stylesheet makes the type of a field from an element."""
    texts = islice(_TEXT_PASSWORD.finditer(lower), _MAX_FIELDS)
    places = (match.start() for match in texts)
    return any(_TYPE_ATTRIBUTE.search(lower, max(0, at - _FIELD_LENGTH), at) for at in places)


def _layers(
    literals: Iterable[tuple[bytes, bool]], is_reversed: bool, budget: Budget, layers: int = MAX_LAYERS
) -> Iterator[tuple[bytes, bool]]:
    """These; and if one is encoded again, as in `atob(atob("..."))` and `unescape(atob("..."))`, what it stands for."""
    for literal, is_hidden in literals:
        yield literal, is_hidden
        unpacked = inflated(literal, budget)
        if unpacked:
            budget.take_work(LITERAL_WORK)
            yield unpacked, True
        text = unpacked or literal
        if layers and _ENCODED.fullmatch(text) and file_types.is_text(text):
            budget.take_work(LITERAL_WORK + 20 * len(text))
            further = _literals(f'"{text.decode("latin-1")}"', is_reversed, budget)
            yield from _layers(further, is_reversed, budget, layers - 1)


def _literals(text: str, is_reversed: bool, budget: Budget) -> Iterator[tuple[bytes, bool]]:
    """The bytes that long literals stand for, in one way or another, and whether that hides words of a page."""
    quoted = _with_one(_OTHER_QUOTES, text)
    for literal in _encoded(text, quoted, is_reversed, budget):
        yield literal, True
    for match in _QUOTED.finditer(quoted) if text.count("\\") >= _MIN_ESCAPES else ():
        escapes = match[1].count("\\")
        if escapes >= _MIN_ESCAPES:  # what is between two quotes may also be code
            budget.take_work(ESCAPE_WORK * escapes)
            replaced = escapes_replaced(match[1])
            is_hidden = len(_PAGE_WORD.findall(replaced)) > len(_PAGE_WORD.findall(match[1]))
            yield replaced.encode("latin-1", "replace"), is_hidden


def _encoded(text: str, quoted: str, is_reversed: bool, budget: Budget) -> Iterator[bytes]:
    """`quoted` is the text with one kind of quotes."""
    begun = _AFTER_QUOTE.findall(_with_one(_BEFORE_DATA, quoted))
    for literal in begun + _IN_COMMENT.findall(text):
        yield _from_base64(literal)
        if literal.startswith("/"):  # perhaps of a regular expression
            yield _from_base64(literal[1:])
        if is_reversed:
            yield _from_base64(literal[::-1])
        if digits := _HEX.match(literal):  # which are letters of Base64 as well
            yield _from_hex(digits[0])
    pieces = _PIECE.findall(quoted)
    if len(pieces) > 1:  # in variables, which are joined in this order
        yield _from_base64("".join(pieces))
    for match in _NUMBERS.finditer(_with_one("[(", quoted)):
        yield from _from_numbers(match[1], budget)
    for match in _PERCENT.finditer(quoted) if _PERCENT_CODE.search(text) else ():
        yield _PERCENT_CODE.sub(lambda code: chr(int(code[1] or code[2], 16)), match[1]).encode("utf-8", "replace")


def _from_numbers(text: str, budget: Budget) -> Iterator[bytes]:
    """A list of them, signed or not; in a string also in hexadecimal without a prefix."""
    numbers = _BETWEEN_NUMBERS.split(text.strip(",;|- \t\r\n"))
    if len(numbers) < _MIN_NUMBERS:
        return
    budget.take_work(ESCAPE_WORK * len(numbers))
    if all(map(_HEX_NUMBER.fullmatch, numbers)):
        yield _from_hex("".join(numbers))
    yield bytes(int(digits or number, 16 if digits else 10) & 0xFF for digits, number in _NUMBER.findall(text))


def _from_base64(text: str) -> bytes:
    text = text.replace("-", "+").replace("_", "/").replace("=", "")
    text = text[:-1] if len(text) % 4 == 1 else text
    return binascii.a2b_base64(text + "=" * (-len(text) % 4))


def _from_hex(digits: str) -> bytes:
    return binascii.unhexlify(digits[: len(digits) // 2 * 2])


def _is_picture(page: bytes) -> bool:
    """A drawing without actions, as found in style sheets."""
    return _PICTURE.match(page) is not None and _ACTIVE.search(page) is None


def _ends_with(piece: bytes) -> Callable[[bytes], bool]:
    return lambda whole: whole.startswith(piece) or whole.endswith(piece)


def _is_file(content: bytes) -> bool:
    """A literal may be any data."""
    is_known = archives.kind_of(content) or file_types.family_of(content)
    return len(content) >= MIN_FILE and bool(is_known or file_types.is_text(content))
