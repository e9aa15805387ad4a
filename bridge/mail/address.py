"""The domain of a mail address, in the one spelling in which domains are compared.

Tenants, policies, routes, lists and the service's analyses all choose by domain. `user@example.org.`,
`USER@EXAMPLE.ORG` and, for an internationalised domain, its Unicode form and its `xn--` form are the same domain to the
mail server behind us. If one of our components read them differently, a mail would miss its tenant, its policy, its
lists or its next hop. Only comparisons use this spelling: what is sent on stays as it came.

International domains follow UTS 46 without the transitional rules, as mail servers and browsers do (the tables are
those of the package `idna`): `stra\u00dfe.example` is not `strasse.example`, which may have another owner. Python's own
codec implements IDNA 2003, where they are equal. Labels that the standard does not allow (an emoji, a joiner) are
converted too, since some server may accept them. Nothing here raises. The time is bounded: input longer than any
address, without the characters that do not count, is not converted, nor is a label that would be longer than DNS
allows; and what was converted is remembered, because each step of a mail asks again for each recipient.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from bisect import bisect
from functools import cached_property, lru_cache

import idna

MAX_DOMAIN = 2048  # characters: as many as in a milter's address; a name may contain characters that are ignored
_MAX_NAME, _MAX_LABEL = 253, 63  # RFC 1035 2.3.4, without the trailing dot
_MAX_WRITTEN = 255  # characters of a domain: a longer one is not a name, or is full of ignored characters
_MAX_ADDRESS = 1000  # characters; RFC 5321 4.5.3.1.3 allows 254, and mail servers somewhat more
_DOTS = re.compile("[.\u3002\uff0e\uff61]")  # UTS 46 section 2.3
_KEPT = r'("(?:[^"\\]|\\.)*"|\\.)'  # quoted text, or an escaped character, so that the time is linear
_COMMENT = re.compile(rf"{_KEPT}|\((?:[^()\\]|\\.)*\)", re.DOTALL)
_SPACE = re.compile(rf"{_KEPT}|[ \t]+", re.DOTALL)
_ODD = re.compile(r'["()<> \t]')  # in a domain: the @ before it may be part of a comment or of quoted text
_MAX_COMMENT_DEPTH = 8
_PLAIN_LOCAL = re.compile(r'[^\s@<>"(),:;\\\[\]]+')
_PLAIN_ADDRESS = re.compile(r"[a-z0-9._+=~#$&'*/?^`{|}-]+@[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?", re.IGNORECASE)
_QUOTED_LOCAL = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ROUTING = re.compile("[%!@:]")  # in a local part: mail servers read victim%example.org, example.org!victim, ...
_NO_NAME = re.compile(r'[\s%!@:;,<>()"\\\[\]]')
_JOINERS = "\u200c\u200d"
_IGNORED = re.compile(  # according to UTS 46, and joiners
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2064\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0100-\U000e01ef]+"
)


def domain_of(address: str) -> str:
    """The domain of an address, ready to be compared; empty if it has none (`postmaster`, the null sender)."""
    _, at, domain = address.rpartition("@")
    if not at:
        return ""
    name = _plain(domain) if len(domain) <= MAX_DOMAIN else None
    if name is not None:
        return name
    return _odd(address) if len(address) <= MAX_DOMAIN else comparable_domain(split_address(address)[1])


def comparable_address(address: str) -> str:
    """An address, ready to be compared: as people use them, local parts ignore letter case and needless quotes."""
    local, _, written = address.rpartition("@")
    if _PLAIN_LOCAL.fullmatch(local) and (name := domain_of(address)):  # nearly all addresses
        return f"{local.lower()}@{name}"
    local, written = split_address(address)
    domain = comparable_domain(written)
    if local[:1] == '"' == local[-1:]:
        plain = re.sub(r"\\(.)", r"\1", local[1:-1])
        local = plain if _PLAIN_LOCAL.fullmatch(plain) else local
    return f"{local.lower()}@{domain}" if domain else local.lower()


def spellings_of_recipient(address: str) -> tuple[str, ...]:
    """A recipient, ready to be compared: also as Postfix looks it up, if that is another address.

    Postfix folds case as Unicode defines it, in domains as well: `ma\u00df` is `mass`, and `\u017fales` is `sales`.
    """
    own = comparable_address(address)
    folded = own if address.isascii() else comparable_address(address.casefold())
    return (own,) if folded == own else (own, folded)


class KnownDomains(frozenset[str]):
    """The domains that something is configured for, ready to be compared."""

    @cached_property
    def first_labels(self) -> frozenset[str]:
        """Names without a dot that some mail servers complete to one of them."""
        return frozenset(domain.partition(".")[0] for domain in self if "." in domain)


_NONE = KnownDomains()


class LoggedAddress(str):
    """In the arguments of a log line: whatever it looks like, it is hidden as `log.addresses` says."""

    __slots__ = ()


def has_certain_domain(address: str, known: KnownDomains = _NONE, *, are_all: bool = True) -> bool:
    """Whether all mail servers deliver this recipient by the domain that `domain_of` finds.

    Many also take a local part with `%`, `!` or a quoted `@` for the real address, and add their own domain to an
    address without one. `postmaster` alone is valid (RFC 5321 4.5.1). An address literal means whatever mail that host
    takes, so it must be one of the `known` domains, except for `postmaster`. Some mail servers may read a domain as
    another one of those: see `_may_be_another`. `are_all`: nothing depends on any other domain.
    """
    if len(address) > _MAX_ADDRESS or len(address.rpartition("@")[2]) > _MAX_WRITTEN:
        return False  # no mail server can deliver it; finding out what it may mean would take too long
    if _PLAIN_ADDRESS.fullmatch(address):
        written = address.rpartition("@")[2]
        return "." in written[:-1] or not _may_be_another(comparable_domain(written), written, known, are_all)
    if address.lower() == "postmaster":
        return True
    if _without_comments(address).count("@") != 1:  # a source route, or an @ in the local part
        return False
    local, written = split_address(address)
    if _QUOTED_LOCAL.fullmatch(local):
        local = local[1:-1]
    elif not _PLAIN_LOCAL.fullmatch(local):
        return False
    if _ROUTING.search(local):
        return False
    domain = comparable_domain(written)
    if domain in known or (domain[:1] == "[" and local.lower() == "postmaster"):
        return True
    return domain != "" and not _NO_NAME.search(domain) and not _may_be_another(domain, written, known, are_all)


def _may_be_another(domain: str, written: str, known: KnownDomains, are_all: bool) -> bool:
    """Whether a mail server may take a domain, which is not one of the `known` ones, for one that is.

    Postfix folds case, and takes `stra\u00dfe.example` for its own domain `strasse.example`; for DNS, it has another
    owner. Many servers complete a name without a dot: with `append_dot_mydomain`, in DNS, or from a list of hosts.
    """
    if domain in known:
        return False
    if not are_all and "." not in domain:
        return True
    readings = {domain} if written.isascii() else {domain, comparable_domain(written.casefold())}
    return any(reading in known or reading in known.first_labels for reading in readings)


def split_address(address: str) -> tuple[str, str]:
    """Local part and domain as written: at the last @ outside quotes and comments; a source route is left out.

    A mail server that speaks milter may pass an address as its client wrote it: with comments, white space, a name.
    """
    if _ODD.search(address):
        address = _without_comments(address)
        if address.endswith(">"):  # Some Name <user@example.org>
            address = address[:-1].rpartition("<")[2]
    local, at, domain = address.rpartition("@")
    if not at or '"' in domain:  # `"a@b"` has no domain
        return address, ""
    if local[:1] == "@":  # <@relay.example,@other.example:user@example.org>
        local = local.rpartition(":")[2]
    return local, domain


def _without_comments(address: str) -> str:
    for _ in range(_MAX_COMMENT_DEPTH):  # the innermost first
        longer, address = address, _COMMENT.sub(lambda match: match[1] or "", address)
        if longer == address:
            break
    return _SPACE.sub(lambda match: match[1] or "", address)


@lru_cache(1024)  # the same domains come again and again; a hit costs as much as lower()
def _plain(domain: str) -> str | None:
    """None if the @ before it may not be where the domain begins."""
    return None if _ODD.search(domain) else comparable_domain(domain)


@lru_cache(1024)
def _odd(address: str) -> str:
    return comparable_domain(split_address(address)[1])


def comparable_domain(domain: str) -> str:
    """A domain as written in the configuration, an address or a URL, spelled the way `domain_of` spells it.

    In lower-case ASCII if it is a possible name; an address literal in its canonical form, with brackets.
    """
    if domain[:1] == "[":
        return _literal(domain.lower().rstrip("."))
    return (domain.lower() if domain.isascii() else _from_unicode(domain)).rstrip(".")


def _literal(name: str) -> str:
    """`[IPv6:2001:DB8:0::1]` is `[2001:db8::1]`; a literal of another kind stays as it is."""
    try:
        ip = ipaddress.ip_address(name[1:].removesuffix("]").removeprefix("ipv6:"))
    except ValueError:
        return name
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return f"[{mapped or ip}]"


def _from_unicode(domain: str) -> str:
    """Label by label from the right, up to the length of a name: beyond that, conversion is not worth the time."""
    if len(domain) > MAX_DOMAIN:
        characters = "".join(set(domain))  # looking at each only once takes a quarter of the time
        if _IGNORED.search(characters):
            domain = _IGNORED.sub("", domain)  # as many as a sender likes: browsers open the name that is left
    if len(domain) > MAX_DOMAIN:
        return domain.lower()
    labels, left = _DOTS.split(domain), _MAX_NAME
    done: list[str] = []
    while labels and left >= 0:
        *more, label = _mapped(labels.pop()).split(".")
        labels += more  # a character can stand for dots and letters, such as the ellipsis
        done.append(_ascii_label(label))
        left -= len(done[-1]) + 1
    return ".".join([*map(str.lower, labels), *reversed(done)])


def _mapped(label: str) -> str:
    """Lower-cased and composed, with full-width letters replaced and ignored characters removed (UTS 46 section 4)."""
    if label.isascii():
        return label.lower()
    characters = list(map(_mapped_character, label))
    if None in characters:  # not allowed
        return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).lower())
    return unicodedata.normalize("NFC", "".join(filter(None, characters)))


@lru_cache(8192)  # a tenth of the time: a mail may have a thousand recipients in such domains
def _mapped_character(character: str) -> str | None:
    try:
        return idna.uts46_remap(character, std3_rules=False)
    except UnicodeError:
        return None


def _ascii_label(label: str) -> str:
    """The `xn--` form; a label that has none, because it would be too long, stays as it is."""
    if not label.isascii():
        label = _without_stray_joiners(label)
    if label.isascii() or len(label) > _MAX_LABEL:
        return label
    encoded = _punycode(label, _MAX_LABEL - len("xn--"))
    return label if encoded is None else f"xn--{encoded}"


def _without_stray_joiners(label: str) -> str:
    """IDNA 2008 allows joiners in some scripts and forbids them elsewhere; IDNA 2003 ignored them."""
    if not any(joiner in label for joiner in _JOINERS):
        return label
    return "".join(char for i, char in enumerate(label) if char not in _JOINERS or _is_joining(label, i))


def _is_joining(label: str, position: int) -> bool:
    try:
        return len(label) <= _MAX_LABEL and idna.core.valid_contextj(label, position)
    except ValueError:
        return False


def _punycode(label: str, limit: int) -> str | None:
    """RFC 3492; None if the result would exceed the limit.

    Python's codec needs 1.5 ms for 59 different characters, and a mail can contain thousands of such labels; this
    takes at most 0.1 ms (3.11).
    """
    basic = "".join(c for c in label if c < "\x80")
    encoded = [basic + "-"] if basic else []
    length = len(basic) + bool(basic)
    present = [i for i, c in enumerate(label) if c < "\x80"]  # positions that the decoder has at this point
    code, index, bias = 128, 0, 72
    for other, position in sorted((ord(c), i) for i, c in enumerate(label) if c >= "\x80"):
        place, count = bisect(present, position), len(present) + 1
        delta = (other - code) * count + place - index
        digits = _digits(delta, bias)
        length += len(digits)
        if length > limit:
            return None
        encoded.append(digits)
        bias = _adapted(delta, count, is_first=len(present) == len(basic))
        present.insert(place, position)
        code, index = other, place + 1
    return "".join(encoded)


def _digits(number: int, bias: int) -> str:
    """A number in the variable-length code of RFC 3492 section 3.3."""
    found = ""
    k = 36
    while True:
        threshold = min(max(k - bias, 1), 26)
        if number < threshold:
            return found + _DIGITS[number]
        number, digit = divmod(number - threshold, 36 - threshold)
        found += _DIGITS[threshold + digit]
        k += 36


_DIGITS = "abcdefghijklmnopqrstuvwxyz0123456789"


def _adapted(delta: int, count: int, *, is_first: bool) -> int:
    """RFC 3492 section 3.4."""
    delta = delta // 700 if is_first else delta // 2
    delta += delta // count
    k = 0
    while delta > 455:
        delta //= 35
        k += 36
    return k + 36 * delta // (delta + 38)
