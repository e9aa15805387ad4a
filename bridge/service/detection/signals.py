"""All signals of one mail: tags with what they were found in, the context they are weighed in, and the words.

Signals that mean something by themselves become tags; weaker ones only count in the model. The context (a mailing
list, an answer, plain text) does not become a tag: it says nothing about a mail by itself, and a sender can write
anything there. So the model limits how much context can subtract from the score.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

from bridge.service.detection import body, link_targets, sender
from bridge.service.detection.material import Material

WORD_BITS = 15
_MASK = (1 << WORD_BITS) - 1
MAX_WORDS = 250  # different words of the text
_ADDRESS = re.compile(r"[^\s@<>]{1,64}@[^\s@<>]{1,100}")  # whose words say nothing about other mails
_UNSUBSCRIBE = (  # searched for one by one, in a tenth of the time of a pattern
    *("unsubscribe", "opt out", "opt-out", "optout", "abmelden", "abbestellen", "descadastr", "cancelar inscri"),
    *("darse de baja", "d\u00e9sabonn", "d\u00e9sinscri", "disiscri", "uitschrijven"),
)
_SHORTEST_WORD, _LONGEST_WORD = 3, 20
_WORD = re.compile(rf"[^\W\d_]{{{_SHORTEST_WORD},{_LONGEST_WORD}}}")
CONTEXT = "context:"  # how its names begin


# These count, but are too common in legitimate mail to be tags: a tag should mean something by itself.
_QUIET_GROUPS = ("text:", "subject:")
QUIET = frozenset(
    {
        "html:button",
        "html:one-link",
        "html:script",
        "html:form",
        "html:base",
        "sender:no-recipient",
        "sender:deep-domain",
        "sender:random-subdomain",
        "sender:random-name",
        "sender:abused-tld",
        "url:abused-tld",
        "url:all-foreign",
        "url:deep-host",
        "url:escaped",
        "url:main-suspicious",
        "url:mostly-not-the-brand",
        "url:opaque",
        "url:port",
        "url:random-subdomain",
        "url:redirect",
        "url:single-foreign-site",
    }
)


def is_tag(name: str) -> bool:
    """Whether a signal is shown as a tag of the mail; `explain` shows the others as well."""
    return name not in QUIET and not name.startswith(_QUIET_GROUPS)


@dataclass(frozen=True, slots=True)
class Signals:
    tags: dict[str, str]  # the tag, and what it was found in, for the reasons
    context: frozenset[str]
    words: dict[int, str]  # the hash of each word, and the word


def of(material: Material, other_tags: Collection[str] = ()) -> Signals:
    """The signals of a mail. `other_tags` are those that the inspection has already found."""
    material.read()
    who = sender.Sender(material)
    texts = body.texts_of(material)
    text = " ".join(texts)
    tags = dict.fromkeys((tag for tag in other_tags if tag.startswith(("url:", "header:"))), "")
    for tag, found in (
        *sender.signals(who),
        *link_targets.signals(material, who),
        *body.signals(material, who, text),
    ):
        tags.setdefault(tag, found)
        tags[tag] = tags[tag] or found
    return Signals(tags, frozenset(_context(material, who, text)), _words(who, texts))


def _context(material: Material, who: sender.Sender, text: str) -> Iterator[str]:
    if who.is_list:
        yield "context:list"
    if who.is_reply:
        yield "context:reply"
    if not material.pages:
        yield "context:plain-text"
    if who.is_aligned:
        yield "context:aligned"
    if any(map(text.__contains__, _UNSUBSCRIBE)):
        yield "context:unsubscribe"


def _words(who: sender.Sender, texts: list[str]) -> dict[int, str]:
    words = [f"subject {word}" for word in set(_words_in(who.subject.lower()[:300]))]
    words += [f"name {word}" for word in set(_words_in(who.name.lower()[:100]))]
    for text in texts:
        words += islice(dict.fromkeys(_words_in(text[:3000])), max(MAX_WORDS // len(texts), 1))
    return {crc32(word.encode("utf-8", "replace")) & _MASK: word for word in words}


def _words_in(text: str) -> list[str]:
    """Without those in addresses, which are searched for only where there is an "@": the pattern takes long."""
    if "@" in text:
        text = " ".join([_ADDRESS.sub(" ", piece) if "@" in piece else piece for piece in text.split()])
    found = body.words_of(text, _WORD, _SPACES)
    if max(map(len, found), default=0) > _LONGEST_WORD:  # the pattern splits it
        return _WORD.findall(text)
    return [word for word in found if len(word) >= _SHORTEST_WORD]


_SPACES = body.spaces_but(_WORD)
