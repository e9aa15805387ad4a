"""The import arrows: which part may know which, and where each library is used.

A part is a folder or a module directly below `bridge/`. Imports point down the floors only, and no two
files import each other, whether at run time or for type checking.

Also, what tests do without: they change settings, not constants.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bridge

ROOT = Path(bridge.__file__).parent

# From top to bottom. A part may import only what stands on a lower line.
FLOORS: list[set[str]] = [
    {"__main__", "testing"},
    {"cli"},
    {"user_pages"},
    {"console"},
    {"daemon"},
    {"digests"},
    {"explain"},
    {"history"},
    {"intake", "observe", "events"},
    {"filter"},
    {"quarantine", "relay", "scanner", "lists", "service", "feedback"},
    {"matching"},
    {"config", "mail", "mime"},
    {"runtime", "api"},
    {"errors", "__init__"},
]

# Within the floors, what a part does without: the parts below it that it must not import.
FORBIDDEN: dict[str, set[str]] = {
    "console": {"daemon", "service", "intake", "filter"},  # it reaches them over HTTP and the state database
    "user_pages": {"daemon", "service", "intake", "filter"},
    "digests": {"daemon", "service", "intake", "filter", "explain", "history", "events", "observe", "scanner"},
    "intake": {"config", "service", "lists", "scanner", "relay", "quarantine"},  # every protocol knows the filter alone
    "history": {"config", "service", "lists"},
    "observe": {"config", "service", "lists"},
    "events": {"config", "service", "lists", "scanner", "relay", "quarantine"},
    "filter": {"config", "service", "lists"},
    "quarantine": {"config"},
    "relay": {"config"},
    "scanner": {"config"},
    "lists": {"config"},
    "service": {"config"},
    "feedback": {"config"},
}

# Parts on one floor do not know each other, with these exceptions.
SAME_FLOOR = {("config", "mail"), ("api", "runtime"), ("events", "observe")}

# Library -> the parts that may import it, so that it can be exchanged by changing those parts alone.
HOMES: dict[str, set[str]] = {
    "aiosmtpd": {"intake"},
    "httpx2": {"lists", "cli", "service", "events", "console", "feedback"},
    "httptools": {"scanner", "runtime"},
    "idna": {"mail"},
    "yaml": {"runtime"},
    "prometheus_client": {"cli", "observe", "daemon", "service"},
    "click": {"cli"},
    "rich": {"cli"},
    "nats": {"events", "runtime", "service"},
    "sqlalchemy": {
        *("runtime", "service", "filter", "quarantine", "history", "events", "console", "lists", "feedback"),
        *("digests", "user_pages"),
    },
    "obstore": {"quarantine"},
    "starlette": {"service", "daemon", "console", "user_pages"},
    "jinja2": {"console", "digests", "user_pages"},
    "argon2": {"console"},
    "authlib": {"console"},
    "joserfc": {"console"},
    "nh3": {"console"},
    "pyzipper": {"console"},
    "uvicorn": {"runtime"},
    "python_multipart": {"console", "service"},
    "opentelemetry": {"observe"},
    "pydantic": {"config", "runtime", "service"},
    "pydantic_core": {"api", "config"},
    "uvloop": {"cli", "testing", "daemon"},
}

FILES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(("bridge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names of everything imported anywhere in the file, including for type checking."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return frozenset(found)


def modules_imported(path: Path) -> set[str]:
    """Our modules behind these names: a name is either a module or defined in one."""
    found = {name if name in MODULES else name.rpartition(".")[0] for name in imports(path)}
    return {name for name in found if name in MODULES} - {module_name(path)}


def parts_imported(path: Path) -> set[str]:
    return {part_of(MODULES[name]) for name in modules_imported(path)}


def libraries_imported(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)} - set(sys.stdlib_module_names) - {"bridge", "__future__"}


def floor_of(part: str) -> int:
    return next(number for number, parts in enumerate(FLOORS) if part in parts)


def circles(arrows: dict[str, set[str]]) -> set[str]:
    """The nodes that are left after removing, repeatedly, those that lead nowhere and those that nothing leads to."""
    left = {name: set(others) & set(arrows) for name, others in arrows.items()}
    while True:
        used = set().union(*left.values())
        removable = {name for name, others in left.items() if not others or name not in used}
        if not removable:
            return set(left)
        left = {name: others - removable for name, others in left.items() if name not in removable}


def test_every_part_has_a_floor() -> None:
    """A new folder is given its place before anything can use it."""
    assert {part_of(path) for path in FILES} == set().union(*FLOORS)


@pytest.mark.parametrize("part", sorted(set().union(*FLOORS)))
def test_imports_point_down(part: str) -> None:
    """Each part imports only parts below it, and none that it is to do without."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {other}"
        for path in FILES
        if part_of(path) == part
        for other in parts_imported(path) - {part}
        if other in FORBIDDEN.get(part, ()) or (floor_of(other) <= floor_of(part) and (part, other) not in SAME_FLOOR)
    }
    assert not wrong


def test_no_two_files_import_each_other() -> None:
    """No chain of imports leads back to the file it began in, not even for type checking."""
    assert not circles({module_name(path): modules_imported(path) for path in FILES})


def test_a_circle_is_noticed() -> None:
    """The check above can fail: it finds two files in a circle, and not the file that only uses them."""
    assert circles({"a": {"b"}, "b": {"a"}, "c": set(), "user": {"a", "c"}}) == {"a", "b"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "leaf": set()}) == {"a", "b", "c"}
    assert not circles({"a": {"b"}, "b": set()})


@pytest.mark.parametrize("library", sorted(HOMES))
def test_each_library_has_its_home(library: str) -> None:
    """A library can be exchanged by changing the parts that use it."""
    users = {part_of(path) for path in FILES if library in libraries_imported(path)}
    assert users <= HOMES[library]


def test_only_daemon_and_cli_import_the_service() -> None:
    """The service is reached over HTTP, so the vendor's and ours are interchangeable."""
    users = {part_of(path) for path in FILES if "service" in parts_imported(path)}
    assert users - {"service"} <= {"daemon", "cli"}


def test_nothing_imports_the_test_kit() -> None:
    """bridge.testing is for tests alone."""
    assert not [path for path in FILES if part_of(path) != "testing" and "testing" in parts_imported(path)]


# Constants

TESTS = Path(__file__).parent
PATCHING = {"setattr", "delattr", "patch", "object"}  # of monkeypatch, of unittest.mock, or built in
CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]+")
MAY_PATCH = re.compile(r"setattr|delattr|patch|\.[A-Z0-9_]+\b[^=\n]*=")  # reading every file as code takes seconds


def patched_constants(text: str) -> list[str]:
    """Lines that change a constant of ours, or of an object that may be ours."""
    nodes = list(ast.walk(ast.parse(text)))
    ours, libraries = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in node.names:
                origin = (getattr(node, "module", None) or name.name).partition(".")[0]
                known = name.asname or name.name.partition(".")[0]
                if origin == "bridge":
                    ours.add(known)
                elif origin in sys.stdlib_module_names:
                    libraries.add(known)
    found = [(node, name) for node in nodes for name in (*_patched(node, libraries), *_assigned(node, ours))]
    return [f"{getattr(node, 'lineno', 0)}: {name}" for node, name in found]


def _patched(node: ast.AST, libraries: set[str]) -> Iterator[str]:
    """By a call. The target may be a name of any kind, such as that of a loop over our modules."""
    if not isinstance(node, ast.Call) or not node.args:
        return
    called, target = node.func, node.args[0]
    if getattr(called, "attr", getattr(called, "id", "")) not in PATCHING:
        return
    if isinstance(target, ast.Name) and target.id in libraries:
        return
    texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    name = texts[0].rpartition(".")[2] if texts else ""
    if CONSTANT.fullmatch(name):
        yield name


def _assigned(node: ast.AST, ours: set[str]) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in targets:
        if isinstance(target, ast.Attribute) and CONSTANT.fullmatch(target.attr) and _root(target) in ours:
            yield target.attr


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_no_test_patches_a_constant() -> None:
    """What a test must change is a setting: a parameter with a default, or a field of a frozen dataclass.

    With `raising=False`, a constant that was renamed would be patched in vain.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}
    wrong = {
        f"{path.relative_to(TESTS)}:{line}"
        for path, text in texts.items()
        if path != Path(__file__) and MAY_PATCH.search(text)
        for line in patched_constants(text)
    }
    assert not wrong


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr(index, "_FEW", 4)',
        'monkeypatch.setattr("bridge.quarantine.index._FEW", 4)',
        'monkeypatch.setattr(Index, "MAX_2", 4, raising=False)',
        'monkeypatch.setattr(index.os, "O_TMPFILE", 4)',
        'for module in (index, os): setattr(module, "_FEW", 4)',
        'monkeypatch.delattr(index, "_FEW")',
        'mock.patch("bridge.quarantine.index._FEW", 4)',
        'mock.patch.object(index, "_FEW", 4)',
        "index._FEW = 4",
        "index._FEW += 4",
        "bridge.quarantine.index._FEW = 4",
        "Index.MAX_2: int = 4",
    ],
)
def test_a_patched_constant_is_noticed(line: str) -> None:
    """The check above can fail, whatever the form."""
    imports = "import os, bridge.quarantine.index\nfrom bridge.quarantine import index\nfrom bridge.x import Index\n"
    assert len(patched_constants(imports + line)) == 1


def test_other_patches_are_none_of_constants() -> None:
    """Functions of the operating system, settings, and constants of the test's own."""
    lines = (
        'monkeypatch.setattr(os, "fsync", slow)',
        'monkeypatch.delattr(os, "RWF_NOWAIT")',
        'monkeypatch.setattr(index, "settings", other)',
        "index.limits = Limits(MAX=3)",
        "own.MAX = 3",
        "assert index._FEW == 4",
    )
    assert not patched_constants("import os\nfrom bridge.quarantine import index\n" + "\n".join(lines))
