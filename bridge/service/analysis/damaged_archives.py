"""Damaged archives in a mail, and which of them count.

Programs that do not read a mail as the standards say find pieces of its archives, which look damaged. Programs that
find only these do not see the archive, so only what is not such a piece counts. If this is wrong, a damaged archive
that some program opens is delivered, or a sound mail is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bridge.service.analysis.content import archives, recognition

BROKEN, BROKEN_CONTAINER = "mime:broken-archive", "mime:broken-container"

_MAX_AFTER = 64  # bytes that a delimiter decodes to


class DamagedArchives:
    """Those of one mail that only some programs find. `charge` is called with the work of each comparison."""

    def __init__(self, charge: Callable[[int], None]) -> None:
        self._charge = charge
        self._whole: list[bytes] = []  # archives whose damage, if there is any, already counts
        self._line_forms: list[bytes] = []  # of archives, as some programs decode them; a delimiter may follow
        self._tags: dict[bytes, str] = {}  # damaged guesses, each with the tag for it
        self._refused: set[bytes] = set()  # those that begin as archives, and are not only cut off

    def add_whole(self, content: bytes) -> None:
        self._whole.append(content)

    def add_line_forms(self, forms: Iterable[bytes]) -> None:
        self._line_forms += forms

    def add_guess(self, content: bytes, *, is_refused: bool, is_in_text: bool) -> None:
        if is_refused:
            self._refused.add(content)
        is_attached = content in self._refused and not is_in_text
        self._tags[content] = BROKEN if is_attached else self._tags.get(content, BROKEN_CONTAINER)

    def find_again(self, content: bytes, *, is_in_text: bool) -> None:
        """A guess that was found before, perhaps in a text, and may not have been damaged."""
        if content in self._tags:
            self.add_guess(content, is_refused=False, is_in_text=is_in_text)

    def judge(self, tags: set[str]) -> None:
        """Add the tags for those that are not pieces: they may be the attachment that some program shows."""
        if not self._tags:
            return
        wholes = list(map(recognition.without_space, self._whole))
        for content, tag in self._tags.items():
            if tag not in tags and not self._is_piece(content, wholes):
                tags.add(tag)

    def _is_piece(self, content: bytes, wholes: Iterable[bytes]) -> bool:
        is_beginning = archives.begins_as_archive(content)
        for form in self._line_forms:
            is_in_form = content.startswith(form) if is_beginning else content[:-_MAX_AFTER] in form
            if is_in_form and len(content) <= len(form) + _MAX_AFTER:
                return True
        piece = recognition.without_space(content)
        return any(recognition.is_piece_of(piece, whole, self._charge, is_beginning=is_beginning) for whole in wholes)
