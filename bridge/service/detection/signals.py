"""All signals of one mail: tags with what they were found in, the context they are weighed in, and the words.

Signals that speak against a mail become tags. The context (a mailing list, an answer, plain text) becomes no tag:
it says nothing about a mail by itself, and a sender can write what he likes there. So the model bounds what context
can take away from the score.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from zlib import crc32

from bridge.service.detection import body, sender, targets
from bridge.service.detection.material import Material

WORD_BITS = 15
MAX_WORDS = 250  # different words of the text
_ADDRESS = re.compile(r"[^\s@<>]{1,64}@[^\s@<>]{1,100}")  # whose words say nothing about others
_WORD = re.compile(r"[^\W\d_]{3,20}")


@dataclass(frozen=True, slots=True)
class Signals:
    tags: dict[str, str]  # the tag, and what it was found in, for the reasons
    context: frozenset[str]
    words: dict[int, str]  # the hash of each word, and the word


def of(material: Material, other_tags: Collection[str] = ()) -> Signals:
    """The signals of a mail. `other_tags` are those that the inspection has already found."""
    material.read()
    who = sender.Sender(material)
    text = body.text_of(material)
    tags = dict.fromkeys((tag for tag in other_tags if tag.startswith(("url:", "header:"))), "")
    for tag, found in (
        *sender.signals(who),
        *targets.signals(material, who),
        *body.signals(material, who, text),
    ):
        tags.setdefault(tag, found)
        tags[tag] = tags[tag] or found
    return Signals(tags, frozenset(_context(material, who)), dict(_words(who, text)))


def _context(material: Material, who: sender.Sender) -> Iterator[str]:
    if who.is_list:
        yield "context:list"
    if who.is_reply:
        yield "context:reply"
    if not material.pages:
        yield "context:plain-text"
    elif not material.plain:
        yield "context:html-only"
    if who.is_aligned:
        yield "context:aligned"
    if material.names:
        yield "context:attachment"


def _words(who: sender.Sender, text: str) -> Iterator[tuple[int, str]]:
    for word in set(_WORD.findall(_ADDRESS.sub(" ", who.subject.lower()[:300]))):
        yield _hash("subject " + word), "subject " + word
    for word in set(_WORD.findall(_ADDRESS.sub(" ", who.name.lower()[:100]))):
        yield _hash("name " + word), "name " + word
    text = _ADDRESS.sub(" ", text[:3000]) if "@" in text else text[:3000]
    for count, word in enumerate(dict.fromkeys(_WORD.findall(text))):
        if count >= MAX_WORDS:
            return
        yield _hash(word), word


def _hash(word: str) -> int:
    return crc32(word.encode("utf-8", "replace")) & ((1 << WORD_BITS) - 1)
