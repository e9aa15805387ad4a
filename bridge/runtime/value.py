"""Values: small immutable classes.

A frozen dataclass sets each field through `object.__setattr__`, which costs several times as much, and each mail
creates a dozen of these objects. So immutability is enforced by the type checker only; at run time they are plain
dataclasses with slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """A class decorator: compared and hashed by its fields, which are never assigned to."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
