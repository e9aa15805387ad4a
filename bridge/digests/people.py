"""Whose address is this? Aliases, whole domains and address extensions that belong to one person.

Only people in the operator's own domains get digests: never a stranger, for example when outgoing mail is held. An
alias may be in another domain, because the operator wrote it down. If this is wrong, one person sees and releases
another's mail.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

from bridge.errors import ConfigError
from bridge.mail.address import KnownDomains, comparable_address, comparable_domain, domain_of, has_certain_domain
from bridge.runtime import root_as_owner, whole_file

_MAX_STEPS = 10  # an alias of an alias of ...


def read_aliases(text: str) -> dict[str, str]:
    """`alias owner`, `@domain owner` or `@domain @domain`, one per line; `#` begins a comment. Raises ValueError."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not all("@" in word for word in words):
            raise ValueError(f"line {number}: expected two addresses, an alias and its owner")
        alias, owner = map(_comparable, words)
        if owner.startswith("@") and not alias.startswith("@"):
            raise ValueError(f"line {number}: the owner of an address cannot be a domain")
        if found.setdefault(alias, owner) != owner:
            raise ValueError(f"line {number}: an earlier line gives this alias another owner")
    return found


def _comparable(word: str) -> str:
    return f"@{comparable_domain(word[1:])}" if word.startswith("@") else comparable_address(word)


class People:
    """`aliases` is a file that is read again when it changes."""

    def __init__(
        self, domains: Iterable[str], exclude: Iterable[str] = (), aliases: Path | None = None, delimiter: str = ""
    ) -> None:
        self._domains = KnownDomains(map(comparable_domain, domains))
        self._excluded = frozenset(map(_comparable, exclude))
        self._path = aliases
        self._delimiter = delimiter
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] = ()
        self._aliases: dict[str, str] = {}
        self._fingerprint: tuple[dict[str, str], str] | None = None  # of these aliases

    def person_of(self, recipient: str) -> str | None:
        """The address of the person behind the recipient; None if they get no digests. Raises ConfigError."""
        if not has_certain_domain(recipient, self._domains):
            return None
        address = comparable_address(recipient)
        person = self._owner(address)
        is_excluded = self._is_excluded(address) or self._is_excluded(person)
        return None if is_excluded or domain_of(person) not in self._domains else person

    def fingerprint(self) -> str:
        """A hash that changes when an address gets another owner. Raises ConfigError."""
        aliases = self.read_aliases()
        if self._fingerprint is None or self._fingerprint[0] is not aliases:  # called for every page
            whose = (sorted(self._domains), sorted(self._excluded), self._delimiter, sorted(aliases.items()))
            made = hashlib.sha256(repr(whose).encode("utf-8", "surrogatepass")).hexdigest()
            self._fingerprint = (aliases, made)
        return self._fingerprint[1]

    def _is_excluded(self, address: str) -> bool:
        return address in self._excluded or f"@{domain_of(address)}" in self._excluded

    def _owner(self, address: str) -> str:
        aliases = self.read_aliases()
        for _ in range(_MAX_STEPS):
            following = self._step(address, aliases)
            if following == address:
                break
            address = following
        return address

    def _step(self, address: str, aliases: dict[str, str]) -> str:
        if address in aliases:
            return aliases[address]
        local, _, domain = address.rpartition("@")
        if self._delimiter and self._delimiter in local[1:] and not local.startswith('"'):  # the quotes end after it
            return f"{local[0]}{local[1:].partition(self._delimiter)[0]}@{domain}"
        owner = aliases.get(f"@{domain}")
        if owner is None:
            return address
        return f"{local}{owner}" if owner.startswith("@") else owner

    def read_aliases(self) -> dict[str, str]:
        """Whose address is whose, as the file says now. Raises ConfigError."""
        if self._path is None:
            return self._aliases
        with self._lock:
            try:
                with root_as_owner.as_operator():
                    status = self._path.stat()
                    seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                    if seen != self._seen:
                        self._aliases = read_aliases(whole_file.read_text(self._path))
                        self._seen = seen
            except OSError as exc:
                raise ConfigError(f"digests.aliases_file: {self._path}: {exc.strerror}") from exc
            except ValueError as exc:
                raise ConfigError(f"digests.aliases_file: {self._path}: {exc}") from exc
            return self._aliases
