"""Entries that affect far more mail than people expect: a large provider, the whole Internet, one's own domain.

One such line in a block list refuses the mail of millions of people, and in an allow list lets every forged mail
through. They are sometimes wanted, so this only says why an entry is dangerous; the command line then asks for
`--force`. An entry is judged in the spelling in which the service compares it, and by its form where the list's
category is not known.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress

from bridge.mail.address import comparable_domain
from bridge.matching import spelling

_WIDEST_V4, _WIDEST_V6 = 16, 32  # shorter prefixes are dangerous: 65,536 addresses, and all of one Internet provider
_PRIVATE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Providers with one name and many endings (yahoo.co.jp, hotmail.fr), and others.
_NAMES = _words(
    "gmail googlemail hotmail outlook live msn yahoo ymail rocketmail aol icloud gmx yandex proton protonmail zoho "
    "fastmail tutanota"
)
_PROVIDERS = _words(
    "126.com 139.com 163.com amazon.com amazonses.com att.net bellsouth.net bigpond.com bluewin.ch bol.com.br "
    "btinternet.com charter.net comcast.net cox.net daum.net earthlink.net facebook.com free.fr freenet.de google.com "
    "hanmail.net hey.com inbox.ru kabelmail.de laposte.net libero.it linkedin.com list.ru mac.com mail.com mail.de "
    "mail.ru mailbox.org mailchimp.com mailgun.org me.com microsoft.com naver.com ntlworld.com office365.com "
    "onmicrosoft.com orange.fr pm.me posteo.de qq.com rambler.ru rediffmail.com sapo.pt seznam.cz sendgrid.net sfr.fr "
    "shaw.ca sina.com sky.com sohu.com t-online.de talktalk.net telenet.be terra.com.br tuta.com tuta.io ukr.net "
    "uol.com.br verizon.net virginmedia.com wanadoo.fr web.de wp.pl xs4all.nl xtra.co.nz ziggo.nl"
)
_SECOND_LEVEL = _words("ac co com edu gob gouv gov go ltd mil ne net nom or org plc sch")
_ANYTHING = re.compile(r"[@.]*[*%?][*@.%?]*")
_EMPTY_FILE = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class Dangers:
    """Judges entries; `own` are the domains that belong to the operator."""

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = {name for domain in own if (name := comparable_domain(domain.strip().lstrip("@.")))}

    def may_be(self, entry: str) -> bool:
        """Whether an entry is dangerous in a list of any category: quick, because nearly all entries are not."""
        text = entry.strip()
        if "@" in text[2:] and "*" not in text and not text.endswith("@"):  # an address
            return False
        if _ANYTHING.fullmatch(text) or _EMPTY_FILE in text.lower():
            return True
        if "/" in text and (_of_network(text) or self.reason("url", text)):
            return True
        return bool(self.reason("sender", text))

    def reason(self, category: str, entry: str) -> str:
        """Why this entry is dangerous in a list of this category; "" if it is not."""
        text = entry.strip().strip("<>").strip()
        if _ANYTHING.fullmatch(text):
            return "it matches everything"
        match category:
            case "sender" | "domain" | "url":
                return self._of_domain(_whole_domain(category, text))
            case "network":
                return _of_network(text)
            case "attachment":
                return "it matches every empty file" if _EMPTY_FILE in text.lower() else ""
            case _:
                return self._of_unknown(text)

    def _of_unknown(self, text: str) -> str:
        """Without a known category, a single word may mean anything."""
        found = _of_network(text)
        name = _whole_domain("sender", text)
        return found or (self._of_domain(name) if "." in name or text[:1] in "@*." else "")

    def _of_domain(self, name: str) -> str:
        if not name:
            return ""
        if _is_suffix(name):
            hint = "" if "." in name else "; a single address or domain is written as user@example.org or example.org"
            return f"it matches every domain that ends in .{name}{hint}"
        if any(own == name or own.endswith(f".{name}") for own in self._own):
            return f"{name} is your own domain"
        first, _, rest = name.partition(".")
        if name in _PROVIDERS or (first in _NAMES and _is_suffix(rest)):
            return f"{name} is a large mail provider: millions of people send mail from it"
        return ""


def _whole_domain(category: str, text: str) -> str:
    """The domain that an entry lists as a whole; "" for a single address, and for what is not valid anyway."""
    with suppress(ValueError):
        normal = spelling.normalise(category, text)
        if category != "sender":
            return normal
        return normal[1:] if normal.startswith("@") else ""
    with suppress(ValueError):  # @.com, @*.gmail.com: our service refuses them, another one may not
        return spelling.domain(re.sub(r"^[@*.]+", "", text)) if text[:1] in "@*." else ""
    return ""


def _is_suffix(name: str) -> bool:
    """A top-level domain, or one such as co.uk, below which anybody can register a domain."""
    labels = name.split(".")
    is_literal = name[:1] == "["
    return not is_literal and (
        len(labels) == 1 or (len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVEL)
    )


def _of_network(text: str) -> str:
    try:
        network = spelling.network(text)
    except ValueError:
        return ""
    bits, widest = network.prefixlen, _WIDEST_V4 if network.version == 4 else _WIDEST_V6
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        bits, widest = bits - 96, _WIDEST_V4
    if bits >= widest or any(net.version == network.version and network.subnet_of(net) for net in _PRIVATE):  # type: ignore[arg-type]
        return ""
    if bits == 0:
        return "it matches every address"
    return f"a network of /{network.prefixlen} is very wide"
