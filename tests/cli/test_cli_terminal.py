"""Hostile text from mails, services, mail servers and file names, in every command that prints it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import bridge
from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import RunningBridge, answer, free_port, result, running_bridge
from tests.long_cases import few
from tests.terminal_kit import on_terminal
from tests.warm_commands import warm_commands, written

# Markup that breaks and markup that works, a title, a link, a cleared screen, C1, direction overrides, zero width,
# several line ends, and an emoji code.
HOSTILE = (
    "\\[/x] [red]red[/red] [link=http://evil.example]here[/link] \x1b]0;owned\x07\x1b[2J\x9b31m\x90q\x9c\u202egpj\u2066"
    "\u200b\ufe0f\u0336 :smile: \r\nFAKE ROW\nFAKE ROW\x0bFAKE ROW\x85FAKE ROW\u2028FAKE ROW\x7f"
)
IN_A_HEADER = re.sub("[\r\n]", "", HOSTILE)
TENANT = "123e4567-e89b-12d3-a456-426614174000"
HOSTILE_ANSWER = answer(200, result("quarantine", verdict=HOSTILE, tags=[HOSTILE, "[red]tag[/red]"]))


class Place:
    """A daemon that quarantines a hostile mail, a hostile service, and the command line."""

    def __init__(self, daemon: RunningBridge, server: HostileServer) -> None:
        self.daemon, self.directory = daemon, daemon.directory
        self.config = self.directory / "cli.yml"
        (self.directory / "key").write_text("k" * 40)
        self._data = {
            "scanner": {"urls": [daemon.scanner.url], "token_file": "token"},
            "listeners": [{"name": "test", "address": f"127.0.0.1:{daemon.port}", "lists": {"block": ["senders"]}}],
            "relay": {"next_hop": daemon.next_hop.url},
            "lists": {"url": server.url, "api_key_file": "key"},
            "admin": {"address": f"127.0.0.1:{server.port}"},
            "state_directory": str(self.directory / "state"),
        }
        self.config.write_text(yaml_file.dump(self._data))

    def command(self, *words: str) -> list[str]:
        return [*words, "-c", str(self.config)]

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, self.command(*words))


class HostileServer:
    """Answers as a daemon's admin address and as a List API, with hostile text wherever text is allowed."""

    def __init__(self) -> None:
        self.lists_status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._say(200, "" if self.path == "/metrics" else json.dumps(_STATUS))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if outer.lists_status != 200:
                    self._say(outer.lists_status, json.dumps({"error": HOSTILE, "message": HOSTILE}))
                elif self.path.endswith("/getLists"):
                    self._say(200, json.dumps({"listFileInfos": [_info("senders"), _info(HOSTILE)]}))
                elif self.path.endswith("/listEntries"):
                    self._say(200, json.dumps({"entry": HOSTILE, "comment": HOSTILE}) + "\n", "application/x-ndjson")
                else:
                    self._say(400, json.dumps({"error": HOSTILE, "message": HOSTILE}))

            def _say(self, status: int, body: str, kind: str = "application/json") -> None:
                raw = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.port = free_port()
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _info(name: str) -> dict[str, Any]:
    about = {"displayName": HOSTILE, "category": "sender", "description": HOSTILE, "maxSize": 10}
    return {"listName": name, "listInfo": about}


_HOST = {"url": HOSTILE, "status": HOSTILE, "circuit": HOSTILE, "in_flight": 0}
_HOP = {"name": HOSTILE, "up": True, "busy": 1, "connections": {HOSTILE: 1}}
_LIST = {"name": HOSTILE, "tenant": HOSTILE, "entries": 1, "age_s": 1, "problem": HOSTILE}
_WORKER = {"pid": 2**22, "uptime_s": 1, "ready": True, "connections": 0}
_STATUS = {
    "version": HOSTILE, "pid": 2**22, "uptime_s": 1, "ready": True, "in_processing": 0, "max_in_processing": 1,
    "bytes_in_processing": 0, "workers": [_WORKER, _WORKER], "reload": {"ok": False, "problem": HOSTILE, "count": 0},
    "listeners": [{"name": HOSTILE, "protocol": HOSTILE, "address": HOSTILE}], "scanner": [_HOST],
    "next_hops": [_HOP], "lists": [_LIST], "connections": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One place for all tests: a mail is quarantined once."""
    server = HostileServer()
    with running_bridge(tmp_path_factory.mktemp("terminal")) as daemon:
        daemon.scanner.reply = HOSTILE_ANSWER
        with daemon.client() as client:
            client.open(b"EHLO [bold]")
            client.say(b'MAIL FROM:<"\\[/x][red]"@\xe2\x80\xae.example> SMTPUTF8', b"RCPT TO:<b@example.org>", b"DATA")
            mail = f"Subject: {IN_A_HEADER}\r\nX-[red]: {IN_A_HEADER}\r\n\r\nx\r\n.".encode()
            assert client.say(mail)[0].startswith(b"250")
        yield Place(daemon, server)
    server.close()


@pytest.fixture
def place(shared: Place) -> Place:
    """The shared place, whose scanner and next hop answer as at the start."""
    shared.daemon.scanner.reply = HOSTILE_ANSWER
    shared.daemon.next_hop.replies = {}
    return shared


@pytest.fixture
def eml(place: Place) -> str:
    path = place.directory / f"[red]{re.sub('[/]', '', HOSTILE)}.eml"
    path.write_bytes(b"Subject: x\r\n\r\nx\r\n")
    return str(path)


def assert_harmless(output: str) -> None:
    """Printable lines only, none of which begins with a stranger's words."""
    assert output
    for line in output.removesuffix("\n").split("\n"):
        assert line.isprintable(), ascii(line)
        assert not line.lstrip().startswith("FAKE ROW"), ascii(line)
        assert "\ufe0f" not in line


BAD = f"no such {HOSTILE}"
EML, FOLDER, ENTRIES, MAIL = "<a mail's file>", "<its directory>", "<a file of entries>", "<a quarantined mail>"
COMMANDS = {
    "scan": ["scan", EML],
    "scan, a directory": ["scan", FOLDER],
    "scan, no such file": ["scan", BAD],
    "quarantine list": ["quarantine", "list"],
    "quarantine show": ["quarantine", "show", MAIL],
    "quarantine show, unknown": ["quarantine", "show", BAD],
    "quarantine release, refused": ["quarantine", "release", MAIL],
    "quarantine delete, unknown": ["quarantine", "delete", "--yes", BAD],
    "quarantine export, unknown": ["quarantine", "export", BAD, "/nonexistent"],
    "quarantine block-sender": ["quarantine", "block-sender", "--list", "senders", MAIL],
    "quarantine allow-sender, unknown list": ["quarantine", "allow-sender", "--list", BAD, MAIL],
    "lists show": ["lists", "show"],
    "lists add, refused": ["lists", "add", "senders", BAD],
    "lists delete, refused": ["lists", "delete", BAD, "x@example.org"],
    "lists sync": ["lists", "sync", "senders", ENTRIES, "--dry-run", "--prune"],
    "lists sync, unknown": ["lists", "sync", BAD, ENTRIES],
    "lists sync, no file": ["lists", "sync", "senders", BAD],
    "lists refresh": ["lists", "refresh"],
    "status": ["status"],
    "top": ["top", "--once", "--interval", "0.1"],
    "reload": ["reload", "--timeout", "0.2"],
    "check": ["check", "-v"],
    "config address": ["config", "address", BAD],
    "an unknown option": ["scan", "--" + HOSTILE],
    "an unknown command": [HOSTILE],
}


def filled(place: Place, eml: str, words: list[str]) -> list[str]:
    entries = place.directory / "entries.txt"
    entries.write_text("other@example.org\n")
    known = {EML: eml, FOLDER: str(place.directory), ENTRIES: str(entries), MAIL: place.daemon.quarantined[0].stem}
    return [known.get(word, word) for word in words]


@pytest.mark.parametrize("name", COMMANDS)
def test_foreign_text_breaks_no_command_and_acts_on_no_terminal(place: Place, eml: str, name: str) -> None:
    """The text is there to be read, and nothing of it is obeyed."""
    place.daemon.next_hop.replies = {
        b"CONNECT": b"220 \x1b[31m[red]\\[/x]\xc2\x9b\xe2\x80\xae ready",
        b"RCPT": b"550-5.1.1 \x1b]0;owned\x07[red]\\[/x]\r\n550 5.1.1 \xe2\x80\xaeFAKE ROW",
    }
    done = place.run(*filled(place, eml, COMMANDS[name]))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    output = done.output
    if name == "quarantine list":  # a pipe gets cells separated by tabs: ours, and no others
        assert {line.count("\t") for line in output.splitlines()} == {6}
        output = output.replace("\t", " ")
    assert_harmless(output)


@pytest.mark.parametrize("status", [400, 404, 409, 500])
def test_an_error_of_the_list_service_is_text(place: Place, status: int) -> None:
    server = HostileServer()
    server.lists_status = status
    url = ("--url", server.url, "--api-key-file", str(place.directory / "key"), "--patience", "0s")
    for words in (("show",), ("entries", "senders"), ("add", "senders", "a@example.org")):
        assert_harmless(CliRunner().invoke(main, ["lists", *words, *url]).output)
    server.close()


def test_json_has_the_text_in_ascii(place: Place, eml: str) -> None:
    """Programs get every character of a mail, and what is printable of a scanner; a terminal obeys none of them."""
    listed = place.run("quarantine", "list", "--json").stdout
    assert json.loads(listed)["subject"].startswith(IN_A_HEADER[:60])
    scanned = place.run("scan", "--json", eml).stdout
    verdict = json.loads(scanned)["verdict"]
    assert verdict.startswith(r"\[/x] [red]red[/red] [link=http://evil.example]here[/link] ?]0;owned??[2J?31m?q??gpj")
    assert verdict.endswith(" :smile: ??FAKE ROW?FAKE ROW?FAKE ROW?FAKE ROW?FAKE ROW?")
    assert json.loads(place.run("status", "--json").stdout) == _STATUS
    assert all(text.isascii() and text.replace("\n", "").isprintable() for text in (listed, scanned))


def test_a_subject_is_shown_as_it_is_written(place: Place) -> None:
    """`\\[/x]` broke the table, and `[red]` disappeared from it."""
    shown = re.sub(r"\s+", "", place.run("quarantine", "list").stdout)
    assert r"\[/x]" in shown and "[red]tag[/red]" in shown and ":smile:" in shown


def in_a_terminal(*command: str) -> str:
    """What a command writes to a real terminal."""
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    return on_terminal(command, environment, columns=200)[1]


_OURS = re.compile(
    r"\x1b\[[0-9;]*m|\r(?=\n)|\r\x1b\[[0-9]*[AK]|\x1b\[[0-9]*[AK]|\x1b\[\?25[lh]"
)  # bold, colours, a bar


@pytest.mark.parametrize("name", ["quarantine list", "quarantine show", "scan", "lists entries", "top"])
def test_a_real_terminal_is_sent_no_foreign_sequence(place: Place, eml: str, name: str) -> None:
    """Of the characters that act on a terminal, only our own colours are left."""
    more = {"lists entries": ["lists", "entries", "senders"], "quarantine list": ["quarantine", "list", "--wide"]}
    words = {**COMMANDS, **more}[name]
    shown = in_a_terminal(*place.command(*filled(place, eml, words)))
    assert "owned" in shown and "\x1b[31m" not in shown
    assert_harmless(_OURS.sub("", shown))


@pytest.mark.parametrize("words", [("show", "--raw"), ("export", "-")])
def test_a_raw_mail_is_not_written_to_a_terminal(place: Place, words: tuple[str, str]) -> None:
    verb, rest = words
    mail = place.daemon.quarantined[0].stem
    shown = in_a_terminal(*place.command("quarantine", verb, mail, rest))
    assert "redirect the output to a file, or pipe it to a pager" in shown
    assert_harmless(shown)


def test_a_crash_quotes_its_cause_as_text() -> None:
    """A bug's traceback may contain what caused it."""
    code = "import sys; from bridge.cli.terminal import show_crash; sys.excepthook = show_crash; raise ValueError(%r)"
    done = subprocess.run([sys.executable, "-c", code % HOSTILE], capture_output=True, check=False)
    assert b"ValueError" in done.stderr and b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    "words", [["scan", EML], ["quarantine", "list"], ["quarantine", "show", MAIL], ["status"], COMMANDS["top"]]
)
def test_a_full_disk_is_reported_in_one_line(place: Place, eml: str, words: list[str]) -> None:
    """The output goes to a file on a full disk: no traceback, and no other reason, such as the mail's."""
    done = onto_a_full_disk(place.command(*filled(place, eml, words)))
    assert (done.returncode, done.stderr) == (1, b"cannot write to standard output: No space left on device\n")


@pytest.mark.parametrize("words", few([("show", "--raw"), ("export", "-")], 1))
def test_a_raw_mail_on_a_full_disk_is_reported_in_one_line(place: Place, words: tuple[str, str]) -> None:
    """Started for real: what is left in the buffer of Python's own standard output is written at the very end."""
    verb, rest = words
    program = [sys.executable, "-m", "bridge"]
    program += place.command("quarantine", verb, place.daemon.quarantined[0].stem, rest)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, check=False, timeout=90)
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("words", [("show", "--raw"), ("export", "-")])
def test_a_raw_mail_into_a_closed_pipe_leads_to_no_message(place: Place, words: tuple[str, str]) -> None:
    """As with every other command whose reader, such as `head`, needs no more."""
    verb, rest = words
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = printing_to(writer, place.command("quarantine", verb, place.daemon.quarantined[0].stem, rest))
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def onto_a_full_disk(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    with open("/dev/full", "wb") as full:
        return printing_to(full.fileno(), command)


def printing_to(output: int, command: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run it as a warm daemon, because that ends as every Python program does: it flushes its output last."""
    with tempfile.TemporaryFile() as errors:
        process = warm_commands(os.getpid()).start(command, dict(os.environ), Path.cwd(), output, errors.fileno())
        return subprocess.CompletedProcess(command, process.wait(90), None, written(errors))


@pytest.mark.parametrize("encoding", few(["ascii", "latin-1", "cp437"], 1))
def test_an_old_terminal_breaks_no_command(place: Place, encoding: str) -> None:
    """A subject in Chinese on a terminal without Chinese."""
    place.daemon.scanner.reply = answer(200, result("quarantine", verdict="\u4f60\u597d \u20ac"))
    eml = place.directory / "plain.eml"
    eml.write_bytes(b"Subject: x\r\n\r\nx\r\n")
    commands = [["scan", str(eml)], ["quarantine", "list"], ["lists", "show"], ["scan", "\u4f60"]]
    for words in commands[encoding == "latin-1" :]:
        command, environment = place.command(*words), {**os.environ, "PYTHONIOENCODING": encoding}
        if encoding == "ascii" and words == commands[0]:  # for real: Python reads the variable before our code runs
            program = [sys.executable, "-m", "bridge", *command]
            done = subprocess.run(program, capture_output=True, check=False, env=environment, timeout=90)
        else:
            done = warm_commands(os.getpid()).run_bytes(command, environment, Path.cwd())
        assert b"Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (["quarantine", "delete", "--all"], "<&-", 2),
        (["stats"], "<&- >&- 2>&-", 0),
        pytest.param(["history"], ">&-", 0, marks=pytest.mark.long),
        pytest.param(["history"], "2>&-", 0, marks=pytest.mark.long),
    ],
)
def test_standard_streams_may_be_closed(shared: Place, words: list[str], closed: str, code: int) -> None:
    """Nobody is asked, and nothing is printed there; there is no traceback."""
    script = f'exec "$0" -m bridge "$@" {closed}'
    program = ["sh", "-c", script, sys.executable, *shared.command(*words)]
    done = subprocess.run(program, capture_output=True, check=False, timeout=90)
    assert done.returncode == code and b"Traceback" not in done.stderr, done.stderr


FILES = sorted((Path(bridge.__file__).parent / "cli").rglob("*.py"))
_WRITERS = {"echo", "secho", "echo_via_pager", "confirm", "prompt", "print", "Console", "getpass"}
_ALLOWED = {  # each with what makes it safe
    "terminal.py": {
        "click.echo",
        "click.confirm",
        "click.prompt",
        "Console",
        "sys.stderr.write",
        "sys.stdin.buffer.readline",
    },  # the one place
    "top/live.py": {"screen.print"},  # a picture, on the console of `terminal`
}
_OURS_TOO = {"confirm"}  # imported from `terminal`


def _writer(call: ast.Call) -> str:
    """`click.echo`, `print`, `sys.stdout.write`; empty for a call that writes nothing."""
    name = re.sub(r"\(.*\)", "()", ast.unparse(call.func), flags=re.DOTALL)
    last = name.rpartition(".")[2]
    return name if (last in _WRITERS and name not in _OURS_TOO) or name.startswith("sys.std") else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FILES[0].parent)))
def test_commands_write_through_the_terminal_module_alone(path: Path) -> None:
    """A new command cannot forget to make text visible: everything else that writes is refused here."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    writers = {writer for call in calls if (writer := _writer(call))}
    reading = {"sys.stdin.buffer.read", "sys.stdin.isatty", "sys.stdin.fileno"}
    asking = {"sys.stdout.isatty", "sys.stderr.isatty", "sys.stdout.fileno"}
    assert writers - reading - asking <= _ALLOWED.get(str(path.relative_to(FILES[0].parent)), set())
