"""What practically never occurs in a legitimate Office document, as opposed to what only looks similar.

Templates, fields and formulas that load something are everyday things within a company, and attacks if they lead to
the internet or to a program. Pure functions; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from bridge.service.analysis.content import link_address
from bridge.service.analysis.content.link_address import host_of
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.detection.domains import is_internal

DDE, DDE_LINK, LAUNCH = "office:dde", "office:dde-link", "office:launch"
REMOTE, EXPLOIT = "office:remote-object", "office:exploit"
PROGRAM_LINK = "url:starts-program"
# What may precede an address, and other names of the web: WebDAV is loaded in the same way.
_WRAPPERS = re.compile(r"(?:mhtml:|ms-[a-z]{1,20}:(?:ofe\|u\|)?|url:)*")
_WEB = re.compile(r"^webdavs?:")
_PATH = re.compile(r"^(?:file:)?[/\\]{2,}+[?.][/\\]++unc[/\\]++")
_PATHS = frozenset({"", "file"})
_PRIVATE = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16", "fc00::/7", "::1"),
    )
)
_DRIVE = re.compile(r"[a-z]\|?")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{1,40}):")
STARTING = frozenset(  # programs of Windows
    {"ms-msdt", "search-ms", "search", "ms-search", "shell", "ms-officecmd", "ms-appinstaller", "ms-cxh-full", "hcp"}
)
# LibreOffice runs a command, or a script of the machine instead of one in the document (CVE-2022-3140, CVE-2018-16858).
# Macros of the machine in Basic are usual: its own assistants write documents that call them.
_RUNS_SCRIPT = re.compile(
    r"vnd\.libreoffice\.command:|vnd\.sun\.star\.script:(?!(?:(?![?&]location=).)*+[?&]location=document(?:&|$))"
    r".*?(?:\.\.|[?&]language=(?!basic))"
)
_COMMAND = re.compile(
    r"(?:^|[\\/])(?:cmd|powershell|pwsh|mshta|wscript|cscript|rundll32|regsvr32|certutil|bitsadmin|msiexec|wmic"
    r"|schtasks|forfiles|conhost|msbuild|installutil)(?:\.exe(?![\w.])|\s++[/-][a-z])"
    r"|(?:^|[\\/])(?:explorer|control)\.exe(?![\w.])"  # without `.exe`, these are ordinary words
)
_PROGRAM_FILE = re.compile(
    r"\.(?:exe|com|bat|cmd|hta|vbs|vbe|js|jse|wsf|ps1|scr|dll|cpl|msi|iso|vhd|search-ms)(?:[?#\s]|$)"
)
_SHORTCUT = re.compile(r"\.(?:lnk|url)(?:[?#\s]|$)")  # usual on a file server of one's own; not over the web
_OVER_WEB = ("@", "davwwwroot")
_HYPERLINK = re.compile(r"\bHYPERLINK\s++([^\n]++)", re.IGNORECASE)
_WORD = re.compile(r"\"([^\"]*+)|([^\s\"]++)")  # switches and their values may precede the target
_USUAL = ("http:", "https:", "mailto:")
_PROGRAM_IN = "/a.exe"  # any program in a folder
_DDE_WORD = re.compile(  # the first word of a line: a host may be called `dde`
    r"^[^\w\n]*+DDE(?:AUTO)?(?![A-Za-z0-9])\s*+(?:\"([^\"\n]*+)\"|([^\s\"]++))?([^\n]*+)",
    re.IGNORECASE | re.MULTILINE,
)
_OFFICE_PROGRAM = re.compile(
    r"(?:excel|word|winword|powerpnt|powerpoint|msaccess|access|msproject|outlook|visio|soffice)(?:\.[a-z]{1,20}(?:\.\d{1,3})?)?"
)
_PROGRAM = re.compile(
    r"(?:^|[^a-z])(?:cmd|powershell|pwsh|mshta|wscript|cscript|rundll32|regsvr32|certutil|bitsadmin|msiexec|wmic"
    r"|schtasks|explorer|control|forfiles|conhost|msbuild|installutil)(?:$|[^a-z])"
    r"|\.(?:exe|com|bat|cmd|hta|vbs|vbe|js|jse|wsf|ps1|scr|dll|lnk|cpl)(?:$|[^a-z0-9.])|\.\.[\\/]|https?:"
)
# The header of an equation (EQNOLEFILEHDR): its own length and version. Then the formula in MTEF, of version 2 or 3.
_EQUATION = re.compile(rb"\x1c\0.{26}[\x02\x03]", re.DOTALL)
_LINK_BASE = b"_PID_HLINKBASE"  # a property of old documents (MS-OSHARED 2.3.3.2.3.1)
_ASSOCIATED = re.compile(rb"\xff\xff\x12\0\0\0")
_LONGEST_PATH = 4096  # bytes
_PATH_WORK, _PATH_BYTE_WORK = 2000, 40  # for each, and for each of its bytes: it is read as an address
_LINK_WORK = 100  # for each that need not be read as one
_NARROW, _WIDE = re.compile(rb"[ -~]{4,}+"), re.compile(rb"(?:[ -~]\0){4,}+")
_LONG_FONT = re.compile(rb"\x08[^\0]{42}")  # a name of a font longer than any: CVE-2017-11882 and CVE-2018-0802


def is_remote(target: str) -> bool:
    """Whether an address leads out of the reader's own network."""
    text = _plain(target)
    wrapper = _WRAPPERS.match(text)
    inner = text[wrapper.end() :] if wrapper else text
    address = link_address.read(_PATH.sub(r"\\\\", _WEB.sub("http:", inner)))
    if address is None:
        return text.startswith("mhtml:")
    raw = address.host
    if address.scheme in _PATHS:  # more may follow a server's name than a port
        raw = address.user.partition("@")[0] or raw
        if _DRIVE.fullmatch(raw):
            return False
    host = host_of(raw)
    try:
        ip = ip_address(host)
    except ValueError:
        return not is_internal(host) if "." in host else not host and "." in raw
    return not any(ip in network for network in _PRIVATE)


def _plain(target: str) -> str:
    return link_address.without_breaks(unquote(target)).strip().lower()


def is_remote_sound(path: str) -> bool:
    """Whether Outlook sent the reader's password hash to a server, to load the sound of a reminder (CVE-2023-23397)."""
    text = path[:_LONGEST_PATH].strip("\0 ")
    return text.startswith(("\\\\", "//")) and is_remote(text)


def is_script_object(target: str) -> bool:
    """An object that is loaded as a page, and runs its scripts (CVE-2021-40444, CVE-2022-30190)."""
    text = link_address.without_breaks(target).strip().lower()
    return is_remote(text) and (text.endswith("!") or text.startswith("mhtml:") or "!x-usc:" in text)


def starts_program(target: str) -> bool:
    """A link that starts a program when it is clicked: one of Windows' own, or one that is loaded from elsewhere."""
    text = _plain(target)
    scheme = _SCHEME.match(text)
    if scheme and (scheme[1] in STARTING or _RUNS_SCRIPT.match(text)):
        return True
    if scheme and scheme[1] != "file":
        return False
    if _COMMAND.search(text):
        return True
    address = link_address.read(text)
    if address is None or not is_remote(text):
        return False
    is_web = any(mark in text for mark in _OVER_WEB) or host_of(address.host)[:1].isdigit()
    return bool(_PROGRAM_FILE.search(address.rest) or (is_web and _SHORTCUT.search(address.rest)))


def any_starts_program(targets: Iterable[str], budget: Budget) -> bool:
    """Nearly all links of a document lead to the web."""
    for target in dict.fromkeys(targets):
        budget.take_work(_LINK_WORK)
        if not target[:8].lower().startswith(_USUAL):
            budget.take_work(_PATH_WORK + _PATH_BYTE_WORK * len(target))
            if starts_program(target):
                return True
    return False


def in_folder(base: str) -> str:
    """A link that a document or a page with such a base may have: without its folder, it is not found as one."""
    return base + _PROGRAM_IN


def hyperlinks(fields: str) -> Iterator[str]:
    """The targets of links that are fields, one per line; with them, what the link says when it is pointed at."""
    for match in _HYPERLINK.finditer(fields):
        for quoted, word in _WORD.findall(match[1]):
            yield quoted or word


def starts_program_in(data: bytes, budget: Budget) -> bool:
    """Whether one of the texts in a record of an old document is such a link, in 8-bit or in 16-bit characters."""
    return any_starts_program(_texts(data), budget)


def is_base_in(properties: bytes, budget: Budget) -> bool:
    """Whether the properties of an old document complete its links to programs elsewhere."""
    if _LINK_BASE not in properties.replace(b"\0", b""):
        return False
    return any_starts_program(map(in_folder, _texts(properties)), budget)


def _texts(data: bytes) -> tuple[str, ...]:
    narrow = (text.decode("latin-1") for text in _NARROW.findall(data))
    wide = (text.decode("utf-16-le") for text in _WIDE.findall(data))
    return (*narrow, *wide)


def tag_of_field(fields: str) -> str:
    """The tag for the fields of a text document, one per line; empty if none of them uses DDE."""
    tags = {
        DDE_LINK
        if _OFFICE_PROGRAM.fullmatch((match[1] or match[2] or "").lower()) and not _PROGRAM.search(match[3].lower())
        else DDE
        for match in _DDE_WORD.finditer(fields)
    }
    return DDE if DDE in tags else DDE_LINK if tags else ""


def tag_of_sheet_link(service: str, topic: str) -> str:
    """The tag for a cell that queries another program. Market data programs are queried this way, too."""
    text = f"{service} {topic}".lower()
    if topic.strip().startswith(("/", "-")) or _PROGRAM.search(text):
        return DDE
    return DDE_LINK


def associated(table: bytes, budget: Budget) -> Iterator[str]:
    """The template in the table of an old Word document: the second of 18 strings (MS-DOC 2.9.273, SttbfAssoc)."""
    for match in _ASSOCIATED.finditer(table):
        at = match.end()
        at += 2 + 2 * int.from_bytes(table[at : at + 2], "little")
        size = 2 * int.from_bytes(table[at : at + 2], "little")
        path = table[at + 2 : at + 2 + min(size, _LONGEST_PATH)]
        budget.take_work(_PATH_WORK + _PATH_BYTE_WORK * len(path))
        yield path.decode("utf-16-le", "replace").rstrip("\0")


def is_formula(native: bytes) -> bool:
    """Whether the content of an equation object is what the old equation editor writes."""
    return _EQUATION.match(native) is not None and _LONG_FONT.search(native, 28) is None
