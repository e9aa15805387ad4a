"""The result of a replay in a file: written by --save, read by --expect."""

from __future__ import annotations

import json
from pathlib import Path

from bridge.cli.replay.judgement import Judgement, Replay
from bridge.errors import BridgeError
from bridge.runtime import output_file, root_as_owner


class BadResult(BridgeError):
    """The file is not the result of a replay."""


class Incomplete(BridgeError):
    """The replay ended early: its result must not replace a complete one."""


def write(path: Path, replay: Replay) -> None:
    """Write the whole file or nothing. Only its owner may read it, because it names senders and recipients.

    Raises Incomplete, OSError.
    """
    if replay.is_interrupted or replay.stopped:
        raise Incomplete(f"{path}: not written, because the replay is incomplete")
    output_file.write(path, dump(replay))


def dump(replay: Replay) -> str:
    return json.dumps(replay.to_dict(), indent=1) + "\n"


class Expected:
    """The decisions of an earlier replay."""

    def __init__(self, path: Path) -> None:
        """Raises BadResult, OSError."""
        self._by_name: dict[str, tuple[str, Judgement]] = {}  # with the hash of the content
        self._by_hash: dict[str, Judgement] = {}
        try:
            with root_as_owner.as_operator():
                content = path.read_bytes()
            saved = json.loads(content)
            for mail in saved["mails"]:
                name, digest, found = str(mail["mail"]), str(mail["sha256"] or ""), Judgement.from_dict(mail["now"])
                self._by_name[name] = (digest, found)
                if digest:
                    self._by_hash.setdefault(digest, found)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise BadResult(f"{path} was not written by `scanbridge replay --save`") from exc
        if not self._by_name or saved.get("interrupted") or saved.get("stopped"):  # earlier versions wrote these
            raise BadResult(f"{path} is the result of a replay that ended early: write it again with --save")

    def find(self, name: str, digest: str) -> Judgement | None:
        """The decision on the same mail; else on the same content elsewhere; else on other content of this name."""
        known, found = self._by_name.get(name, ("", None))
        return found if known == digest else self._by_hash.get(digest, found)

    def missing(self, replay: Replay) -> int:
        """How many of its mails are not among those that were replayed."""
        seen = {row.name for row in replay.done} | {row.sha256 for row in replay.done if row.sha256}
        return sum(name not in seen and digest not in seen for name, (digest, _) in self._by_name.items())
