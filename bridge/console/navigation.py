"""The menu: which pages a person can go to. What they may do is decided by the routes, not here."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.console.roles import Person, Role


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    label: str
    icon: str  # in templates/macros.html
    role: Role = Role.VIEWER
    all_tenants: bool = False  # only for people who see all mail
    is_here: bool = False


ENTRIES = (
    Entry("/", "Overview", "pulse"),
    Entry("/mail", "Mail", "mail"),
    Entry("/quarantine", "Quarantine", "box"),
    Entry("/requests", "Requests", "hand", Role.RELEASER),
    Entry("/lists", "Lists", "list"),
    Entry("/scan", "Scan a file", "scan"),
    Entry("/statistics", "Statistics", "chart"),
    Entry("/users", "Users", "people", Role.ADMIN, all_tenants=True),
    Entry("/audit", "Audit", "eye", Role.ADMIN, all_tenants=True),
    Entry("/digests", "Digests", "letter", Role.ADMIN, all_tenants=True),
    Entry("/settings", "Settings", "sliders", Role.ADMIN, all_tenants=True),
)


_OF_DIGESTS = ("/requests", "/digests")


def navigation(person: Person | None, here: str, *, has_digests: bool = True) -> list[Entry]:
    if person is None:
        return []
    return [
        Entry(entry.path, entry.label, entry.icon, entry.role, entry.all_tenants, _is_here(entry.path, here))
        for entry in ENTRIES
        if person.may(entry.role, all_tenants=entry.all_tenants)
        if has_digests or entry.path not in _OF_DIGESTS
    ]


def _is_here(path: str, here: str) -> bool:
    return here == path or (path != "/" and here.startswith(f"{path}/"))
