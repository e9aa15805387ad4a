"""The translations of what users read: find the texts, compare them with the `.po` files, compile those to `.mo`.

`make translations` compiles. A text is what stands in `_("...")`, `ngettext("...", "...")`, `call.speak("...")`,
`words.say("...")` or `N_("...")`, in the templates and in the code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent / "bridge"
LOCALE = ROOT / "digests" / "locale"
FOLDERS = (ROOT / "digests", ROOT / "user_pages")
SHARED = (  # the console itself is in English
    *(ROOT / "console" / "checks.py", ROOT / "console" / "queues.py"),
    ROOT / "api" / "reason_texts.py",
)
_ONE = re.compile(r"""(?:\b_|\bspeak|\bsay|\bN_)\(\s*"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_QUOTING = re.compile(r"\bN_\('([^'\\]*)'")  # a text with quotation marks in it
_MANY = re.compile(r"""ngettext\(\s*"((?:[^"\\]|\\.)*)",\s*"((?:[^"\\]|\\.)*)\"""", re.DOTALL)


def texts() -> set[str]:
    """Everything that is to be translated; of plurals, the singular."""
    found: set[str] = set()
    for path in (*SHARED, *(path for folder in FOLDERS for path in sorted(folder.rglob("*")))):
        if path.suffix in (".py", ".html", ".txt"):
            content = path.read_text("utf-8")
            found |= {*_ONE.findall(content), *_QUOTING.findall(content)} | {one for one, _ in _MANY.findall(content)}
    return found


def po_files() -> list[Path]:
    return sorted(LOCALE.glob("*/LC_MESSAGES/*.po"))


def translated(po: Path) -> dict[str, list[str]]:
    """The texts of a .po file, each with its translations: several for a plural."""
    found: dict[str, list[str]] = {}
    key = current = ""
    for line in po.read_text("utf-8").splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith('"'):
            word, rest = "", line
        text = _unquoted(rest)
        if word == "msgid":
            key = current = text
            found[key] = []
        elif word.startswith("msgstr"):
            current = ""
            found[key].append(text)
        elif word == "" and line:
            if found.get(key):
                found[key][-1] += text
            else:
                found.pop(current, None)
                key = current = current + text
                found[key] = []
    return found


def _unquoted(text: str) -> str:
    return text.strip().strip('"').replace('\\"', '"').replace("\\n", "\n") if text.strip() else ""


def compile_all() -> None:
    for po in po_files():
        subprocess.run(["msgfmt", "--check", "-o", str(po.with_suffix(".mo")), str(po)], check=True)  # noqa: S603, S607


if __name__ == "__main__":
    if "--texts" in sys.argv:
        for text in sorted(texts()):
            sys.stdout.write(text + "\n")
    else:
        compile_all()
