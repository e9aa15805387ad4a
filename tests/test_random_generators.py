"""The daemon has its own random generators: the state of the `random` module belongs to the host program."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "bridge").rglob("*.py"))


def test_the_module_wide_generator_is_never_used() -> None:
    """A daemon in a thread must not disturb a test, or a program, that seeds or watches `random`."""
    drawn = [
        f"{source.name}:{node.lineno}"
        for source in SOURCES
        if "random" in (text := source.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr not in ("Random", "SystemRandom")
    ]
    assert SOURCES and drawn == []
