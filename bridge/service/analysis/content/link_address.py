"""One link, read as browsers read it: what it is called when it is opened, and where it leads.

The rules are those of the URL standard (https://url.spec.whatwg.org/#concept-basic-url-parser). White space and control
characters around a link, and tabs and line ends in it, are removed. A backslash is a slash, and before a host there may
be any number of them, or none. All that precedes the last "@" before the path is a user, whatever characters it
consists of. If this file reads a link differently from the browser, a mail leads where nobody has looked.

This is about a link that has already been found, in an attribute or a code: `links` and `detection.page` find them.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from bridge.mail.address import comparable_domain
from bridge.runtime.ip import ip_in_link

# What ends a link in a text, besides white space: no mail program takes these for a part of one.
TYPOGRAPHIC = "\u2018-\u201f\u2039\u203a\u00ab\u00bb\u3001\u3008-\u3011\uff08\uff09\uff0c"  # in a pattern, in brackets
WEB = frozenset({"http", "https"})
_SPECIAL = WEB | {"ftp", "ws", "wss"}  # a host always follows these
AROUND = "".join(map(chr, range(0x21)))  # control characters and the space
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]++):", re.IGNORECASE)  # more than a single letter, which would be a drive
_SLASHES = re.compile(r"[/\\]*+")
_AUTHORITY = re.compile(r"[^/\\?#]*+")
_PATHS = frozenset({"", "file"})
_WEBDAV_PORT = re.compile(r"(?:ssl|\d{1,5})(?:@(?:ssl|\d{1,5}))?", re.IGNORECASE)
_HOST = re.compile(r"[^\s/\\?#@:<>\[\]^|%\x00-\x20\x7f-\U0010ffff]{1,253}")  # what browsers do not refuse, in ASCII
_PUNCTUATION = ".,;!*'\"`)}]&"  # after a link in a text


class Address(NamedTuple):
    scheme: str  # in lower case; empty for `//host/path`
    user: str
    host: str  # as written: `host_of` gives the spelling that lists use
    port: str
    rest: str  # path, query and fragment


def read(link: str, base: Address | None = None) -> Address | None:
    """Where it leads; None if it names no host. `base` completes a link without one (`<base href>`)."""
    link = without_breaks(link.strip(AROUND))
    match = _SCHEME.match(link)
    scheme, start = (match[1].lower(), match.end()) if match else ("", 0)
    slashes = _SLASHES.match(link, start)
    begin = slashes.end() if slashes else start
    if scheme not in _SPECIAL and not _has_host(scheme, begin - start):
        return base._replace(rest=link) if base and not scheme else None
    authority = _AUTHORITY.match(link, begin)
    end = authority.end() if authority else begin
    user, _, place = link[begin:end].rpartition("@")
    if scheme in _PATHS and (server := webdav_server(link[begin:end])):
        user, place = "", server
    if place.startswith("["):
        host, _, port = place.partition("]")
        host, port = host + "]", port.removeprefix(":")
    else:
        host, _, port = place.partition(":")
    return Address(scheme, user, host, port, link[end:]) if host else None


def webdav_server(authority: str) -> str:
    r"""Where Windows looks for the folder `\\server@SSL@8443\folder` or `file://server@80/folder`; or ""."""
    server, _, port = authority.partition("@")
    return server if _WEBDAV_PORT.fullmatch(port) else ""


def mailbox_host(link: str) -> str:
    """The host of a link to somebody at a server: `mailto:user@host`, `sip:user@host`; or ""."""
    match = _SCHEME.match(link.strip(AROUND))
    authority = _AUTHORITY.match(match.string, match.end()) if match else None
    return authority[0].rpartition("@")[2] if authority else ""


def _has_host(scheme: str, slashes: int) -> bool:
    """Windows takes a path that begins with two slashes for a server: `file:////server/share`."""
    if scheme == "file":
        return slashes == 2 or slashes > 3
    return slashes == 2 if scheme else slashes >= 2


def without_breaks(text: str) -> str:
    """Browsers remove tabs and line ends from links."""
    return text.replace("\n", "").replace("\r", "").replace("\t", "")


def host_of(raw: str) -> str:
    """The host in the spelling that lists use; empty if there is none. A port may follow it."""
    host = unquote(raw) if "%" in raw else raw
    host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    host = comparable_domain(host.lstrip(".").rstrip(_PUNCTUATION))
    ip = ip_in_link(host)
    if ip is not None:
        return ip
    return host if _HOST.fullmatch(host) else ""
