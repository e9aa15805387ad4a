"""What each command imports when it does its work, so that a short one stays short.

The table has every command of the command tree: a new one without a row fails the test, and its author decides what it
may import. Modules are counted in a new process. Nothing answers at the addresses of the configuration, so a command
that needs a daemon or a service ends with the message that it cannot be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from bridge.cli import main
from bridge.testing import free_port
from tests.cli.test_cli_imports import HEAVY, RUN, configured
from tests.daemon.process_kit import ROOT, environment

LARGE = HEAVY | {"jinja2", "starlette", "nats", "cryptography"}


@dataclass(frozen=True)
class Kind:
    """Which of the large libraries commands may import, and how many modules at most, with Python 3.11 to 3.14."""

    libraries: frozenset[str]
    most: int

    def and_also(self, *libraries: str, most: int) -> Kind:
        return Kind(self.libraries.union(libraries), most)


NOTHING = Kind(frozenset(), 190)
CONFIG = NOTHING.and_also("pydantic", "yaml", most=370)
READ = CONFIG.and_also("asyncio", most=490)
SCREEN = READ.and_also("prometheus_client", "rich", most=540)
DATABASE = READ.and_also("sqlalchemy", "starlette", most=550)
STATE = READ.and_also("sqlalchemy", "prometheus_client", most=810)
SCAN = STATE.and_also("uvloop", most=870)
HTTP = SCAN.and_also("httpx2", most=930)
SERVICE = STATE.and_also("httpx2", "starlette", most=1000)
PAGES = HTTP.and_also("cryptography", "jinja2", "starlette", most=1400)
EVERYTHING = Kind(frozenset(LARGE - {"rich", "jinja2"}), 1150)

# A row: what follows the command (with {names} of files), and what it may import.
USES: dict[str, tuple[str, Kind]] = {
    "check": ("-c {bridge}", EVERYTHING),
    "config address": ("-c {bridge} a@example.org", STATE),
    "config schema": ("", CONFIG),
    "config show": ("-c {bridge}", READ),
    "console": ("-c {broken}", PAGES),
    "console link": ("-c {bridge} ann", PAGES),
    "console user add": ("-c {bridge} ann --role viewer", PAGES),
    "console user list": ("-c {bridge}", PAGES),
    "console user password": ("-c {bridge} ann", PAGES),
    "console user remove": ("-c {bridge} ann", PAGES),
    "digest keys rotate": ("-c {bridge}", PAGES),
    "digest preview": ("-c {bridge} --to a@example.org", PAGES),
    "digest send": ("-c {bridge} --to a@example.org", PAGES),
    "digest serve": ("-c {broken}", PAGES),
    "events dead": ("-c {bridge}", STATE),
    "events drop": ("-c {bridge} --all --yes", STATE),
    "events retry": ("-c {bridge} --all", STATE),
    "events status": ("-c {bridge}", STATE),
    "events test": ("-c {bridge}", STATE),
    "explain": ("-c {bridge} x@example.org", READ),
    "history": ("-c {bridge}", READ),
    "lists add": ("-c {bridge} --patience 0s blocked-senders a@example.org", HTTP),
    "lists delete": ("-c {bridge} --patience 0s blocked-senders a@example.org", HTTP),
    "lists entries": ("-c {bridge} --patience 0s blocked-senders", HTTP),
    "lists personal add": ("-c {bridge} allow a@example.org b@example.net", HTTP),
    "lists personal delete": ("-c {bridge} allow a@example.org b@example.net", HTTP),
    "lists personal show": ("-c {bridge} a@example.org", HTTP),
    "lists refresh": ("-c {bridge}", HTTP),
    "lists show": ("-c {bridge} --patience 0s", HTTP),
    "lists sync": ("-c {bridge} --patience 0s {tree}", HTTP),
    "quarantine allow-sender": ("-c {bridge} 1A", HTTP),
    "quarantine block-sender": ("-c {bridge} 1A", HTTP),
    "quarantine delete": ("-c {bridge} 1A --yes", STATE),
    "quarantine export": ("-c {bridge} 1A {tree}", STATE),
    "quarantine list": ("-c {bridge}", STATE),
    "quarantine purge": ("-c {bridge} --yes", STATE),
    "quarantine release": ("-c {bridge} 1A", SCAN),
    "quarantine show": ("-c {bridge} 1A", STATE),
    "reload": ("-c {bridge}", READ),
    "replay": ("-c {bridge} {tree}", SCAN),
    "report": ("-c {bridge} spam {mail}", HTTP),
    "run": ("-c {broken}", EVERYTHING),
    "scan": ("-c {bridge} {mail}", SCAN),
    "service": ("-c {broken_service}", SCAN),
    "service apikey create": ("-c {service} automation", DATABASE),
    "service apikey list": ("-c {service}", DATABASE),
    "service apikey revoke": ("-c {service} automation", DATABASE),
    "service check": ("-c {service}", SERVICE),
    "service explain": ("-c {service} {mail}", SERVICE),
    "service learning export": ("-c {service}", DATABASE),
    "service learning import": ("-c {service} {tree}/votes", DATABASE),
    "service learning reset": ("-c {service}", DATABASE),
    "service learning show": ("-c {service}", DATABASE),
    "service reload": ("-c {service}", CONFIG),
    "service token": ("", NOTHING),
    "service worker": ("-c {broken_service}", EVERYTHING),
    "setup postfix": ("-c {bridge} --mode milter", READ),
    "stats": ("-c {bridge} --by day", READ),
    "status": ("-c {bridge}", READ),
    "top": ("-c {bridge} --once", SCREEN),
    "trace": ("-c {bridge} {mail}", HTTP),
}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """All that can be run: those without subcommands, and those that need none."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield " ".join((*path, name))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the rows name."""
    here = tmp_path_factory.mktemp("files")
    for name, text in {
        "token": "0123456789abcdef" * 4,
        "key": "0123456789abcdef" * 4,
        "mail.eml": "From: a@example.org\nSubject: x\n\nx\n",
        "broken.yml": "nonsense: 1\n",
        "service.yml": SERVICE.format(port=free_port()),
        "tree/mail.eml": "Subject: x\n\nx\n",
        "tree/votes": "",
    }.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(text)
    lists = f"lists: {{url: 'http://127.0.0.1:{free_port()}', api_key_file: key}}\n"
    bridge = configured(here, free_port(), f"{lists}state_directory: {here / 'state'}\n")
    return {
        "bridge": bridge,
        **{name: str(here / f"{name}.yml") for name in ("broken", "service")},
        "broken_service": str(here / "broken.yml"),
        "mail": str(here / "mail.eml"),
        "tree": str(here / "tree"),
    }


SERVICE = """\
listen: 127.0.0.1:{port}
guard: {{scanSources: {{restApi: {{}}}}}}
abby:
  serviceProviders: {{core: {{hosts: []}}}}
  staticApiTokens: [{{name: bridge, token_file: token}}]
"""

# As after `pip install scanbridge`, without any extra.
WITHOUT_EXTRAS = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {names} else found(name, package)
from bridge.cli import main
main()
"""
OF_EXTRAS = (
    *("argon2", "authlib", "jinja2", "nh3", "pyzipper", "psycopg", "obstore", "dkim", "dns", "spf", "yara"),
    *("libarchive", "zxingcpp", "PIL", "cryptography", "pikepdf", "nats", "opentelemetry", "requests"),
)


def imported(words: list[str], target: Path) -> tuple[set[str], str]:
    """The modules that it had loaded in the end, and all that it printed."""
    command = [sys.executable, "-c", RUN, str(target), *words]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    return set(json.loads(target.read_text())), done.stdout + done.stderr


def test_every_command_has_a_row() -> None:
    """A new command would import what it likes."""
    assert sorted(USES) == sorted(commands(main))


# Some of each kind. Those that may import most libraries take seconds, and there is little to find.
OFTEN = ("config show", "history", "service apikey list", "service token", "setup postfix", "status", "top")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in OFTEN else pytest.mark.long) for name in USES])
def test_each_command_imports_only_what_it_may(tmp_path: Path, files: dict[str, str], name: str) -> None:
    """And it got as far as its work: it neither misunderstood its arguments nor failed unexpectedly."""
    words, allowed = USES[name]
    modules, printed = imported([*name.split(), *words.format(**files).split()], tmp_path / "modules")
    assert "Usage: " not in printed and "Traceback" not in printed, printed
    assert modules & LARGE <= allowed.libraries and len(modules) <= allowed.most, printed


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if USES[name][1] is PAGES else pytest.mark.long) for name in USES],
)
def test_each_command_works_without_extras_or_names_the_extra(files: dict[str, str], name: str) -> None:
    """Without the `console` extra, `console` and `digest` printed a traceback."""
    words, allowed = USES[name]
    command = [
        sys.executable,
        "-c",
        WITHOUT_EXTRAS.format(names=OF_EXTRAS),
        *name.split(),
        *words.format(**files).split(),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed, printed
    if allowed is PAGES:
        assert "pip install 'scanbridge[console]'" in printed and done.returncode == 78, printed
