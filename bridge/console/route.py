"""One row of the route table: what must be true before a page is called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from bridge.console.call import Handler
from bridge.console.roles import Role

FORM_BYTES = 64 * 1024
_ID = re.compile(r"[0-9A-Za-z]{1,64}")


class About(Enum):
    """What the `{id}` in the path names. The guard finds it, and refuses what belongs to other tenants."""

    NOTHING = "nothing"
    MAIL = "mail"  # a mail in the history: `Call.mails`
    HELD = "held"  # a mail in the quarantine: `Call.held`


@dataclass(frozen=True, slots=True)
class Route:
    path: str
    handler: Handler
    role: Role | None = Role.VIEWER  # the least that is needed; None: nobody needs to have signed in
    changes: bool = False  # POST with a form token; otherwise GET, which changes nothing
    about: About = About.NOTHING
    audit: str = ""  # what the audit log says; needed if it changes something or shows a mail
    all_tenants: bool = False  # only for people who see all mail
    max_bytes: int = FORM_BYTES  # of the form
    max_files: int = 0
    is_live: bool = False  # the page makes this request by itself, which does not keep a session alive
    has_frame: bool = False  # the page shows a preview
    is_preview: bool = False  # content of a mail, with its own security policy
    is_sample: bool = False  # a sample digest, with its own styles, for a frame

    def __post_init__(self) -> None:
        """A row that contradicts itself is a mistake in the program."""
        if (self.changes or self.about is not About.NOTHING or self.is_preview) and not self.audit:
            raise ValueError(f"{self.path}: needs a description for the audit log")
        if (self.about is not About.NOTHING) != ("{id}" in self.path):
            raise ValueError(f"{self.path}: {{id}} and `about` must be used together")
        if self.about is not About.NOTHING and self.role is None:
            raise ValueError(f"{self.path}: only people who have signed in may see mail")

    @property
    def method(self) -> str:
        return "POST" if self.changes else "GET"


def is_mail_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
