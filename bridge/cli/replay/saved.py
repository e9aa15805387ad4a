"""The result of a replay in a file: written by --save, read by --expect."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bridge.cli.replay.judgement import Judgement, Replay
from bridge.errors import BridgeError


class BadResult(BridgeError):
    """The file is not the result of a replay."""


def write(path: Path, text: str) -> None:
    """Complete or not at all; readable by its owner only, because it names senders and recipients. Raises OSError."""
    if path.exists() and not path.is_file():  # /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


def dump(replay: Replay) -> str:
    return json.dumps(replay.to_dict(), indent=1) + "\n"


class Expected(dict[str, Judgement]):
    """Decisions by the name of the mail, and by the hash of its content."""

    def __init__(self, path: Path) -> None:
        """Raises BadResult, OSError."""
        super().__init__()
        self.names: dict[str, str] = {}  # the hash of each mail, by its name
        try:
            mails = json.loads(path.read_bytes())["mails"]
            for mail in mails:
                name, digest, found = str(mail["mail"]), str(mail["sha256"] or ""), Judgement.from_dict(mail["now"])
                self.names[name] = digest
                self[name] = found
                if digest:
                    self.setdefault(digest, found)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise BadResult(f"{path} is not a result that `scanbridge replay --save` has written") from exc

    def missing(self, replay: Replay) -> int:
        """How many of its mails are not among those that were replayed."""
        seen = {row.name for row in replay.done} | {row.sha256 for row in replay.done if row.sha256}
        return sum(name not in seen and digest not in seen for name, digest in self.names.items())
