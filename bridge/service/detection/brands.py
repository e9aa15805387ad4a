"""The brands that phishing impersonates, and the domains from which they write themselves.

A brand is recognised in a text whatever letters it is written with: accents, full-width letters and the look-alikes
of Cyrillic, Greek and Cherokee count as the Latin letter they resemble. Names that are ordinary words as well (Apple,
Target, Ledger) count only if the rest of the text is words like "support" or "team".
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from bridge.service.detection.domains import DATA, name_of, names_in, registered

_FILLERS = names_in("fillers.txt")
_LETTERS: dict[int, int] = (
    str.maketrans(  # Cyrillic, Greek, Cherokee and small capitals; Lisu; Armenian; Latin with hooks
        "аеорсухіјѕԁһԛԝӏвмнткгпᴀʙᴄᴅᴇɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢαβγεικνορτυχωÐðØøŁłıᎪᏴᏟᎠᎬᏀᎻᏆᎫᏦᏞᎷΝᎾᏢᏒᏚᎢᏙᎳᏃꮮ"
        "ꓐꓑꓓꓔꓖꓗꓙꓚꓜꓝꓟꓠꓡꓢꓣꓦꓧꓪꓫꓬꓮꓰꓲꓳꓴօոսհցզյալɑƥɓɗɠɦƙɱɲɳɵƭʋƴħŧđɩɭɫɡʂ",
        "aeopcyxijsdhqwlbmhtkrnabcdeghijklmnoprstuvwyzabyeiknoptuxwddoolliabcdeghijklmnoprstvwzl"
        "bpdtgkjczfmnlsrvhwxyaeiouonuhgqjwlapbdghkmnnotvyhtdillgs",
    )
)
# Letters in boxes and circles, and those that flags consist of.
_LETTERS |= {first + n: ord("a") + n for first in (0x1F150, 0x1F170, 0x1F1E6) for n in range(26)}
_LOOKALIKES = {ord(chr(letter).lower()): latin for letter, latin in _LETTERS.items()} | _LETTERS  # of Cherokee, too
_LOOKALIKE = frozenset(map(chr, _LOOKALIKES))
_UNSEEN = re.compile(
    "[\u0300-\u036f\u00ad\u061c\u115f\u1160\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20d0-\u20ff\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e01ef]+"
)
_BACKWARDS = re.compile("\u202e([^\u202c]*)\u202c?")  # shown from right to left
_TOKEN = re.compile(r"[a-z0-9+&]+(?:[.-][a-z0-9]+)*")


def _table(file: str) -> dict[str, frozenset[str]]:
    text = (DATA / file).read_text(encoding="utf-8")
    lines = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {
        name.replace("_", " "): frozenset((*rest.split(), re.sub(r"[ .].*|\W", "", name.replace("_", ""))))
        for name, _, rest in lines
    }


CERTAIN, WORDS = _table("brands.txt"), _table("brand_words.txt")
_ALL = {**WORDS, **CERTAIN}
_LONG = frozenset(name.replace(" ", "") for name in _ALL if len(name) >= 6 and name.isascii())


_IMITABLE = frozenset(name for name in CERTAIN if len(name) >= 5 and name.isascii() and name.isalpha())


def _pattern(names: dict[str, frozenset[str]]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile(r"(?<![a-z0-9])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![a-z0-9])")


_CERTAIN_NAME = _pattern(CERTAIN)
_SQUEEZED = re.compile("|".join(sorted(map(re.escape, _LONG), key=len, reverse=True)))


def skeleton(text: str) -> str:
    """The text as it looks: lower-case Latin letters, without accents, invisible characters and decoration."""
    if text.isascii():
        return text.lower()
    text = _BACKWARDS.sub(lambda match: match[1][::-1], text[:2000])
    plain = unicodedata.normalize("NFKD", text).lower()
    if not _LOOKALIKE.isdisjoint(plain):  # few texts have any, and translating takes long (Python 3.11)
        plain = plain.translate(_LOOKALIKES)
    return _UNSEEN.sub("", plain)


@lru_cache(2048)
def claimed(text: str) -> str:
    """The brand that a display name claims to be; "" if none."""
    shown = " ".join(skeleton(text[:200]).replace("_", " ").replace("'", "").split())
    found = _CERTAIN_NAME.search(shown)
    if found:
        return found[0]
    tokens = _TOKEN.findall(shown)
    if sum(len(token) == 1 for token in tokens) >= 4 and (spaced := _SQUEEZED.search("".join(tokens))):
        return spaced[0]
    for token in tokens:
        if imitated_name := _imitated_name(token):
            return imitated_name
    rest = [token for token in tokens if token not in _FILLERS and not token.isdigit()]
    name = " ".join(rest)
    return name if name in WORDS else ""


def _imitated_name(token: str) -> str:
    """The brand that a word looks like, with digits for letters, two letters for one, or dots in it: `paypa1`."""
    if token.isalpha() and not ("rn" in token or "vv" in token):
        return ""
    plain = re.sub("[.-]", "", token)
    letters = plain if plain.isdigit() else plain.translate(_DIGITS)
    for reading in dict.fromkeys((letters, letters.replace("rn", "m").replace("vv", "w"))):
        if reading != token and reading in _IMITABLE:
            return reading
    return ""


def mentioned(text: str) -> str:
    """The brand that a subject or a text names first; ordinary words do not count."""
    shown = skeleton(text[:500]).replace("'", "")
    if _FIRST_WORDS.isdisjoint(_PIECE.findall(shown)):
        return ""
    found = _CERTAIN_NAME.search(shown)
    return found[0] if found else ""


_PIECE = re.compile(r"[a-z0-9]+")
_FIRST_WORDS = frozenset(match[0] for match in map(_PIECE.match, CERTAIN) if match)


def owns(brand: str, host: str) -> bool:
    """Whether the brand itself uses this domain. A brand has its name under many top-level domains."""
    labels = _ALL.get(brand, frozenset())
    name = name_of(host)
    top = host.rpartition(".")[2]
    return top in labels or (name in labels and (len(top) == 2 or top in _USUAL)) or registered(host) == brand


def are_related(first: str, second: str) -> bool:
    """Whether two domains belong to one brand: Microsoft writes from `microsoft.com` about `live.com`."""
    return not _OWNERS.get(name_of(first), _NOBODY).isdisjoint(_OWNERS.get(name_of(second), _NOBODY))


_NOBODY: frozenset[str] = frozenset()
_OWNERS: dict[str, frozenset[str]] = {
    label: frozenset(brand for brand, labels in _ALL.items() if label in labels)
    for label in frozenset().union(*_ALL.values())
}


_USUAL = frozenset({"com", "net", "org", "io", "bank", "eu", "app", "email", "info", "gov", "biz", "jus", "group"})
_DIGITS = str.maketrans("013458", "oleasb")


@lru_cache(4096)
def imitated(host: str) -> str:
    """The brand whose name is in a host that is not its own: `paypal.com.evil.example`, `paypa1.example`."""
    if "xn--" in host:
        host = _decoded(host)
    plain = skeleton(host)
    for text in dict.fromkeys((plain, plain.translate(_DIGITS))):
        found = _IN_HOST.search(text)
        if found and not owns(_BY_SQUEEZED[found[0]], host) and not _owner(host):
            return _BY_SQUEEZED[found[0]]
    return ""


def _owner(host: str) -> bool:
    """Whether any brand uses this domain: `facebook.com.example` is not Facebook's, but `amazonaws.com` is Amazon's."""
    name, top = name_of(host), host.rpartition(".")[2]
    return name in _LABELS and (len(top) == 2 or top in _USUAL)


_LABELS = frozenset().union(*_ALL.values())
_BY_SQUEEZED = {
    re.sub(r"\W", "", name): name for name in CERTAIN if len(re.sub(r"\W", "", name)) >= 5 and "." not in name
}
_IN_HOST = re.compile("|".join(sorted(_BY_SQUEEZED, key=len, reverse=True)))


def _decoded(host: str) -> str:
    try:
        return ".".join(
            label[4:].encode("ascii").decode("punycode") if label.startswith("xn--") and len(label) < 64 else label
            for label in host[:253].split(".")
        )
    except UnicodeError:
        return host
