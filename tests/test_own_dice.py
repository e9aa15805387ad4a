"""Chance in the daemon is its own: the `random` module's state belongs to whoever runs beside it."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "bridge").rglob("*.py"))


def test_nobody_draws_from_the_module_wide_generator() -> None:
    """A daemon in a thread must not disturb a test, or a program, that seeds or watches `random`."""
    drawn = [
        f"{source.name}:{node.lineno}"
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr not in ("Random", "SystemRandom")
    ]
    assert SOURCES and drawn == []
