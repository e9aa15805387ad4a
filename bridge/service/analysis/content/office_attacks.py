"""What practically never occurs in a legitimate Office document, as opposed to what only looks similar.

Templates, fields and formulas that load something are everyday things within a company, and attacks if they lead to
the internet or to a program. Pure functions; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from bridge.service.detection.domains import is_internal

DDE, DDE_LINK = "office:dde", "office:dde-link"
_WEB = re.compile(r"(?:mhtml:|ms-[a-z]{1,20}:(?:ofe\|u\|)?|url:)*(?:https?|ftp|webdav)s?:/{0,9}([^/?#]*)")
_NETWORK = re.compile(r"(?:file:)?/{2,}(?:[?.]/+unc/+)?([^/?]*)")
_PRIVATE = tuple(
    map(
        ip_network,
        ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16", "fc00::/7", "::1"),
    )
)
_DRIVE = re.compile(r"[a-z][:|]")
_NUMERIC = re.compile(r"(?:0x)?[0-9a-f]+")
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
_ASSOCIATED = re.compile(rb"\xff\xff\x12\0\0\0")
_LONGEST_PATH = 4096  # bytes
_LONG_FONT = re.compile(rb"\x08[^\0]{42}")  # a name of a font longer than any: CVE-2017-11882 and CVE-2018-0802


def is_remote(target: str) -> bool:
    """Whether an address leads out of the reader's own network."""
    text = unquote(target).replace("\\", "/").strip().lower()
    if web := _WEB.match(text):
        host = web[1].rpartition("@")[2]  # a name and a password stand before it
    elif network := _NETWORK.match(text):
        host = network[1].partition("@")[0]  # a port stands behind it: host@SSL
    else:
        return text.startswith("mhtml:")
    if "[" not in host and not _DRIVE.fullmatch(host):
        host = host.partition(":")[0]
    if not host or _DRIVE.fullmatch(host) or host == "localhost":
        return False
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        if "." in host:
            return not is_internal(host)
        return _NUMERIC.fullmatch(host) is not None and any(map(str.isdigit, host))
    return not any(address in network for network in _PRIVATE)


def is_script_object(target: str) -> bool:
    """An object that is loaded as a page, and runs its scripts (CVE-2021-40444, CVE-2022-30190)."""
    text = target.strip().lower()
    return is_remote(text) and (text.endswith("!") or text.startswith("mhtml:") or "!x-usc:" in text)


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


def associated(table: bytes) -> Iterator[str]:
    """The template in the table of an old Word document: the second of 18 strings (MS-DOC 2.9.273, SttbfAssoc)."""
    for match in _ASSOCIATED.finditer(table):
        at = match.end()
        at += 2 + 2 * int.from_bytes(table[at : at + 2], "little")
        size = 2 * int.from_bytes(table[at : at + 2], "little")
        yield table[at + 2 : at + 2 + min(size, _LONGEST_PATH)].decode("utf-16-le", "replace").rstrip("\0")


def is_formula(native: bytes) -> bool:
    """Whether the content of an equation object is what the old equation editor writes."""
    return _EQUATION.match(native) is not None and _LONG_FONT.search(native, 28) is None
