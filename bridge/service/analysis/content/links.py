"""Links in the text of a mail: which hosts they point to, and which of them are deceptive.

All repetition in the patterns is bounded, so the time is linear in the length of any text. Linear is not
enough where a step is slow: a name that is not ASCII may take half a millisecond, so only a few such names
are converted in the event loop, and a limited number of them in a process.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from bridge.mime import references
from bridge.mime.structure import TooMuch
from bridge.service.analysis.content import link_address, page_text
from bridge.service.analysis.content.link_address import host_of, webdav_server, without_breaks
from bridge.service.analysis.content.office_attacks import PROGRAM_LINK, STARTING, in_folder, is_remote, starts_program
from bridge.service.analysis.content.page_text import ascii_lower

# The patterns expect lower-case text. Each starts with literal characters, which `re` searches for fast.
_TEXT_END = rf"\s<>\"'(){link_address.TYPOGRAPHIC}"
_END = re.compile(f"[{_TEXT_END}]")
_LINK = re.compile(  # a host, or the beginning of a user that no host can begin with
    rf"//[\t\r\n]*+([^/\\?#{_TEXT_END}]+|(?=[{_TEXT_END}][^/\\?#@]*+@))"
    r"(?=([/\\?#]?))"  # what ends a host for browsers, or nothing
)
# As browsers read it: any number of slashes and backslashes, or none, with tabs and line ends between them. The last
# one: a path on this machine that Windows takes for a server.
_ODD_LINKS = (
    ("http", re.compile(r"(https?):(?!//[^/\\\s])[\\/\t\r\n]*+(?=[^?#])(?!%2f)")),
    ("ftp:", re.compile(r"(ftp):(?<![a-z0-9+.-]ftp:)(?!//[^/\\\s])[\\/\t\r\n]*+(?=[^?#\s])(?!%2f)")),
    ("file:////", re.compile(r"(file):/{4,}+")),
)
# Slashes with a backslash among them. Two patterns, in this order: each begins with one literal character.
_BACKSLASHES = (re.compile(r"/(?<!//)/*+\\[/\\]*+"), re.compile(r"\\[/\\]++"))
_BACKSLASHED = ("\\\\", "\\/", "/\\")  # one of these is in each match; the pattern takes long, and most text has none
_MANY_SLASHES = re.compile(r"/(?<![\w:/.~%?&#+@!$*-]/)/{2,}+")  # in a page on the web, or with the address of one
_WEB = ("https:", "http:")
_COMPARED = link_address.WEB | {""}  # in others, what looks like a host may be a word: `x-apple-data-detectors://0`
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,30}:\Z")  # of any program that opens links: file, webcal, smb
_BEFORE = ("=", "='", '="', "url(", "url('", 'url("')  # `//host` is a link after a scheme or one of these. In a page,
_WITHIN = frozenset("/._-~%?&#+@!$*")  # it may be one unless it follows a letter, a digit or one of these
# In plain text: Thunderbird removes white space from a link in brackets or quotes (RFC 3986, appendix C).
_GAP = r"[ \t]{0,9}+"
_ENCLOSED = tuple(
    re.compile(
        f'{start}{_GAP}(?:url:)?((?:{_GAP.join("http")}{_GAP}s?|{_GAP.join("ftp")}){_GAP}:[^<>"\r\n]{{1,2000}}+)[>"]'
    )
    for start in '<"'
)
_BARE = re.compile(r"www\.([\w.-]+)")
_ANCHOR = re.compile(r"<a\s")
_HREF = re.compile(r"href(?<![\w-]href)\s*+=\s*+(?:\"([^\"]*+)|'([^']*+)|([^\s>]++))")
_SHOWN = re.compile(r"\s*(?:https?://)?([a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63})+)[\s/<]")
_AUTHORITY_END = re.compile(r"[/\\?#]")

_BREAK = re.compile(  # a tab or line end
    r"&(?:#0*(?:9|10|13)(?![0-9])|#[xX]0*[9aAdD](?![0-9a-fA-F])|Tab;|NewLine;);?"
)
_BREAKS = frozenset("\t\r\n")
_QUOTES = frozenset("'\"`")
_WORD_END = re.compile(rf"[\s\"<>{link_address.TYPOGRAPHIC}]")  # of a user that is not in an attribute
_VALUE_ENDS = {"=": ">\t\r\n\f ", **{quote: quote for quote in _QUOTES}}
_REFRESH = re.compile(  # `<meta http-equiv=refresh content="0; url=https://...">`: all of the value follows
    r"content\s{0,3}=\s{0,3}([\"'])\s{0,3}[\d.]{0,9}\s{0,3}[;,]\s{0,3}(?:url\s{0,3}=)?\Z"
)
_INNER = ("=", ";", ",")
_VALUE = ("=", "='", '="')
_BROKEN = (  # browsers remove tabs and line ends from links; possessive (`*+`), because white space can be long
    ("h", re.compile(r"h(?=[t\t\r\n])(?!ttps?:)[\t\r\n]*+t[\t\r\n]*+t[\t\r\n]*+p[\t\r\n]*+s?[\t\r\n]*+:")),
    ("/", re.compile(r"/[\t\r\n]++[/\\]")),
    ("\\", re.compile(r"\\[\t\r\n]++\S")),  # most pages have none: looking for one character takes no time
)
_ESCAPING = ("style", "script", "\\rtf", "location", "href", "import")  # without these, a backslash means itself
_DOWNLOAD = re.compile(r"(?<![\w?&.-])download[\s>/]")  # an attribute without a value: then the type gives the name
_DOWNLOAD_NAME = re.compile(r"download(?:\s*=|[\"'`])")  # `<a download=`, `a.download =`, `"download", "x.js"`
_TAG = 2000  # characters in which a tag begins before an attribute
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


class NeedsProcess(Exception):
    """The rest must be inspected in a separate process: it would block the event loop."""


class Links:
    """Collects hosts and tags from any number of texts.

    `scan` raises TooMuch beyond `max_hosts`, and NeedsProcess if `is_inline` is set and the names take too long.
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
        """Escapes of styles and scripts are read only if the text is certainly one that is shown: this takes long."""
        if not is_html:
            self.check_paths(text)
            self.collect(text)
            self._add_enclosed(ascii_lower(text))
            return
        self._check_references(text)
        if "&" in text and _BREAK.search(text):
            self._scan(ascii_lower(references.unescaped(_BREAK.sub("", text))), is_html=True)
        for reading in page_text.link_readings(text) if "&" in text else [text]:
            self._scan_page(reading, is_certain)

    def collect(self, text: str) -> None:
        """A link, or a text of a document, which gives other tags to what it starts."""
        self._scan(ascii_lower(text), is_html=False)

    def check_paths(self, text: str) -> None:
        """Paths that Outlook shows as links in a text: `<file://host/x.exe>`, `\\\\host\\folder\\x.exe`."""
        lower = ascii_lower(text)
        for match in _TEXT_PATH.finditer(lower) if any(mark in lower for mark in _PATHS) else ():
            self._charge_path()
            path = without_breaks(match[1] or match[2]).rstrip(_AFTER_PATH)
            if is_remote(path) and self._is_program(path):
                self.add(path)
                self.tags.add(PROGRAM_LINK)

    def _scan_page(self, page: str, is_certain: bool) -> None:
        text = ascii_lower(page)
        self._check_programs(text)
        is_broken = self._scan(text, is_html=True)
        if is_broken or any(pattern.search(text) for first, pattern in _BROKEN if first in text):
            self._scan(without_breaks(text), is_html=True)
        has_escapes = is_certain and "\\" in text and any(mark in text for mark in _ESCAPING)
        for other in page_text.without_escapes(text) if has_escapes else ():
            self._check_programs(other)
            self._scan(other, is_html=True)
        for inner in page_text.inner_pages(page) if "&" in text and "srcdoc" in text else ():
            self._check_references(inner)
            self._check_programs(ascii_lower(inner))
            self._scan(ascii_lower(inner), is_html=True)

    def _scan(self, text: str, *, is_html: bool) -> bool:
        """Whether a link seems to end at a tab or line end: it may go on after that."""
        is_broken = False
        self._check_length(text)
        if "\\" in text and any(map(text.__contains__, _BACKSLASHED)):
            for pattern in _BACKSLASHES:
                text = pattern.sub("//", text)  # browsers treat backslashes the same way
        self._add_searched(text)
        if is_html and "///" in text:
            text = _MANY_SLASHES.sub("//", text)
        for mark, pattern in _ODD_LINKS:
            if mark in text and pattern.search(text):
                text = pattern.sub(r"\1://", text)
        has_users = is_html or "@" in text
        for match in _LINK.finditer(text):
            raw, end_of_host = match.groups()
            if end_of_host and raw in self._seen:  # nearly all links of a page
                continue
            start, end = match.span()
            if text[end : end + 1] in _BREAKS:
                is_broken = True
            if has_users and not end_of_host:
                self._add_rest(text, match, is_html)
            if raw and raw not in self._seen:
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

    def _add_searched(self, text: str) -> None:
        """Hosts whose folders Windows searches, or just shows."""
        if "location" in text and "%" in text:
            for match in _SEARCHED.finditer(text):
                self._add(match[1])

    def _add_enclosed(self, text: str) -> None:
        """Links with white space in them: `<https://evil. example>`. They are guesses: most programs end them there."""
        for pattern in _ENCLOSED if ":" in text else ():
            for link in pattern.findall(text):
                if " " in link or "\t" in link:
                    self._charge_path()
                    address = link_address.read("".join(link.split()))
                    self._add_guess(address.host if address else "")

    def _add_rest(self, text: str, match: re.Match[str], is_html: bool) -> None:
        """In an attribute, what precedes the host may contain spaces, brackets and quotes.

        In a text, it may begin with them, but after a host they end the link: an address may follow without a space.
        """
        start = match.start()
        scheme = _SCHEME.search(text, max(0, start - 32), start) if text[start - 1 : start] == ":" else None
        opening = _skip_back(text, scheme.start() if scheme else start) if is_html else 0
        ends = _ends_of(text, opening) if opening else ""
        if not ends and (match[1] or not scheme):
            return
        found = _AUTHORITY_END.search(text, match.end())
        stop = found.start() if found is not None else len(text)
        for end in ends:
            close = text.find(end, match.end(), stop)
            stop = close if close >= 0 else stop
        if not ends and (word := _WORD_END.search(text, match.end(), stop)) is not None:
            stop = word.start()
        if stop > match.end() and (ends or text.find("@", match.end(), stop) >= 0):
            self._add(without_breaks(text[match.start(1) : stop].rstrip(link_address.AROUND)))

    def add(self, link: str) -> None:
        """A link outside of any text, which is read as a whole; but something may follow it."""
        address = link_address.read(link)
        host, user = (address.host, address.user) if address else (link_address.mailbox_host(link), "")
        for name in dict.fromkeys((host, _END.split(host, maxsplit=1)[0])):
            self._add(ascii_lower(f"{user}@{name}"))

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
            address = link_address.read(target[target.lastindex or 1]) if target else None
            if shown and address and address.scheme in _COMPARED:
                self._compare(address.host, shown.group(1))
            match = _ANCHOR.search(text, end)

    def _check_programs(self, text: str) -> None:
        text = without_breaks(text)
        starts = any(scheme in text for scheme in _STARTING) and _STARTS.search(text) is not None
        if not starts and any(path in text for path in _PATHS):
            has_base = "<base" in text or ":base" in text
            paths = (self._completed(text, path) if has_base else path[1] for path in _PATH.finditer(text))
            starts = any(map(self._is_program, dict.fromkeys(paths)))
        if starts:
            self.tags.add(PROGRAM_LINK)

    def _completed(self, text: str, path: re.Match[str]) -> str:
        """A path in a page; that of a base with a program in its folder."""
        self._charge_path()
        start, end = max(0, path.start() - _TAG), path.start()
        begin = max(text.rfind("<base", start, end), text.rfind(":base", start, end))
        is_base = begin >= 0 and _BASE.fullmatch(text, begin, end) is not None
        return in_folder(path[1]) if is_base else path[1]

    def _charge_path(self) -> None:
        if self._characters_left is None:
            self._charge(_PATH_WORK)
        else:
            self._add_marks(1)

    def _is_program(self, path: str) -> bool:
        self._charge_path()
        return starts_program(path) or (is_remote(path) and _MONIKER.search(path) is not None)

    def _add(self, raw: str) -> None:
        if raw in self._seen:
            return
        self._seen.add(raw)
        userinfo, at, rest = raw.rpartition("@")
        if at and userinfo:
            self.tags.add("url:userinfo")
        # A link in a text may end at any unusual character.
        names = (rest, _ODD_HOST.split(rest, maxsplit=1)[0], webdav_server(raw) if at else "")
        for name in dict.fromkeys(names):
            self._add_host(self._host(name))

    def _add_guess(self, raw: str) -> None:
        """It may be a comment of a script. Only its host counts, if it has the form of one."""
        rest = raw.rpartition("@")[2]
        for name in dict.fromkeys((rest, _ODD_HOST.split(rest, maxsplit=1)[0], webdav_server(raw))):
            host = self._host(name)
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
        """Charge for names of hosts that other code converts. Raises NeedsProcess like `scan`."""
        if not names.isascii():
            self._spend(len(names))

    def _spend(self, characters: int) -> None:
        if self._characters_left is not None:
            self._characters_left -= characters
            if self._characters_left < 0:
                raise NeedsProcess

    def _compare(self, target: str, shown: str) -> None:
        real, displayed = self._host(target), host_of(shown)
        if "." in displayed and real and not _related(real, displayed):
            self.tags.add("url:mismatch")


# `search-ms:query=a&crumb=location:%5C%5Chost%5Cfolder`: Windows opens a folder of that host.
_SEARCHED = re.compile(r"location(?::|%3a)(?:file(?::|%3a))?(?:%5c|%2f|[\\/]){2,9}+([^\s\\/%\"'<>&?#]{1,300}+)")
# Links that start a program of Windows, in an attribute or a script; a text that only mentions them is none. Browsers
# ignore spaces and control characters before them. `search:` is also a word of ordinary pages.
_OPENING = (
    r"(?:=[\s\x00-\x1f]{0,99}+[\"'`]?|\([\s\x00-\x1f]{0,99}+[\"'`]{1,2}+|[\"'][\s\d.]{0,99}+[;,]|[\"']\s{0,99}+[\d.]{1,99}+\s)"
    r"[\s\x00-\x1f]{0,99}+"
)
_STARTS = re.compile(
    rf"{_OPENING}(?:(?:{'|'.join(sorted(STARTING - {'search'}))}):|search:(?=(?:query|crumb|displayname|subquery)=))"
)
# A quick test: `search:` is also found in `ms-search:`.
_STARTING = tuple(f"{scheme}:" for scheme in sorted(STARTING - {"ms-search"}))
_PATHS = ("file:", "\\\\")
_PATH = re.compile(rf"{_OPENING}((?:file:|\\\\)[^\"'`<>]{{1,400}}+)")
_TEXT_PATH = re.compile(  # in a text: in brackets, or with a host that may be on the internet
    r"<\s{0,9}((?:file:|\\\\)[^<>\"]{1,400}+)>"
    r"|(?<![\w/\\])((?:file:[/\\]++|\\\\)(?=[^\s/\\<>\"']{0,255}[.@\d])[^\s<>\"']{1,400}+)"
)
_AFTER_PATH = ".,;:!?)]}*_"
_BASE = re.compile(r"[<:]base(?:[\s/](?:[^>\"']++|\"[^\"]*+\"|'[^']*+')*+)?")  # up to the "=" of an attribute
_PATH_WORK = 30_000  # for each
_MONIKER = re.compile(r"\.[a-z]{1,5}!\w")  # `file:///\\host\a.rtf!x`: Outlook did not ask (CVE-2024-21413)
_DATA = re.compile(r"d[\t\r\n]*+a[\t\r\n]*+t[\t\r\n]*+a[\t\r\n]*+:")  # in lower case


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


def _ends_of(text: str, start: int) -> str:
    """The characters that end the value of an attribute, or the string, that begins at `start`; "" if neither does."""
    before = text[start - 1]
    refresh = _REFRESH.search(text, max(0, start - 60), start) if before in _INNER else None
    return refresh[1] if refresh else _VALUE_ENDS.get(before, "")


def _skip_back(text: str, position: int) -> int:
    """Browsers ignore white space and control characters before a link."""
    while position > 0 and (text[position - 1] <= " " or text[position - 1].isspace()):
        position -= 1
    return position


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
