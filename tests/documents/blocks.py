"""The blocks of code in our documents, and which of them are run.

A block of commands is marked `sh`, one of Python `python`. A block that no test can run has the reason above it in
the source: `<!-- not run: needs a booted systemd -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
_NOTE = r"(?:<!--(?P<note>(?:(?!-->).)*)-->\n)?"
_FENCE = re.compile(rf"^{_NOTE}(?P<tick> *```)(?P<language>.*?)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str  # its path in the repository
    line: int
    language: str
    text: str
    not_run: str | None  # the reason; "" if none is given

    @property
    def name(self) -> tuple[str, str]:
        """Page and first command, which identify it."""
        return self.page, bare(self.text.partition("\n")[0])

    @property
    def is_program(self) -> bool:
        return self.language in ("sh", "python")


@cache
def blocks() -> list[Block]:
    return [block for page in sorted(PAGES) for block in _blocks(page)]


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        note = re.fullmatch(r"\s*not run:?(.*)", match["note"] or "", re.DOTALL)
        line = text.count("\n", 0, match.start("tick")) + 1
        reason = note[1].strip() if note else None
        found.append(Block(str(page.relative_to(ROOT)), line, match["language"], match["text"], reason))
    return found


def bare(line: str) -> str:
    """A command without its trailing comment."""
    return re.sub(r" +#.*", "", line)
