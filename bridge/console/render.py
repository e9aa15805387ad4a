"""Templates, links and static files.

Jinja escapes everything; no template marks text as safe. Static files are read once and found by name in a table, so
no path reaches the file system. A link carries the hash of its file, so browsers keep a file until it changes.
"""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from bridge import __version__
from bridge.console.roles import Role
from bridge.console.url_part import to_part
from bridge.history.rule_words import ACTIONS
from bridge.runtime.counted import spoken
from bridge.runtime.visible_text import visible, visible_lines

# Sentences that a redirect may ask the next page to show. Only these: anyone could put text into a link.
NOTICES = {
    "signed-out": "You are signed out.",
    "session-over": "Your session has ended. Sign in again to continue.",
    "session-revoked": "The session was ended.",
    "user-added": "The user was added.",
    "user-changed": "The user was changed, and has to sign in again.",
    "user-removed": "The user was removed.",
    "password-set": "The password was changed, and the user has to sign in again.",
    "password-chosen": "Your password was set. Sign in with it.",
    "request-granted": "The request was granted.",
    "request-refused": "The request was refused.",
}
# Symbols differ in shape, so that nobody needs to see the colours.
TONES = {
    "deliver": "good", "relay": "good", "quarantine": "held", "hold": "held", "bounce": "bad", "reject": "bad",
    "drop": "gone", "discard": "gone", "undecided": "open", "tempfail": "open", "cancelled": "open",
}  # fmt: skip


_NONE = "\u2013"  # a dash
# Browsers name others before themselves, so the order matters.
_BROWSERS = tuple(re.compile(rf"({name})/(\d+)") for name in ("Edg", "OPR", "Firefox", "Chrome", "Version"))
_SYSTEMS = {"Android": "Android", "iPhone": "iOS", "iPad": "iOS", "Windows": "Windows", "Mac OS X": "macOS",
            "Linux": "Linux"}  # fmt: skip


class StaticFiles:
    """`bridge/console/static`, by name."""

    def __init__(self) -> None:
        folder = resources.files("bridge.console") / "static"
        self._files = {item.name: item.read_bytes() for item in folder.iterdir() if not item.name.startswith(".")}
        self.versions = {name: hashlib.sha256(data).hexdigest()[:12] for name, data in self._files.items()}

    def response(self, name: str) -> Response | None:
        if name not in self._files:
            return None
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._files[name], media_type=kind, headers=headers)


class Renderer:
    def __init__(self, root_path: str) -> None:
        self._root_path = root_path
        self.static = StaticFiles()
        self._jinja = Environment(
            loader=PackageLoader("bridge.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._jinja.filters |= {"visible": visible, "visible_lines": visible_lines, "bytes": show_bytes}
        self._jinja.filters |= {"count": show_count, "rate": show_rate, "seconds": show_seconds, "age": show_age}
        self._jinja.filters |= {"exact": show_exact, "iso": show_iso, "browser": show_browser}
        self._jinja.globals |= {
            "url": self.url, "part": to_part, "static": self._static, "version": __version__, "Role": Role,
            "ACTIONS": ACTIONS, "tone": lambda word: TONES.get(str(word), "open"),
        }  # fmt: skip

    def url(self, path: str, **parameters: Any) -> str:
        """A link to a page of ours; parameters that are empty are left out."""
        given = {name: value for name, value in parameters.items() if value not in ("", None)}
        return f"{self._root_path}{path}" + (f"?{urlencode(given)}" if given else "")

    def page(self, template: str, status: int, values: Mapping[str, Any]) -> Response:
        return HTMLResponse(self._jinja.get_template(template).render(values), status_code=status)

    def fragment(self, template: str, **values: Any) -> str:
        """A piece of a page, for the live parts."""
        return self._jinja.get_template(template).render(values)

    def _static(self, name: str) -> str:
        return self.url(f"/static/{name}", v=self.static.versions[name])


# How numbers and times are written


def show_bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def show_count(number: float) -> str:
    return f"{number:,.0f}"


def show_rate(number: float) -> str:
    """With a decimal place only where it is meaningful."""
    return f"{number:,.1f}" if number < 100 else show_count(number)


def show_seconds(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else show_age(seconds)


def show_age(seconds: float | None) -> str:
    return _NONE if seconds is None else spoken(seconds)


def show_browser(agent: str) -> str:
    """`Firefox 140 on Linux`; for any other program, the text that it sent."""
    found = next((match for pattern in _BROWSERS if (match := pattern.search(agent))), None)
    if found is None:
        return agent[:60]
    name = {"Edg": "Edge", "OPR": "Opera", "Version": "Safari"}.get(found[1], found[1])
    system = next((label for word, label in _SYSTEMS.items() if word in agent), "")
    return f"{name} {found[2]}" + (f" on {system}" if system else "")


def show_exact(moment: float) -> str:
    """For readers without a script: UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def show_iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
