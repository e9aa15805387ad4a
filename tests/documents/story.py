"""Runs a page's commands in one shell, as a reader would type them, in separate namespaces (room.sh).

Every command that fails is found, not only the last of a block. A `Story` says what a page's commands need
beforehand, and what its placeholders stand for. Knows nothing of the pages' content.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.documents.blocks import ROOT, Block, bare
from tests.requirements import unavailable
from tests.warm_commands import warm_commands

_HERE = Path(__file__).parent
_UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
_DEADLINE_S = 400  # the longest page takes 110 s alone on a busy machine of two cores


@dataclass(frozen=True)
class Story:
    prepare: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    goes_on: Mapping[str, str] = field(default_factory=dict)  # a command that keeps running: its ports
    fails: Mapping[str, int] = field(default_factory=dict)  # a command that is expected to fail: its exit code
    shows: Sequence[str] = ()  # patterns of the output, in this order


@dataclass(frozen=True)
class Told:
    failures: dict[str, int]  # commands that failed, and their exit codes
    output: str


def tell(page: Sequence[Block], story: Story, directory: Path) -> Told:
    """Runs a page's blocks from the first to the last."""
    (directory / "room").mkdir()
    failures, script = directory / "failures", directory / "script"
    watch = f"set -o pipefail\nexec 9>{failures}\ntrap 'echo $LINENO $? >&9' ERR"
    code = [_code(block, story) for block in page]
    enter = f". {_HERE / 'room.sh'} || exit"  # bash would go on without the file, on the real machine
    script.write_text("\n".join([enter, watch, story.prepare, *code, "exit 0"]))
    environment = {
        "ROOM": str(directory / "room"),
        "SOURCE": str(ROOT),
        "PYTHON": sys.executable,
        "WARM": str(_HERE / "warm.py"),
        "WARM_SERVER": warm_commands(os.getpid()).place,
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }
    done = subprocess.run(
        [*_UNSHARE, "bash", str(script)], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=_DEADLINE_S,
    )  # fmt: skip
    if re.match("(unshare|mount|ip|RTNETLINK)", done.stdout):
        unavailable(f"namespaces are not available here: {done.stdout[:400]}")
    assert done.returncode == 0, done.stdout
    lines = script.read_text().splitlines()
    found = [line.split() for line in failures.read_text().splitlines()]
    return Told({bare(lines[int(line) - 1]): int(code) for line, code in found}, done.stdout)


def _code(block: Block, story: Story) -> str:
    text = block.text
    for word, meaning in story.words.items():
        text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", lambda _, meaning=meaning: meaning, text)
    if block.language == "python":
        text = f"$PYTHON -W error - <<'END OF PROGRAM'\n{text}END OF PROGRAM\n"
    lines = [_going_on(line, story) for line in text.splitlines()]
    return "\n".join([f"echo '== {block.page}:{block.line}'", *lines])


def _going_on(line: str, story: Story) -> str:
    command = bare(line)
    if command not in story.goes_on:
        return line
    return f"{{ {command}; }} & listening {story.goes_on[command]}"
