"""Changes to a mail that a scanner requests along with its decision: header fields, subject, text of a refusal.

The scanner's dialect has checked them (`bridge/scanner/dialects/allowed_changes.py`): each is one that the operator
allows, and none can end a line where it must not. They are applied when the mail is passed on.
"""

from __future__ import annotations

from typing import Any

from bridge.runtime.value import value


@value
class Changes:
    add: tuple[tuple[str, str], ...] = ()  # header fields, the topmost first; a value may be folded (CRLF and a tab)
    remove: tuple[tuple[str, int], ...] = ()  # name in lower case, and which: 0 all, from 1 on, or from the end (-1)
    subject: str | None = None  # the new value, in ASCII
    reply_text: str = ""  # of a refusal

    def to_dict(self) -> dict[str, Any]:
        """For JSON; leaves out what is empty."""
        found = {
            "add": [list(field) for field in self.add],
            "remove": [list(field) for field in self.remove],
            "subject": self.subject,
            "reply_text": self.reply_text,
        }
        return {name: wish for name, wish in found.items() if wish}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Changes:
        """What `to_dict` returned."""
        return cls(
            tuple((str(name), str(text)) for name, text in stored.get("add", ())),
            tuple((str(name), int(which)) for name, which in stored.get("remove", ())),
            stored.get("subject"),
            str(stored.get("reply_text", "")),
        )
