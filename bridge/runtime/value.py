"""Values: small classes whose objects never change once they are made.

A frozen dataclass sets each field through `object.__setattr__`, which costs several times as much, and a mail makes a
dozen of these objects. So the type checker keeps them from changing, and at run time they are plain ones with slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A class decorator: equal and hashed by its fields, never assigned to."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
