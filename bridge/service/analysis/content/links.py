"""Links in the text of a mail: which hosts they point to, and which of them are deceptive.

All repetition in the patterns is bounded, so the time is linear in the length of any text. Linear is not
enough where a step is slow: a name that is not ASCII may take half a millisecond, so only a few such names
are converted in the event loop, and a limited number of them in a process.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import unquote

from bridge.mail.address import comparable_domain
from bridge.mime import references
from bridge.mime.structure import TooMuch
from bridge.runtime.ip import ip_in_link
from bridge.service.analysis.content import page_text

# The patterns expect lower-case text. Each starts with literal characters, which `re` searches for fast.
_LINK = re.compile(
    "//[\\t\\r\\n]*+([^\\s/\\\\<>\"'()?#\u2018-\u201f\u2039\u203a\u00ab\u00bb\u3001\u3008-\u3011\uff08\uff09\uff0c]+)"
    r"(?=([/\\?#]?))"  # what ends a host for browsers, or nothing
)
# As browsers read it: any number of slashes and backslashes, also none, with tabs and line ends between them.
_ODD_LINK = re.compile(r"(https?):(?!//[^/\\\s])[\\/\t\r\n]*(?=[^\s/\\<>\"'()?#])(?!%2f)")
# Slashes with a backslash among them. Two patterns, in this order: each begins with one literal character.
_BACKSLASHES = (re.compile(r"/(?<!//)/*+\\[/\\]*+"), re.compile(r"\\[/\\]++"))
_BACKSLASHED = ("\\\\", "\\/", "/\\")  # one of these is in each match; the pattern takes long, and most text has none
_WEB = ("https:", "http:")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,30}:\Z")  # of any program that opens links: file, webcal, smb
_BEFORE = ("=", "='", '="', "url(", "url('", 'url("')  # `//host` is a link after a scheme or one of these. In a page,
_WITHIN = frozenset("/._-~%?&#+@!$*")  # it may be one unless it follows a letter, a digit or one of these
_BARE = re.compile(r"www\.([\w.-]+)")
_ANCHOR = re.compile(r"<a\s")
_HREF = re.compile(r"href\s*=\s*[\"']?https?://([^\s/\"'>?#]+)")
_SHOWN = re.compile(r"\s*(?:https?://)?([a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})+)[\s/<]")
_AUTHORITY_END = re.compile(r"[/\\?#]")
_HOST = re.compile(r"[^\s/\\?#@:<>\[\]^|%\x00-\x20\x7f-\U0010ffff]{1,253}")  # what browsers do not refuse, in ASCII
_PUNCTUATION = ".,;!*'\"`)}]&"  # after a link in a text

_BREAK = re.compile(  # a tab or line end
    r"&(?:#0*(?:9|10|13)(?![0-9])|#[xX]0*[9aAdD](?![0-9a-fA-F])|Tab;|NewLine;);?"
)
_BREAKS = frozenset("\t\r\n")
_QUOTES = frozenset("'\"`")
_VALUE = ("=", "='", '="')
_BROKEN = (  # browsers remove tabs and line ends from links; possessive (`*+`), because white space can be long
    ("h", re.compile(r"h(?=[t\t\r\n])(?!ttps?:)[\t\r\n]*+t[\t\r\n]*+t[\t\r\n]*+p[\t\r\n]*+s?[\t\r\n]*+:")),
    ("/", re.compile(r"/[\t\r\n]++[/\\]")),
    ("\\", re.compile(r"\\[\t\r\n]++\S")),  # most pages have none: to look for one character takes no time
)
_ESCAPING = ("style", "script", "\\rtf", "location", "href", "import")  # without these, a backslash means itself
_DOWNLOAD = re.compile(r"(?<![\w?&.-])download[\s>/]")  # an attribute without a value; then the type says the name
_DOWNLOAD_NAME = re.compile(r"download(?:\s*=|[\"'`])")  # `<a download=`, `a.download =`, `"download", "x.js"`
_TAG = 2000  # characters in which a tag begins before an attribute
_USER = re.compile(r"\s{0,20}([a-z][a-z0-9+.-]{1,30}:)[/\\\t\r\n]{0,99}[^/\\?#]*@", re.IGNORECASE)
_ODD_HOST = re.compile(r"[,;&=|{}!$*`~+^]")

MAX_HOSTS = 5000  # newsletters and lists of links have more than a thousand; with more, `scan` raises TooMuch
MAX_CONVERTED = 1000  # names that are not ASCII: half a second
INLINE_CHARACTERS = 200  # of names that are not ASCII: a few milliseconds
INLINE_LENGTH = 10_000  # characters of text: a few milliseconds, whatever it consists of
INLINE_MARKS = 2000  # places in a longer text where a link, an anchor or a character reference may begin
_MARKS = ("//", "www.", "<a", "\\")
# Nanoseconds of work in a process, each time a text is searched: for each character, and for each of these.
_CHARACTER_WORK = 10
_MARK_WORK = (("//", 3000), ("\\\\", 3000), ("\\", 250), ("<a", 4000))
_REFERENCE_WORK = 800


def without_user(link: str) -> str:
    """The link without what precedes the host, which may contain characters that end a link in a text; or ""."""
    match = _USER.match(link) if "@" in link else None
    return f"{match[1]}//{link[match.end() :]}" if match else ""


class NeedsProcess(Exception):
    """The rest must be inspected in a separate process: it would block the event loop."""


class Links:
    """Collects hosts and tags from any number of texts.

    `scan` raises TooMuch beyond `max_hosts`, and NeedsProcess where `is_inline` and the names take too long.
    Otherwise it calls `charge` with the work that it is going to do.
    """

    def __init__(
        self, max_hosts: int = MAX_HOSTS, *, is_inline: bool = False, charge: Callable[[int], object] = int
    ) -> None:
        self.hosts: set[str] = set()
        self.tags: set[str] = set()
        self._seen: set[str] = set()
        self._max_hosts = max_hosts
        self._converted = 0  # names that are not ASCII
        self._characters_left = INLINE_CHARACTERS if is_inline else None
        self.has_files = False  # perhaps: `page_files` finds them
        self.is_unread = False  # a host that cannot be decoded: the text is in another charset than it seems
        self._length = self._marks = 0
        self._charge = charge

    def scan(self, text: str, *, is_html: bool, is_certain: bool = True) -> None:
        """Escapes of styles and scripts are read only if the text is certainly one that is shown: it takes long."""
        if not is_html:
            self._scan(ascii_lower(text), is_html=False)
            return
        self._check_references(text)
        if "&" in text and _BREAK.search(text):
            self._scan(ascii_lower(references.unescaped(_BREAK.sub("", text))), is_html=True)
        for reading in page_text.link_readings(text) if "&" in text else [text]:
            self._scan_page(reading, is_certain)

    def _scan_page(self, page: str, is_certain: bool) -> None:
        text = ascii_lower(page)
        is_broken = self._scan(text, is_html=True)
        if is_broken or any(pattern.search(text) for first, pattern in _BROKEN if first in text):
            self._scan(without_breaks(text), is_html=True)
        has_escapes = is_certain and "\\" in text and any(mark in text for mark in _ESCAPING)
        for other in page_text.without_escapes(text) if has_escapes else ():
            self._scan(other, is_html=True)
        for inner in page_text.inner_pages(page) if "&" in text and "srcdoc" in text else ():
            self._check_references(inner)
            self._scan(ascii_lower(inner), is_html=True)

    def _scan(self, text: str, *, is_html: bool) -> bool:
        """Whether a link ends at a tab or line end, so that it may not end there."""
        is_broken = False
        self._check_length(text)
        if "\\" in text and any(map(text.__contains__, _BACKSLASHED)):
            for pattern in _BACKSLASHES:
                text = pattern.sub("//", text)  # browsers treat backslashes the same way
        if _ODD_LINK.search(text):
            text = _ODD_LINK.sub(r"\1://", text)
        for match in _LINK.finditer(text):
            raw, end_of_host = match.groups()
            if end_of_host and raw in self._seen:  # nearly all links of a page
                continue
            start, end = match.span()
            if text[end : end + 1] in _BREAKS:
                is_broken = True
            if is_html and not end_of_host:
                self._add_rest(text, match)
            if raw not in self._seen:
                if _is_link(text, start):
                    self._add(raw)
                elif is_html and _may_be_link(text, start):
                    self._add_guess(raw)
        for name in set(_BARE.findall(text)):
            self._add("www." + name)
        if is_html:
            self._check_anchors(text)
            self.has_files = self.has_files or _DATA.search(text) is not None or has_download(text)
        return is_broken

    def _add_rest(self, text: str, match: re.Match[str]) -> None:
        """In an attribute, what precedes the host may contain spaces, brackets and quotes."""
        start = match.start()
        scheme = _SCHEME.search(text, max(0, start - 32), start) if text[start - 1 : start] == ":" else None
        opening = _skip_back(text, scheme.start() if scheme else start)
        before = text[opening - 1 : opening]
        if before not in _QUOTES and before != "=":
            return
        ends = ">\t\r\n\f " if before == "=" else before
        found = _AUTHORITY_END.search(text, match.end())
        stop = found.start() if found is not None else len(text)
        for end in ends:
            close = text.find(end, match.end(), stop)
            stop = close if close >= 0 else stop
        if stop > match.end():
            self._add(text[match.start(1) : stop])

    def _check_length(self, text: str) -> None:
        """In the event loop: only a short text may have any number of places where a link may begin."""
        if self._characters_left is None:
            marks = sum(work * text.count(mark) for mark, work in _MARK_WORK if mark[0] in text)
            self._charge(_CHARACTER_WORK * len(text) + marks)
            return
        self._length += len(text)
        if self._length > INLINE_LENGTH:
            self._add_marks(sum(map(text.count, _MARKS)))

    def _check_references(self, text: str) -> None:
        if self._characters_left is None:
            self._charge(_REFERENCE_WORK * text.count("&"))
        elif self._length + len(text) > INLINE_LENGTH:
            self._add_marks(text.count("&"))

    def _add_marks(self, count: int) -> None:
        self._marks += count
        if self._marks > INLINE_MARKS:
            raise NeedsProcess

    def _check_anchors(self, text: str) -> None:
        """`<a href="http://evil.example">bank.example</a>`"""
        match = _ANCHOR.search(text)
        while match is not None:
            end = text.find(">", match.end())
            if end < 0:
                return
            shown = _SHOWN.match(text, end + 1)  # most often a word, not a host
            target = _HREF.search(text, match.end(), end) if shown else None
            if shown and target:
                self._compare(target.group(1), shown.group(1))
            match = _ANCHOR.search(text, end)

    def _add(self, raw: str) -> None:
        if raw in self._seen:
            return
        self._seen.add(raw)
        userinfo, at, rest = raw.rpartition("@")
        if at and userinfo:
            self.tags.add("url:userinfo")
        for name in dict.fromkeys((rest, _ODD_HOST.split(rest, maxsplit=1)[0])):  # a link in a text may end there
            self._add_host(self._host(name))

    def _add_guess(self, raw: str) -> None:
        """It may be a comment of a script. Only its host counts, if it has the form of one."""
        for name in dict.fromkeys((raw, _ODD_HOST.split(raw.rpartition("@")[2], maxsplit=1)[0])):
            host = self._host(name.rpartition("@")[2])
            if "." in host or ":" in host:
                self.hosts.add(host)
        if len(self.hosts) > self._max_hosts:
            raise TooMuch("urls")

    def guess(self, authority: str) -> None:
        """What may be a host. It counts for lists, and gives no tags."""
        self._add_guess(ascii_lower(authority))

    def _add_host(self, host: str) -> None:
        if not host:
            return
        if _is_address(host):
            self.tags.add("url:ip-host")
        elif "xn--" in host:
            self.tags.add("url:punycode")
        self.hosts.add(host)
        if len(self.hosts) > self._max_hosts:
            raise TooMuch("urls")

    def _host(self, raw: str) -> str:
        """`host_of`, within the bounds of this mail."""
        if not raw.isascii() or "%" in raw:
            self.is_unread |= "\ufffd" in raw
            self._converted += 1
            if self._converted > min(self._max_hosts, MAX_CONVERTED):
                raise TooMuch("urls")
            self._spend(len(raw))
        return host_of(raw)

    def spend(self, names: str) -> None:
        """Names of hosts that others convert. Raises NeedsProcess like `scan`."""
        if not names.isascii():
            self._spend(len(names))

    def _spend(self, characters: int) -> None:
        if self._characters_left is not None:
            self._characters_left -= characters
            if self._characters_left < 0:
                raise NeedsProcess

    def _compare(self, target: str, shown: str) -> None:
        real, displayed = self._host(target.rpartition("@")[2]), host_of(shown)
        if "." in displayed and real and not _related(real, displayed):
            self.tags.add("url:mismatch")


_DATA = re.compile(r"d[\t\r\n]*+a[\t\r\n]*+t[\t\r\n]*+a[\t\r\n]*+:")  # in lower case


def without_breaks(text: str) -> str:
    """Browsers remove tabs and line ends from links."""
    return text.replace("\n", "").replace("\r", "").replace("\t", "")


def _is_link(text: str, start: int) -> bool:
    """Whether the two slashes at `start` begin a link; white space may follow an opening quote, and precede it."""
    if text.endswith(_WEB, max(0, start - 6), start):
        return True
    before = text[start - 1 : start]
    if before == ":":
        return _SCHEME.search(text, max(0, start - 32), start) is not None
    if text[max(0, start - 5) : start].endswith(_BEFORE):
        return True
    if before in _QUOTES:
        return text.endswith("=", 0, _skip_back(text, start - 1))
    return before.isspace() and text.endswith(_VALUE, 0, _skip_back(text, start))


def _may_be_link(text: str, start: int) -> bool:
    """In a page: in a list of addresses, in a style or in a script."""
    before = text[start - 1 : start]
    return not before.isalnum() and before not in _WITHIN


def _skip_back(text: str, position: int) -> int:
    while position > 0 and text[position - 1].isspace():
        position -= 1
    return position


def ascii_lower(text: str) -> str:
    """The letters of ASCII only: `str.lower` takes five times as long if there are others (Python 3.11).

    Names with other letters are converted by `host_of`.
    """
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def has_download(text: str) -> bool:
    """Whether a page gives a name to a file. Without that, browsers do not save what is in a `data:` link."""
    at = text.find("download")
    while at >= 0:
        if _DOWNLOAD_NAME.match(text, at):
            return True
        if _DOWNLOAD.match(text, at) and text.rfind("<", max(0, at - _TAG), at) > text.rfind(
            ">", max(0, at - _TAG), at
        ):
            return True
        at = text.find("download", at + 8)
    return False


def host_of(raw: str) -> str:
    """The host in the spelling that lists use; empty if there is none."""
    host = unquote(raw) if "%" in raw else raw
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    host = comparable_domain(host.lstrip(".").rstrip(_PUNCTUATION))
    ip = ip_in_link(host)
    if ip is not None:
        return ip
    return host if _HOST.fullmatch(host) else ""


def _is_address(host: str) -> bool:
    if ":" not in host and not host[-1:].isdigit():
        return False  # nearly all hosts end here, without the cost of an exception
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _related(first: str, second: str) -> bool:
    """Whether the last two labels agree: links through www, mail or the sender's own tracker are common."""
    return first.split(".")[-2:] == second.split(".")[-2:]
