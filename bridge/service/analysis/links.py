"""Links in the text of a mail: which hosts they point to, and which of them are deceptive.

All repetition in the patterns is bounded, so the time is linear in the length of any text. Linear is not
enough where a step is slow: a name that is not ASCII may take half a millisecond, so only a few such names
are converted in the event loop, and a limited number of them in a process.
"""

from __future__ import annotations

import html
import ipaddress
import re
from urllib.parse import unquote

from bridge.mail.address import comparable_domain
from bridge.mime.structure import TooMuch

# The patterns expect lower-case text. Each starts with literal characters, which `re` searches for fast.
_LINK = re.compile(r"//([^\s/\\<>\"'()?#]{1,400})")
# As browsers read it: any number of slashes and backslashes, also none, with tabs and line ends between them.
_ODD_LINK = re.compile(r"(https?):(?!//[^/\\\s])[\\/\t\r\n]{0,20}(?=[a-z0-9\[])")
_BEFORE = ("http:", "https:", "ftp:", "=", "='", '="')  # `//host` is a link only after one of these
_BARE = re.compile(r"www\.([a-z0-9.-]{1,250})")
_ANCHOR = re.compile(r"<a\s")
_HREF = re.compile(r"href\s{0,9}=\s{0,9}[\"']?https?://([^\s/\"'>?#]{1,400})")
_SHOWN = re.compile(r"\s{0,99}(?:https?://)?([a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,8})[\s/<]")
_MAX_TAG = 2000
_NUMBER = r"(?:0x[0-9a-f]{1,8}|[0-9]{1,12})"
_NUMBERS = re.compile(rf"0x[0-9a-f]{{1,8}}|[0-9]{{8,12}}|{_NUMBER}(?:\.{_NUMBER}){{1,3}}")

_LEADING_ZEROS = re.compile(r"&#(x?)0+(?=[0-9a-f])", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{8}[0-9]*|x[0-9a-f]{8}[0-9a-f]*);?", re.IGNORECASE)

MAX_HOSTS = 5000  # newsletters and lists of links have more than a thousand
MAX_CONVERTED = 1000  # names that are not ASCII: half a second
INLINE_CHARACTERS = 200  # of names that are not ASCII: a few milliseconds
INLINE_LENGTH = 10_000  # characters of text: a few milliseconds, whatever it consists of
INLINE_MARKS = 2000  # places in a longer text where a link, an anchor or a character reference may begin
_MARKS = ("&", "//", "www.", "<a")


class NeedsProcess(Exception):
    """The rest must be inspected in a separate process: it would block the event loop."""


class Links:
    """Collects hosts and tags from any number of texts.

    `scan` raises TooMuch beyond `max_hosts`, and NeedsProcess where `is_inline` and the names take too long.
    """

    def __init__(self, max_hosts: int = MAX_HOSTS, *, is_inline: bool = False) -> None:
        self.hosts: set[str] = set()
        self.tags: set[str] = set()
        self._seen: set[str] = set()
        self._max_hosts = max_hosts
        self._converted = 0  # names that are not ASCII
        self._characters_left = INLINE_CHARACTERS if is_inline else None
        self._length = self._marks = 0

    def scan(self, text: str, *, is_html: bool) -> None:
        if self._characters_left is not None:
            self._check_length(text)
        if is_html and "&" in text:
            text = _unescaped(text)
        text = _lower(text)
        if "\\\\" in text:
            text = text.replace("\\\\", "//")  # browsers treat backslashes the same way
        if _ODD_LINK.search(text):
            text = _ODD_LINK.sub(r"\1://", text)
        for match in _LINK.finditer(text):
            raw = match.group(1)
            if raw not in self._seen and text[max(0, match.start() - 6) : match.start()].endswith(_BEFORE):
                self._add(raw)
        for name in set(_BARE.findall(text)):
            self._add("www." + name)
        if is_html:
            self._check_anchors(text)

    def _check_length(self, text: str) -> None:
        """In the event loop: only a short text may have any number of places where a link may begin."""
        self._length += len(text)
        if self._length > INLINE_LENGTH:
            self._marks += sum(map(text.count, _MARKS))
            if self._marks > INLINE_MARKS:
                raise NeedsProcess

    def _check_anchors(self, text: str) -> None:
        """`<a href="http://evil.example">bank.example</a>`"""
        match = _ANCHOR.search(text)
        while match is not None:
            end = text.find(">", match.end(), match.end() + _MAX_TAG)
            if end >= 0:
                shown = _SHOWN.match(text, end + 1)  # most often a word, not a host
                target = _HREF.search(text, match.end(), end) if shown else None
                if shown and target:
                    self._compare(target.group(1), shown.group(1))
            match = _ANCHOR.search(text, max(end, match.end()))

    def _add(self, raw: str) -> None:
        if raw in self._seen:
            return
        self._seen.add(raw)
        userinfo, at, rest = raw.rpartition("@")
        if at and userinfo:
            self.tags.add("url:userinfo")
        host = self._host(rest)
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
            self._converted += 1
            if self._converted > min(self._max_hosts, MAX_CONVERTED):
                raise TooMuch("urls")
            if self._characters_left is not None:
                self._characters_left -= len(raw)
                if self._characters_left < 0:
                    raise NeedsProcess
        return host_of(raw)

    def _compare(self, target: str, shown: str) -> None:
        real, displayed = self._host(target.rpartition("@")[2]), host_of(shown)
        if "." in displayed and real and not _related(real, displayed):
            self.tags.add("url:mismatch")


def _lower(text: str) -> str:
    """The letters of ASCII only: `str.lower` takes five times as long if there are others (Python 3.11).

    Names with other letters are converted by `host_of`.
    """
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def _unescaped(text: str) -> str:
    """HTML's character references replaced. Numbers may have any length: browsers ignore leading zeros."""
    if "&#" in text:  # Python refuses to read a number of more than 4300 digits
        text = _LONG_NUMBER.sub("\ufffd", _LEADING_ZEROS.sub(r"&#\1", text))
    return html.unescape(text)


def host_of(raw: str) -> str:
    """The host in the spelling that lists use; empty if there is none."""
    host = unquote(raw) if "%" in raw else raw
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    host = comparable_domain(host.strip("."))
    if ":" in host or _NUMBERS.fullmatch(host):
        return _ip_host(host)
    return host if re.fullmatch(r"[a-z0-9._-]{1,253}", host) else ""


def _ip_host(host: str) -> str:
    """An address as browsers read it: http://3221226219/, http://0xc0.0.0x2eb/ and http://0300.0.2.0353/ are one."""
    try:
        if ":" in host:
            ip = ipaddress.IPv6Address(host)
            return "" if ip.scope_id else str(ip.ipv4_mapped or ip)
        *first, last = [_number(part) for part in host.split(".")]
        number = last + sum(byte << (24 - 8 * place) for place, byte in enumerate(first))
        fits = len(first) < 4 and all(byte < 256 for byte in first) and last < 256 ** (4 - len(first))
        return str(ipaddress.IPv4Address(number)) if fits else ""
    except ValueError:
        return ""


def _number(part: str) -> int:
    return int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10)


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
