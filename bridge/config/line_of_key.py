"""The file and line of a key in a message: `scanner.token_file: ...` becomes `bridge.yml:3: scanner.token_file: ...`.

Errors in the file itself are reported with their lines. This is for what is found later, when the files, addresses and
certificates that the configuration names are used. Without it, the operator has to look for the key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bridge.config.renamed import RENAMED
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.runtime.renamed_keys import Path_

_KEY = re.compile(r"([a-z_0-9]+(?:\.[\w-]+)*): ")


def with_lines(message: str, path: Path | None) -> str:
    """The message with file and line before each of its lines that begins with a key of this file."""
    if path is None or not message:
        return message
    try:
        text = yaml_file.read_text(path)
        data, _ = yaml_file.read(path, text, RENAMED)
        written = yaml_file.lines(path, text, RENAMED)
    except ConfigError:  # the message already reports this error
        return message
    return "\n".join(_located(line, path, data, written) for line in message.split("\n"))


def _located(line: str, path: Path, data: Any, written: dict[Path_, int]) -> str:
    match = _KEY.match(line)
    where: Path_ = tuple(int(key) if key.isdecimal() else key for key in match[1].split(".")) if match else ()
    if where[:1] == ("listeners",) and len(where) > 1 and isinstance(data, dict):
        # Messages use the name of a listener, the file its position.
        names = [entry.get("name") if isinstance(entry, dict) else None for entry in data.get("listeners", ())]
        where = ("listeners", names.index(where[1]) if where[1] in names else where[1], *where[2:])
    while where and where not in written:
        where = where[:-1]
    return f"{path}:{written[where]}: {line}" if where else line
