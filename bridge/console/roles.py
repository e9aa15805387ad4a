"""Who looks at the console, and what they may do.

A role includes the ones before it. A person sees all mail, or the mail of named tenants only; in the
latter case, mail that belongs to no tenant is hidden. If this is wrong, people can read other people's mail.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

Tenants = frozenset[str] | None  # None: all mail


class Role(IntEnum):
    VIEWER = 1  # looks
    RELEASER = 2  # releases, deletes and reports mail, and changes lists
    ADMIN = 3  # sees settings, people and the audit log, and reloads

    @classmethod
    def named(cls, name: str) -> Role:
        """Raises ValueError."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"{name!r} is not a role: expected {', '.join(map(str, cls))}") from None

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Person:
    """A signed-in user."""

    name: str
    role: Role
    tenants: Tenants = None
    provider: str = ""  # "": a local user; otherwise the issuer that vouches for the subject
    subject: str = ""  # the provider's id of this person; unlike a name or an address, it is never given to another
    group: str = ""  # the provider's, to which the configuration gives these rights

    @property
    def key(self) -> str:
        """Identifies the person: the issuer and the subject, or the name of a local user."""
        return f"{self.provider}\n{self.subject if self.provider else self.name}"

    @property
    def shown(self) -> str:
        """For lists of people: a local user and a person of the provider may have the same name."""
        return f"{self.name} ({self.provider.partition('://')[2].partition('/')[0]})" if self.provider else self.name

    @property
    def signature(self) -> str:
        """For records outside the console, where an entry must always name the same person."""
        return f"{self.shown} {self.subject[:100]}" if self.subject else self.shown

    @property
    def sees_everything(self) -> bool:
        return self.tenants is None

    def may(self, role: Role, *, all_tenants: bool = False) -> bool:
        """Whether this person has the role, and, if asked for, access to the mail of all tenants."""
        return self.role >= role and (self.sees_everything or not all_tenants)

    def may_see(self, tenant: str) -> bool:
        """`tenant` is "" for mail that belongs to none."""
        return self.tenants is None or (bool(tenant) and tenant in self.tenants)


def tenants_to_text(tenants: Tenants) -> str:
    """For the database: `*` is all mail, so that an empty text can never mean that."""
    return "*" if tenants is None else ",".join(sorted(tenants))


def tenants_from_text(text: str) -> Tenants:
    return None if text == "*" else frozenset(filter(None, text.split(",")))
