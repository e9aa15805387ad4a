"""What the name of a domain says about it, without asking anyone.

The lists (`data/*.txt`) are short and reviewed by hand: providers of free mailboxes, link shorteners, hosts where
anyone can put a page within minutes, and top-level domains that phishing uses far more often than other mail does. A
name on a list proves nothing; the model weighs it. The top-level domains are those of the public suffix list
(2024), with all two-letter codes counted as existing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

DATA = Path(__file__).parent / "data"


def names_in(file: str) -> frozenset[str]:
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


_TLDS = names_in("tlds.txt")
_SECOND_LEVEL = names_in("second_level.txt")

FREEMAIL = names_in("freemail.txt")
SHORTENERS = names_in("shorteners.txt")
HOSTING = names_in("hosting.txt")
ABUSED_TLDS = names_in("abused_tlds.txt")


def registered(host: str) -> str:
    """The part of a host name that somebody registered: `a.b.example.co.uk` is part of `example.co.uk`."""
    labels = host.rsplit(".", 3)
    if len(labels) < 3:
        return host
    is_deep = len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVEL
    return ".".join(labels[-3:] if is_deep else labels[-2:])


def name_of(host: str) -> str:
    """The label that was chosen: `example` of `www.example.co.uk`."""
    return registered(host).partition(".")[0]


def exists(host: str) -> bool:
    """Whether it can be a name on the internet at all."""
    name, dot, top = host.rpartition(".")
    if not dot or not name or not _LABELS.fullmatch(host):
        return False
    return (len(top) == 2 and top.isalpha()) or top in _TLDS


_LABELS = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9])?")


# Names of networks that are not part of the internet: RFC 6762 (appendix G), RFC 8375, ICANN's .internal, and habits.
_INTERNAL = frozenset(
    [
        *("local", "localdomain", "localhost", "lan", "home", "home.arpa", "corp", "private"),
        *("internal", "intern", "intranet", "intra"),
    ]
)


def is_internal(host: str) -> bool:
    """Whether it can be a name within somebody's own network."""
    return "." in host and in_list(host, _INTERNAL) and _LABELS.fullmatch(host) is not None


def in_list(host: str, names: frozenset[str]) -> bool:
    """Whether the host or a domain above it is listed."""
    while host:
        if host in names:
            return True
        host = host.partition(".")[2]
    return False


def is_abused(host: str) -> bool:
    labels = host.rsplit(".", 2)
    return labels[-1] in ABUSED_TLDS or ".".join(labels[-2:]) in ABUSED_TLDS


_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6,}")
_SWITCHES = re.compile(r"[a-z](?=[0-9])|[0-9](?=[a-z])")
_VOWEL = re.compile("[aeiouy]")
_COMMON_RUNS = re.compile(r"schw|nstr|ghts|rchs|tsch|chst|ngth|rldw|html|http")
_RARE_PAIR = re.compile(  # of letters, in the languages of Europe
    r"(?=b[kqx]|c[bfgjpvwx]|dx|f[kqvxz]|g[qvx]|h[kvxz]|iy|j[bcdfghklmnpqrstvwxyz]|k[qvxz]|l[qx]|m[gjqxz]|p[qvx]"
    r"|q[a-tv-z]|sx|t[qx]|v[bcdfghjkmnpqtwxz]|w[qvxz]|x[bgjkvz]|y[qvz]|z[bcghjnqrsx])"
)


@lru_cache(8192)
def looks_random(label: str) -> bool:
    """A name that nobody can pronounce: `xk3d9qz1`, `vbnqwrtk`."""
    label = label[:63].lower()
    letters = sum(map(str.isalpha, label))
    if len(label) < 6 or letters < 4 or label.startswith("xn--"):
        return False
    if len(_SWITCHES.findall(label)) >= 3 or len(_RARE_PAIR.findall(label)) >= 2:
        return True
    plain = "".join(filter(str.isalpha, label))
    if _CONSONANTS.search(_COMMON_RUNS.sub("a", label)):
        return True
    return len(plain) >= 8 and len(_VOWEL.findall(plain)) <= len(plain) // 6
