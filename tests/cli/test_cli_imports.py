"""Commands start quickly: help, completion and `status` import little.

Starting Python takes 15 ms, click and our own command line 50 ms, everything else over 500 ms. Modules are
counted, in real processes, because times depend on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

import bridge.lists
from bridge.cli import _COMMANDS, main
from bridge.history.sqlite import SqliteHistory
from bridge.testing import free_port
from tests.daemon.process_kit import ROOT, environment, scanbridge
from tests.history.history_kit import mail
from tests.long_cases import few

HEAVY = {"asyncio", "httpx2", "prometheus_client", "pydantic", "rich", "sqlalchemy", "uvloop", "yaml"}
# Measured with Python 3.11; 3.13 loads 16 more.
MOST_FOR_HELP = 170  # 143 for `service` with all its subcommands
MOST_FOR_COMPLETION = 165  # 137
MOST_FOR_STATUS = 220  # 191: also yaml, for the configuration file, and http.client

# Writes the names of the loaded modules to the file in the first argument.
WRITE_MODULES = """\
import atexit, json, sys
target = sys.argv.pop(1)
atexit.register(lambda: open(target, "w").write(json.dumps(list(sys.modules))))
"""
RUN = WRITE_MODULES + "from bridge.cli import main\nmain(prog_name='scanbridge')\n"
# Asks for the help of the command in the second argument, and of all its subcommands.
HELP = (
    WRITE_MODULES
    + """\
import click
from bridge.cli import main

def show(command, path):
    print("==", *path)
    try:
        main([*path, "--help"], prog_name="scanbridge", standalone_mode=False)
    except SystemExit:
        pass
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            show(command.get_command(click.Context(command), name), [*path, name])

name = sys.argv[1]
show(main.get_command(click.Context(main), name), [name])
"""
)


def run(program: str, target: Path, *arguments: str, **variables: str) -> tuple[str, set[str]]:
    """Its standard output, and the names of the modules that it had loaded in the end."""
    command = [sys.executable, "-c", program, str(target), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout, set(json.loads(target.read_text()))


def test_the_overview_imports_no_command(tmp_path: Path) -> None:
    """`scanbridge --help` has all commands, but imports none of them."""
    shown, modules = run(RUN, tmp_path / "modules", "--help")
    assert all(f"  {name} " in shown for name in _COMMANDS)
    own = {name for name in modules if name.startswith("bridge.cli.")}
    assert (
        own == {"bridge.cli.terminal", "bridge.cli.single_values"}
        and not modules & HEAVY
        and len(modules) <= MOST_FOR_HELP
    )


@pytest.mark.parametrize("name", _COMMANDS)
def test_help_imports_little(tmp_path: Path, name: str) -> None:
    """The help of a command and of all its subcommands."""
    shown, modules = run(HELP, tmp_path / "modules", name)
    pages = shown.split("== ")[1:]
    assert len(pages) == _count(main.get_command(click.Context(main), name))
    assert all(page.split("\n")[1].startswith("Usage: scanbridge ") for page in pages)
    assert not modules & HEAVY and len(modules) <= MOST_FOR_HELP


def _count(command: click.Command | None) -> int:
    assert command is not None
    if not isinstance(command, click.Group):
        return 1
    context = click.Context(command)
    return 1 + sum(_count(command.get_command(context, name)) for name in command.list_commands(context))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["li"], "plain,lists"),
        (["lists", "sy"], "plain,sync"),
        (["lists", "add", "--"], "plain,--patience"),
        (["lists", "sync", "--max-delete", "5%", "--pru"], "plain,--prune"),
        (["quarantine", "list", "--since", "2d", "--"], "plain,--until"),
        (["quarantine", "release", "--"], "plain,--dry-run"),
        (["setup", "postfix", "--mode", ""], "plain,milter"),
        (["check", "--"], "plain,--postfix"),
        (["service", ""], "plain,check"),
        (["rep"], "plain,replay"),
        (["replay", "--"], "plain,--concurrency"),
        (["trace", "mail.eml", "--decision", "sat"], "plain,saturated"),
    ],
    ids=" ".join,
)
def test_completion_imports_little(tmp_path: Path, words: list[str], expected: str) -> None:
    """What bash runs at every press of the tab key."""
    typed = {"COMP_WORDS": " ".join(["scanbridge", *words]), "COMP_CWORD": str(len(words))}
    shown, modules = run(RUN, tmp_path / "modules", _SCANBRIDGE_COMPLETE="bash_complete", **typed)
    assert expected in shown.splitlines()
    assert not modules & HEAVY and len(modules) <= MOST_FOR_COMPLETION


# status

STATE = {
    "version": "1.2.3",
    "pid": 4321,
    "uptime_s": 10,
    "ready": True,
    "in_processing": 0,
    "max_in_processing": 100,
    "bytes_in_processing": 0,
    "connections": 0,
    "workers": [],
    "reload": {"ok": True, "count": 0},
    "listeners": [],
    "scanner": [],
}


@contextmanager
def admin(answer: bytes, status: int = 200) -> Iterator[int]:
    """A small daemon: something that answers every request with this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def configured(directory: Path, port: int, more: str = "") -> str:
    file = directory / "bridge.yml"
    file.write_text(
        'scanner: {urls: ["http://127.0.0.1:1"], token_file: token}\n'
        'listeners: [{name: mx, address: "127.0.0.1:2"}]\n'
        'relay: {next_hop: "smtp://127.0.0.1:3"}\n'
        f'admin: {{address: "127.0.0.1:{port}"}}\n{more}'
    )
    return str(file)


def test_status_imports_little(tmp_path: Path) -> None:
    """It reads one key of the configuration, so a mistake elsewhere in the file does not matter."""
    with admin(json.dumps(STATE).encode()) as port:
        file = configured(tmp_path, port, "nonsense: 1\n")
        shown, modules = run(RUN, tmp_path / "modules", "status", "-c", file)
    assert shown.startswith("scanbridge 1.2.3, pid 4321, up 10 s, ready\n")
    assert not modules & (HEAVY - {"yaml"}) and len(modules) <= MOST_FOR_STATUS


@pytest.mark.parametrize("command", few(["history", "explain ID0001", "explain x@example.org", "stats --by day"], 2))
def test_the_history_in_sqlite_is_read_without_sqlalchemy(tmp_path: Path, command: str) -> None:
    """Also if the story is that of a quarantined mail."""
    state = tmp_path / "state"
    store = SqliteHistory(state / "history")
    store.append([mail(1, at=time.time() - 5, action="quarantine", tags="malware:eicar")])
    store.close()
    file = configured(tmp_path, free_port(), f"state_directory: {state}\n")
    program = RUN.replace("main(prog_name", "main(standalone_mode=False, prog_name")  # exit code 3 is not a failure
    _, modules = run(program, tmp_path / "modules", *command.split(), "-c", file)
    assert "bridge.history.segment_search" in modules
    assert not modules & (HEAVY - {"asyncio", "pydantic", "yaml"})


@pytest.mark.parametrize("command", ["status", "top --once", "reload"])
def test_without_a_daemon_a_mistake_in_the_file_is_reported(tmp_path: Path, command: str) -> None:
    """Perhaps the daemon did not start because of it."""
    file = configured(tmp_path, free_port(), "nonsense: 1\n")
    done = scanbridge(*command.split(), "-c", file)
    assert done.returncode == 78 and f"{file}:5: nonsense: unknown key" in done.stderr


@pytest.mark.parametrize("command", ["status", "reload"])
@pytest.mark.parametrize(
    ("answer", "status"), [(b"{}", 200), (b"\xff", 200), (b"[" * 100_000, 200), (b"7", 200), (b"{}", 404)]
)
def test_another_program_at_the_admin_address_is_not_our_daemon(
    tmp_path: Path, command: str, answer: bytes, status: int
) -> None:
    """It may answer anything."""
    with admin(answer, status) as port:
        done = scanbridge(command, "-c", configured(tmp_path, port))
    assert done.returncode == 1
    where = f"no daemon answers at 127.0.0.1:{port} (admin.address), although process {os.getpid()} ("
    assert done.stderr.startswith(where) and "If it is another program, change admin.address" in done.stderr


# the table of commands, and the lazy Python API


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_table_has_the_first_sentence_of_each_command(name: str) -> None:
    """The overview shows it without importing the command."""
    command = main.get_command(click.Context(main), name)
    assert command is not None and command.name == name
    assert _COMMANDS[name][2] == command.get_short_help_str(200)


@pytest.mark.parametrize(
    ("given", "meant"), [("servce", "service"), ("quarentine", "quarantine"), ("serivce check", "service")]
)
def test_a_misspelled_command_gets_a_suggestion(given: str, meant: str) -> None:
    """Although the commands are not imported."""
    done = scanbridge(*given.split())
    assert done.returncode == 2 and f"Did you mean '{meant}'?" in done.stderr


def test_the_api_of_the_lists_is_imported_when_it_is_used(tmp_path: Path) -> None:
    """Who reads files of entries does not wait for the HTTP client; all documented names are there."""
    _, modules = run(WRITE_MODULES + "import bridge.lists.files, bridge.lists.tree", tmp_path / "modules")
    assert "bridge.lists.files" in modules and not modules & HEAVY
    _, modules = run(WRITE_MODULES + "from bridge.lists import *\nListClient, apply", tmp_path / "modules")
    assert "httpx2" in modules
    assert all(getattr(bridge.lists, name).__name__ == name for name in bridge.lists.__all__)
    assert set(bridge.lists.__all__) <= set(dir(bridge.lists))
    with pytest.raises(AttributeError, match="no attribute 'ListsClient'"):
        bridge.lists.ListsClient  # noqa: B018 - reading it is the test
