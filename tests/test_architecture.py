"""The import arrows: who may know whom, and which library has its one home where."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

import bridge

ROOT = Path(bridge.__file__).parent
SMALL = {"errors", "units", "yamlfile", "address", "database", "tls", "value"}  # modules that any part may use

# Part -> the other parts it may import. A part is a package or a top-level module of `bridge`.
ARROWS: dict[str, set[str]] = {
    "value": set(),
    "writes": set(),
    "api": {"value"},
    "mail": {"value", "errors"},  # Saturated, and in return errors knows the type of a reply
    "errors": {"mail", "api"},  # for types only
    "units": set(),
    "address": set(),
    "tls": set(),
    "database": {"errors"},
    "matching": set(),
    "profiles": set(),
    "policies": {"mail", "fields"},
    "yamlfile": {"errors"},
    "fields": {"address"},
    "hopconfig": {"address", "fields", "units"},
    "listconfig": {"fields", "units"},
    "config": {
        *("api", "mail", "address", "fields", "hopconfig", "listconfig", "policies", "profiles", "units"),
        *("yamlfile", "errors"),
    },
    "scanner": {"api", "mail", "errors", "value", "writes"},
    "delivery": {"api", "mail", "errors", "address", "database", "value"},
    "lists": {"api", "mail", "matching", *SMALL},
    "filter": {"scanner", "delivery", "matching", "api", "mail", "errors", "database", "value"},
    "intake": {"filter", "api", "mail", "errors", "value", "writes"},
    "counting": set(),
    "metrics": {"counting", "filter", "api", "mail", "errors"},
    "flood": set(),
    "veil": set(),
    "maillog": {"filter", "flood", "metrics", "mail", "veil"},
    "tracing": {"filter", "mail", "metrics"},
    "service": {"api", "mail", "matching", *SMALL},
    "daemon": {
        *("intake", "filter", "scanner", "delivery", "lists", "service", "api", "mail"),
        *("config", "hopconfig", "counting", "metrics", "maillog", "policies", "profiles", "tracing", "veil"),
        *SMALL,
    },
    "cli": {
        *("daemon", "intake", "filter", "scanner", "delivery", "lists", "service", "api", "mail"),
        *("config", "fields", "hopconfig", "listconfig", "maillog", "matching", "policies", "profiles", "veil"),
        *SMALL,
    },
    "testing": {"daemon", "config", "yamlfile", "api", "mail"},
    "__main__": {"cli"},
    "__init__": set(),
}

# Library -> the parts that may know it. (`service` asks an analyzer over HTTP with httpx2.)
HOMES: dict[str, set[str]] = {
    "aiosmtpd": {"intake"},
    "httpx2": {"lists", "cli", "service"},
    "httptools": {"scanner", "service"},
    "yaml": {"yamlfile"},
    "prometheus_client": {"cli", "counting", "metrics", "daemon", "service"},
    "click": {"cli"},
    "rich": {"cli"},
    "sqlalchemy": {"database", "service", "filter", "delivery"},
    "obstore": {"delivery"},
    "starlette": {"service", "daemon"},
    "uvicorn": {"service"},
    "python_multipart": {"service"},
    "opentelemetry": {"tracing"},
    "pydantic": {"config", "fields", "hopconfig", "listconfig", "policies", "units", "yamlfile", "service"},
    "pydantic_core": {"api"},
    "uvloop": {"cli", "testing", "daemon"},
}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def imports(path: Path) -> list[str]:
    """Dotted names of everything imported, wherever in the file, also for type checking alone."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            assert node.module is not None
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


def parts_imported(path: Path) -> set[str]:
    found = set()
    for name in imports(path):
        package, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        if package == "bridge" and part not in ("", "__version__"):
            found.add(part)
    return found


def libraries_imported(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)} - set(sys.stdlib_module_names) - {"bridge", "__future__"}


def test_every_part_has_its_arrows() -> None:
    """A new package must be given its place before anything can use it."""
    assert {part_of(path) for path in FILES} <= set(ARROWS)


@pytest.mark.parametrize("part", sorted(ARROWS))
def test_imports_point_one_way(part: str) -> None:
    """Each part imports only the parts below it."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in FILES
        if part_of(path) == part
        for other in parts_imported(path) - {part} - ARROWS[part]
    }
    assert not wrong


def test_arrows_make_no_circle() -> None:
    """Beside `mail` and `errors`, which share the type of a reply, no part can reach itself."""
    arrows = {part: set(others) for part, others in ARROWS.items()}
    arrows["errors"].discard("mail")
    while arrows:
        lowest = {part for part, others in arrows.items() if not others & set(arrows)}
        assert lowest, f"a circle among {sorted(arrows)}"
        for part in lowest:
            del arrows[part]


def test_errors_knows_mail_for_types_only() -> None:
    """The one arrow upwards exists while types are checked, never when the program runs."""
    body = ast.parse((ROOT / "errors.py").read_text()).body
    at_run_time = [node for node in body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert [node.module for node in at_run_time] == ["typing"]


@pytest.mark.parametrize("library", sorted(HOMES))
def test_each_library_has_its_home(library: str) -> None:
    """A library can be exchanged by changing one part."""
    users = {part_of(path) for path in FILES if library in libraries_imported(path)}
    assert users <= HOMES[library]


def test_nobody_but_daemon_and_cli_imports_the_service() -> None:
    """The service is reached over HTTP, so the vendor's and ours are interchangeable."""
    users = {part_of(path) for path in FILES if "service" in parts_imported(path)}
    assert users - {"service"} <= {"daemon", "cli"}


def test_nothing_imports_the_test_kit() -> None:
    """bridge.testing is for tests alone."""
    assert not [path for path in FILES if "testing" in parts_imported(path)]
