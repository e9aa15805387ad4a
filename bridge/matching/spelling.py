"""The canonical spelling of an entry, depending on the category of its list.

An entry that can never match would be an unnoticed gap in the protection, so it is refused when it
is added. Entries and mail are normalised the same way: `User@Example.ORG` and `user@example.org` are
the same sender.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from bridge.mail.address import comparable_address, comparable_domain
from bridge.runtime.ip import ip_in_link

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_ENTRY = 512
MAX_COMMENT = 2000

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LOCAL = re.compile(r'[^\s@<>"(),:;\\\[\]]{1,64}|"[^"\r\n]{1,62}"')
_LITERAL = re.compile(r"\[[A-Za-z0-9:.-]{1,100}\]")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMERIC = re.compile(r"(?:.*\.)?[0-9]+\.?")  # the beginning of an IP address: no top-level domain is a number
_AUTHORITY = re.compile(r"(?:(?:[a-z][a-z0-9+.-]*:)?[/\\]{2,}|https?:[/\\]?)?([^/\\?#]*)", re.IGNORECASE)
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]{0,5})?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def normalise(category: str, entry: str) -> str:
    """The canonical spelling of an entry. Raises ValueError, with an example of a valid entry."""
    if category == "network":
        certain_network(entry)
    for kind, text in _addresses(category, entry):
        _refuse_patterns(category, kind, text)
        _refuse_ip(category, text)
    normal = stored(category, entry)
    for _, text in _addresses(category, normal):
        _refuse_ip(category, text)  # such as 192.0.2.1 with a trailing dot, or in other digits
    return normal


def _addresses(category: str, entry: str) -> Iterator[tuple[str, str]]:
    """What an entry says about senders and recipients, with the kind of each."""
    if category in ("sender", "domain"):
        yield category, entry.strip().strip("<>")
    elif category == "personal":
        kinds = ("recipient", "sender")
        yield from ((kind, word.strip("<>")) for kind, word in zip(kinds, entry.split(), strict=False))


def stored(category: str, entry: str) -> str:
    """The same for an entry that may have been added before such entries were refused: it can still be deleted."""
    if _CONTROL.search(entry):
        raise ValueError("an entry must not contain control characters")
    normaliser = _NORMALISERS.get(category)
    return normaliser(entry.strip()) if normaliser else entry


def stored_before(category: str, entry: str) -> str:
    """How earlier versions stored it: they did not parse the host of a URL as browsers do. Raises ValueError."""
    if category != "url":
        return stored(category, entry)
    text = entry.strip()
    return domain(re.sub(r"^(\*\.|\.)", "", urlsplit(text if "//" in text else f"//{text}").hostname or ""))


_PERSONAL = "anna@example.org news@shop.example"
_EXAMPLES = {
    "domain": "example.org",
    "sender": "user@example.org, or @example.org for a whole domain",
    "personal": _PERSONAL,
}


def _refuse_ip(category: str, text: str) -> None:
    """No domain is an IP address: the entry is meant for a list of networks."""
    local, _, host = text.rpartition("@")
    if local in ("", "*") and (_ip(host.strip("[]")) or _NUMERIC.fullmatch(host)):
        raise ValueError(
            "an IP address never matches here: add it to a list of networks; "
            f"this list has entries such as {_EXAMPLES[category]}"
        )


def _refuse_patterns(category: str, kind: str, text: str) -> None:
    """`x*@example.org` is meant as a pattern. An address with a real `*` can be listed in quotes."""
    local = text.rpartition("@")[0]
    is_whole_domain = kind == "sender" and local == "*"
    if kind != "domain" and "*" in local and not is_whole_domain and local[:1] != '"':
        raise ValueError(f"a * inside an address never matches: add an entry such as {_EXAMPLES[category]}")


def one_sender(sender: str) -> str:
    """The entry about the sender of a mail, and about nobody else. Raises ValueError.

    The sender of the mail chooses this text. A person who types `*@example.org` or `example.org` means a whole domain;
    in a mail, these are an odd address and one without a domain. In quotes, a `*` is a character of the address.
    """
    local, _, host = sender.rpartition("@")
    entry = f'"{local}"@{host}' if "*" in local and local[:1] != '"' else sender
    if normalise("sender", entry).startswith("@"):
        raise ValueError("not an address such as user@example.org")
    return entry


def is_clean(comment: str) -> bool:
    return len(comment) <= MAX_COMMENT and not re.search(r"[\x00\ud800-\udfff]", comment)


def domain(text: str) -> str:
    """A domain in lower-case ASCII. Raises ValueError."""
    name = comparable_domain(text)
    if len(name) > 253 or not _DOMAIN.fullmatch(name):
        raise ValueError("not a domain such as example.org")
    return name


def address(text: str) -> str:
    """An e-mail address, with its domain in lower-case ASCII and its local part in lower case."""
    local, _, host = text.rpartition("@")
    if not host or not _LOCAL.fullmatch(local):
        raise ValueError("not an address such as user@example.org")
    if not _LITERAL.fullmatch(host):
        domain(host)
    return comparable_address(text)


def _sender(text: str) -> str:
    """An address, or `@domain` for all addresses of a domain."""
    text = text.strip("<>")
    if text.startswith(("@", "*@")):
        return "@" + domain(text.partition("@")[2])
    if "@" not in text:
        try:
            return "@" + domain(text)
        except ValueError:
            raise ValueError(f"not a sender such as {_EXAMPLES['sender']}") from None
    return address(text)


def personal(text: str) -> str:
    """A recipient, and a sender that the entry is about: `anna@example.org news@shop.example`."""
    words = text.split()
    try:
        recipient, sender = words
        return f"{address(recipient.strip('<>'))} {_sender(sender)}"
    except ValueError:
        raise ValueError(f"expected a recipient and a sender, separated by a space, such as {_PERSONAL}") from None


def _domain(text: str) -> str:
    return domain(re.sub(r"^(\*\.|\.|@)", "", text))


def network(text: str) -> Network:
    """A network; a single address becomes a network of one. Raises ValueError."""
    try:
        if "%" in text:  # an IPv6 zone is meaningless on another machine
            raise ValueError
        return _as_ipv4(ipaddress.ip_network(text.strip(), strict=False))
    except ValueError:
        raise ValueError("not an IP address or network such as 192.0.2.0/24") from None


def certain_network(text: str) -> Network:
    """The same, unless it has two meanings: 192.0.2.1/0.0.0.0 is a netmask or a wildcard mask. Raises ValueError."""
    if text.strip().endswith("/0.0.0.0"):
        raise ValueError("ambiguous: write 0.0.0.0/0 for all addresses, or the address alone")
    return network(text)


def _as_ipv4(network: Network) -> Network:
    """`::ffff:192.0.2.0/120` as 192.0.2.0/24: the addresses of clients are converted in the same way."""
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        first = network.network_address.ipv4_mapped
        return ipaddress.IPv4Network((first, network.prefixlen - 96)) if first else network
    return network


def _url(text: str) -> str:
    """The host of a URL, as browsers find it: lists match hosts, not paths. An IPv6 address may have brackets or not.

    Such URLs come from deceptive mail: to browsers, a backslash is a slash, and any number of slashes counts as two.
    """
    if ip := _ip(text):
        return ip
    authority = _AUTHORITY.match(text)
    found = _HOST.fullmatch(authority[1].rpartition("@")[2]) if authority else None
    host = (found[1] or found[2]) if found else ""
    ip = ip_in_link(comparable_domain(host))
    return ip or domain("" if ip == "" else re.sub(r"^(\*\.|\.)", "", host))


def _ip(text: str) -> str | None:
    """An IP address in canonical form; None for anything else, and for an IPv6 address with a zone."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return None if ip.scope_id is not None else str(ip.ipv4_mapped or ip)


def _attachment(text: str) -> str:
    digest = text.lower().removeprefix("sha256:")
    if not _SHA256.fullmatch(digest):
        raise ValueError("not a SHA-256 digest of 64 hex digits")
    return digest


_NORMALISERS: dict[str, Callable[[str], str]] = {
    "sender": _sender,
    "domain": _domain,
    "network": lambda text: str(network(text)),
    "url": _url,
    "attachment": _attachment,
    "personal": personal,
}
