"""What people get wrong: each message says what happened, where, and what to do next.

Every row is a mistake somebody makes on the first day, tried with the real command. `expected` lists words of the
message: the place, what is wrong, and the next step.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from bridge.testing import Background, FakeScanner, answer, free_port
from tests.daemon.process_kit import environment, scanbridge

TOKEN = "a-token-of-the-test-suite"


class Desk:
    """A directory with a configuration that works, apart from the scanner and the next hop, which do not run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port, self.admin, self.scanner, self.hop = (free_port() for _ in range(4))
        self.file = directory / "bridge.yml"
        self.text = (
            f'scanner: {{urls: ["http://127.0.0.1:{self.scanner}"], token_file: token}}\n'
            "listeners:\n"
            f'  - {{name: mx, address: "127.0.0.1:{self.port}"}}\n'
            f'relay: {{next_hop: "smtp://127.0.0.1:{self.hop}"}}\n'
            f'admin: {{address: "127.0.0.1:{self.admin}"}}\n'
            f"state_directory: {directory / 'state'}\n"
            "limits: {max_connections: 50}\n"
        )
        self.file.write_text(self.text)
        self.write("token", TOKEN + "\n")
        self.write("mail.eml", "Subject: hello\n\nhello\n")

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(0o600)

    def replace(self, old: str, new: str) -> None:
        assert old in self.text
        self.file.write_text(self.text.replace(old, new))

    def add(self, line: str) -> None:
        self.file.write_text(self.text + line + "\n")

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and everything that was printed."""
        env = environment(XDG_STATE_HOME=str(self.directory / "xdg"), SCANBRIDGE_CONFIG=str(self.file))
        done = scanbridge(*arguments, cwd=self.directory, env=env)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def _in_file(old: str, new: str) -> Callable[[Desk], None]:
    return lambda desk: desk.replace(old, new)


def _line(text: str) -> Callable[[Desk], None]:
    return lambda desk: desk.add(text)


def _whole(text: str | bytes) -> Callable[[Desk], None]:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda desk: desk.file.write_bytes(content)


def _nothing(_: Desk) -> None:
    pass


TENANT = "123e4567-e89b-12d3-a456-426614174000"

# The mistake, the command, its exit code, and words of its message.
MISTAKES: list[tuple[str, Callable[[Desk], None], str, int, list[str]]] = [
    # on the command line
    ("a misspelt command", _nothing, "chekc", 2, ["No such command 'chekc'", "Did you mean 'check'"]),
    ("a misspelt subcommand", _nothing, "quarantine lsit", 2, ["No such command 'lsit'", "Did you mean 'list'"]),
    ("a misspelt option", _nothing, "status --jsno", 2, ["No such option '--jsno'", "--json"]),
    ("a file that is not there", _nothing, "check -c nofile.yml", 78, ["nofile.yml", "No such file", "-c"]),
    ("a directory", _nothing, "check -c .", 2, ["'.' is a directory"]),
    ("a mail that is not there", _nothing, "scan no.eml", 2, ["'no.eml' does not exist"]),
    ("a mode that does not exist", _nothing, "setup postfix --mode mliter", 2, ["'mliter'", "'milter'"]),
    ("a forgotten mode", _nothing, "setup postfix", 2, ["--mode", "Choose from: proxy, milter, content-filter"]),
    ("remove for delete", _nothing, "lists remove blocked-senders x", 2, ["'remove'", "Did you mean 'delete'"]),
    ("rm for delete", _nothing, "quarantine rm 1A2B", 2, ["'rm'", "Did you mean 'delete'"]),
    ("-c before the command", _nothing, "-c bridge.yml status", 2, ["-c", "after the command"]),
    ("a time nobody understands", _nothing, "quarantine list --since lastweek", 2,
     ["--since", "'lastweek' is not a time", "3d", "yesterday"]),
    ("a state that does not exist", _nothing, "quarantine list --state relased", 2,
     ["'relased' is not a state", "did you mean released?"]),
    ("a decision that does not exist", _nothing, "quarantine list --decision bounced", 2,
     ["'bounced' is not a decision", "did you mean bounce?"]),
    ("no daemon to watch", _nothing, "top --once --interval 0.1", 1, ["no daemon answers at"]),
    ("a mail that is not in the quarantine", _nothing, "quarantine show 1A2B", 3,
     ["1A2B: no such mail", "state/quarantine", "it is empty"]),
    ("a path instead of an id", _nothing, "quarantine release ../token", 3, ["../token", "no such mail"]),
    # YAML
    ("an empty file", _whole(""), "check", 78, ["bridge.yml:1", "scanner: this key is required"]),
    ("a tab", _whole("scanner:\n\turls: []\n"), "check", 78, ["bridge.yml:2", "not YAML", "indent with spaces"]),
    ("a missing bracket", _whole("a: [b\nc: []\n"), "check", 78, ["bridge.yml:2", "not YAML", "']'"]),
    ("another encoding", _whole("a: ü".encode("utf-16")), "check", 78, ["bridge.yml", "not UTF-8", "save it as UTF-8"]),
    ("a key twice", _line("admin: {}"), "check", 78, ["bridge.yml:8: admin", "twice, first in line 5", "remove one"]),
    ("a broken file at a reload", _line("lisst: {}"), "reload", 78,
     ["did you mean lists?", "a running daemon keeps its configuration"]),
    # keys and values
    ("a misspelt key", _in_file("token_file", "tokenfile"), "check", 78, [":1: ", "did you mean token_file?"]),
    ("a key in the wrong place", _line("next_hop: a:25"), "check", 78, [":8: ", "did you mean relay.next_hop?"]),
    ("no unit", _line("late_decisions: {max_age: 10}"), "check", 78, [":8: ", "max_age", "for example 90s"]),
    ("text for a number", _line("workers: many"), "check", 78, [":8: workers", "a number from 1 to 64", "auto"]),
    ("`yes` for true", _in_file("max_connections: 50", "max_errors: yes"), "check", 78, [":7: ", "whole number"]),
    ("a misspelt profile", _in_file("name: mx,", "name: mx, profile: postfix-mliter,"), "check", 78,
     [":3: listeners.0.profile", "did you mean postfix-milter?"]),
    ("a profile of another protocol", _in_file("name: mx,", "name: mx, profile: postfix-milter,"), "check", 78,
     [":3: ", "postfix-milter is a profile for milter, but this listener speaks smtp"]),
    ("a misspelt action", _line("policy: {quarantine: rejct}"), "check", 78,
     [":8: policy", "relay, reject, discard", "did you mean reject?"]),
    ("a tenant that is not a UUID", _line("tenants: [{uid: acme, recipient_domains: [a.example]}]"), "check", 78,
     [":8: tenants.0.uid", "for example 123e4567"]),
    ("an address for a domain", _line(f"tenants: [{{uid: {TENANT}, recipient_domains: [u@a.example]}}]"), "check", 78,
     [":8: ", "for example example.org"]),
    ("a pattern for a domain", _line(f"tenants: [{{uid: {TENANT}, recipient_domains: ['*.a.example']}}]"), "check", 78,
     [":8: ", "for example example.org"]),
    # addresses
    ("a port that does not exist", _in_file('listeners:\n  - {name: mx, address: "127.0.0.1:',
                                            'listeners:\n  - {name: mx, address: "127.0.0.1:9'), "check", 78,
     [":3: listeners.0.address", "1 to 65535"]),
    ("no port", _in_file("smtp://127.0.0.1:", "smtp://127.0.0.1/"), "check", 78, [":4: ", "smtp://host:port"]),
    ("a network with host bits", _in_file("name: mx,", "name: mx, trusted_clients: [10.1.2.3/8],"), "check", 78,
     [":3: ", "write 10.0.0.0/8"]),
    ("open to everybody", _in_file('address: "127.0.0.1', 'address: "0.0.0.0'), "check", 78,
     [":3: ", "can be reached from other machines", "listen on 127.0.0.1"]),
    ("two listeners with one name", _in_file("relay:", '  - {name: mx, address: "127.0.0.1:1"}\nrelay:'), "check", 78,
     [":2: ", "two listeners are named mx", "another name"]),
    ("a token that is sent unencrypted", _in_file("http://127.0.0.1", "http://scanner.example"), "check", 78,
     [":1: ", "unencrypted", "use https://"]),
    ("a password in a URL", _in_file("http://127.0.0.1", "https://u:pw@scanner.example"), "check", 78,
     [":1: ", "must not contain a user name or password", "separate files"]),
    # files
    ("a token file that is not there", _in_file("token_file: token", "token_file: tokn"), "check", 1,
     ["token_file", "tokn", "No such file", "on one line"]),
    ("an empty token file", lambda desk: desk.write("token", ""), "run", 78, ["token_file", "must hold one line"]),
    ("a certificate that is not there", _in_file("name: mx,", "name: mx, tls: {cert_file: c.pem, key_file: k.pem},"),
     "run", 78, ["listener mx", "cert_file", "c.pem", "No such file"]),
    ("a state directory nobody can create", _in_file("state_directory: ", "state_directory: /proc"), "run", 78,
     ["state_directory", "cannot be created", "choose a directory"]),
    # programs that do not run
    ("no daemon: status", _nothing, "status", 1, ["no daemon answers at 127.0.0.1:", "is it running?"]),
    ("no daemon: reload", _nothing, "reload", 1, ["no daemon answers at 127.0.0.1:", "is it running?"]),
    ("no scanner", _nothing, "scan mail.eml", 1, ["mail.eml: no decision", "Connection refused", "scanner.urls"]),
    ("no next hop", _nothing, "check", 1, ["next hop smtp://127.0.0.1:", "Connection refused", "relay.next_hop"]),
    ("no List API", _nothing, "lists show", 78, ["not configured", "lists: {url: ..., api_key_file: ...}"]),
    ("no listener for the milter", _nothing, "setup postfix --mode milter", 78,
     ["no listener has the profile postfix-milter", "- {name: milter"]),
    ("a service without its file", _nothing, "service -c none.yml", 78, ["none.yml", "No such file"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arrange", "command", "code", "expected"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES]
)
def test_a_mistake_is_explained(
    desk: Desk, arrange: Callable[[Desk], None], command: str, code: int, expected: list[str]
) -> None:
    """What happened, where, and the next step; never a traceback, and never the token."""
    arrange(desk)
    found, printed = desk.run(*command.split())
    assert found == code, printed
    for words in expected:
        assert words in printed, printed
    assert "Traceback" not in printed and TOKEN not in printed


@pytest.mark.parametrize("which", ["port", "admin"])
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_taken_port_is_explained(desk: Desk, which: str, command: str) -> None:
    """The listener's port, or that of the admin address."""
    number = getattr(desk, which)
    with closing(socket.create_server(("127.0.0.1", number))):
        code, printed = desk.run(command)
    assert code == 1
    assert f"127.0.0.1:{number}" in printed and "is another program or another scanbridge using it?" in printed


@pytest.mark.parametrize("command", ["check", "scan mail.eml"])
def test_a_refused_token_is_explained(desk: Desk, command: str) -> None:
    """The scanner answers 401: the key in the configuration is named, the token is not shown."""
    background, scanner = Background(), FakeScanner()
    try:
        background.run(scanner.start())
        scanner.reply = scanner.status = answer(401)
        desk.replace(f"http://127.0.0.1:{desk.scanner}", scanner.url)
        code, printed = desk.run(*command.split())
    finally:
        background.run(scanner.stop())
        background.close()
    assert code == 1 and "401" in printed and "token_file" in printed and TOKEN not in printed


def test_an_expired_certificate_is_explained(desk: Desk) -> None:
    """`check` names the listener and the day."""
    end = datetime.now(UTC) - timedelta(days=3)
    cert = trustme.CA().issue_cert("mx.example", not_after=end)
    cert.cert_chain_pems[0].write_to_path(desk.directory / "c.pem")
    cert.private_key_pem.write_to_path(desk.directory / "k.pem")
    desk.replace("name: mx,", "name: mx, tls: {cert_file: c.pem, key_file: k.pem},")
    code, printed = desk.run("check")
    assert code == 1 and "listener mx" in printed and f"{end:%Y-%m-%d}" in printed and "expired" in printed


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root can read every file")
def test_an_unreadable_file_is_explained(desk: Desk) -> None:
    """Somebody else's file: the message says who must be able to read it."""
    desk.file.chmod(0)
    command = [sys.executable, "-m", "bridge", "check"]
    if os.geteuid() == 0:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        for above in (desk.directory, *desk.directory.parents[:3]):
            above.chmod(above.stat().st_mode | 0o755)
    done = subprocess.run(
        command, env=environment(SCANBRIDGE_CONFIG=str(desk.file)), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 78
    assert all(words in done.stderr for words in ("bridge.yml", "Permission denied", "root"))


def test_at_least_forty_mistakes_are_tried() -> None:
    """Each has its own name."""
    assert len({row[0] for row in MISTAKES}) == len(MISTAKES) >= 40
