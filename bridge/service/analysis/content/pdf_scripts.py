"""Scripts of PDF documents: the links that they open, and whether they open a file of the document itself.

A script does with `app.launchURL` what an action of the document does with a link. So its strings get the same tags,
if it has a function that opens something. They are read as written, joined and with their escapes replaced: what a
script computes otherwise is not seen. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime.rare_charsets import escapes_replaced
from bridge.service.analysis.content.unpacking import Budget

# In lower case. The last three: of Acrobat's own language, and of forms.
_OPENING = (
    "launchurl", "geturl", "opendoc", "submitform", "importdataobject", "importanfdf", "importanxfdf", "maildoc",
    "gotourl", "net.http", "soap.",
)  # fmt: skip
_EXPORT = "exportdataobject"
# To open what it exports: 1 asks where to save it, 2 does not. The fourth parameter, or one with a name.
_LAUNCHES = re.compile(
    r"nlaunch[\"']?\s{0,20}:\s{0,20}[\"']?[12]|exportdataobject\s{0,20}\((?:[^,()]{0,200},){3}\s{0,20}[12]"
)
_JOINT = re.compile(r"[\"']\s{0,40}\+\s{0,40}[\"']")
_STRING = re.compile(r"\"([^\"\r\n]{0,4000}+)\"|'([^'\r\n]{0,4000}+)'")
_LINK = re.compile(r"\s{0,20}(?:[a-z][a-z0-9+.-]{1,30}:(?=[^\s])|[/\\]{2})", re.IGNORECASE)
_SERVERS = ("\\\\", "//")
_SEARCH = re.compile(r"\s{0,20}search:(?!(?:query|crumb|displayname|subquery)=)", re.IGNORECASE)  # a label of a form
_BYTE_WORK, _STRING_WORK = 30, 500


def links(script: str, budget: Budget) -> Iterator[str]:
    """What its functions may open; nothing if it has none."""
    for reading in _readings(script, budget):
        lower = reading.lower()
        for match in _STRING.finditer(reading) if any(word in lower for word in _OPENING) else ():
            budget.take_work(_STRING_WORK)
            text = match[1] or match[2] or ""
            if _LINK.match(text) and not _SEARCH.match(text):
                yield as_link(text.strip())


def opens_file(script: str, budget: Budget) -> bool:
    """Whether it opens a file that is embedded in the document."""
    readings = (reading.lower() for reading in _readings(script, budget))
    return any(_EXPORT in text and _LAUNCHES.search(text) is not None for text in readings)


def as_link(path: str) -> str:
    """A path on a server is found as a link if it has a scheme."""
    return f"file:{path}" if path.startswith(_SERVERS) else path


def _readings(script: str, budget: Budget) -> list[str]:
    budget.take_work(_BYTE_WORK * len(script))
    joined = _JOINT.sub("", script)
    return list(dict.fromkeys((joined, escapes_replaced(joined))))
