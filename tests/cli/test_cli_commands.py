"""The command line, with a scripted scanner and next hop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bridge import __version__
from bridge.cli import main
from bridge.cli.status import table
from bridge.config import model
from bridge.observe.admin_client import ask
from bridge.runtime import yaml_file
from bridge.runtime.build import version
from bridge.runtime.endpoints import Endpoint
from bridge.testing import TOKEN, Background, FakeScanner, NextHop, answer, free_port, result, running_bridge
from tests.daemon.process_kit import ROOT, environment, scanbridge, write_config
from tests.long_cases import few

TENANT = "123e4567-e89b-12d3-a456-426614174000"


class Place:
    """A directory with a configuration, and the servers it names."""

    def __init__(self, directory: Path, scanner: FakeScanner, next_hop: NextHop) -> None:
        self.directory, self.scanner, self.next_hop = directory, scanner, next_hop
        self.port, self.admin = free_port(), free_port()
        (directory / "token").write_text(TOKEN + "\n")
        (directory / "token").chmod(0o600)
        self.config = directory / "bridge.yml"
        self.write()

    def write(self, **sections: Any) -> None:
        data: dict[str, Any] = {
            "scanner": {"urls": [self.scanner.url], "token_file": "token"},
            "listeners": [{"name": "mx", "address": f"127.0.0.1:{self.port}"}],
            "relay": {"next_hop": self.next_hop.url},
            "admin": {"address": f"127.0.0.1:{self.admin}"},
            "state_directory": str(self.directory / "state"),
            "limits": {"max_connections": 50},  # within any usual ulimit -n
        }
        for name, value in sections.items():
            data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
        self.config.write_text(yaml_file.dump(data))

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-c", str(self.config)])

    def mail(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    next_hop.extensions += ("XFORWARD NAME ADDR",)
    background.run(scanner.start())
    background.run(next_hop.start())
    yield Place(tmp_path, scanner, next_hop)
    background.run(scanner.stop())
    background.run(next_hop.stop())
    background.close()


def test_help_names_every_command() -> None:
    """Every command is listed and has its own help."""
    shown = CliRunner().invoke(main, ["--help"])
    commands = shown.output.split("Commands:\n")[1]
    names = [line.split()[0] for line in commands.splitlines() if line.startswith("  ") and line[2] != " "]
    for name in ("run", "check", "scan", "status", "service", "config"):
        assert name in names
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
    assert CliRunner().invoke(main, ["--version"]).output == f"scanbridge, version {__version__} (source tree)\n"


@pytest.mark.parametrize("command", [["run"], ["check"], ["scan", "token"], ["status"], ["config", "show"]])
def test_every_command_reports_the_mistakes_in_the_configuration(
    place: Place, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All mistakes are reported together; the exit code is 78."""
    monkeypatch.chdir(place.directory)
    place.config.write_text(f"listeners: []\nnonsense: 1\nadmin: {{address: '127.0.0.1:{free_port()}'}}\n")
    done = place.run(*command)
    assert done.exit_code == 78
    assert done.stderr.splitlines() == [
        f"{place.config}:1: listeners: expected 1 or more entries",
        f"{place.config}:1: scanner: this key is required",
        f"{place.config}:2: nonsense: unknown key; did you mean policy.nonsense?",
    ]


def test_a_missing_configuration_is_reported(tmp_path: Path) -> None:
    """SCANBRIDGE_CONFIG is treated like the option, and the message names the one that was used."""
    missing = str(tmp_path / "none.yml")
    problem = f"{missing}: cannot be read: No such file or directory"
    done = CliRunner().invoke(main, ["check"], env={"SCANBRIDGE_CONFIG": missing})
    assert (done.exit_code, done.stderr) == (78, f"{problem}; check the environment variable SCANBRIDGE_CONFIG\n")
    done = CliRunner().invoke(main, ["check", "-c", missing])
    assert (done.exit_code, done.stderr) == (78, f"{problem}; check the path given with -c\n")


# config


def test_config_show_prints_the_effective_configuration_and_no_secret(place: Place) -> None:
    """The YAML can be loaded again; --json is for programs."""
    shown, machine = place.run("config", "show"), place.run("config", "show", "--json")
    assert shown.exit_code == machine.exit_code == 0
    again = yaml_file.load(place.config, model.Config, shown.stdout)
    assert again.listeners[0].deadline == 90.0
    assert json.loads(machine.stdout)["listeners"][0]["policy"]["bounce"] == "reject"
    assert TOKEN not in shown.output + machine.output


def test_config_show_without_a_file_prints_the_embedded_default(tmp_path: Path) -> None:
    """Its state is in the XDG state directory, or in the one that systemd names."""
    home = {"XDG_STATE_HOME": str(tmp_path), "STATE_DIRECTORY": "", "SCANBRIDGE_CONFIG": ""}
    shown = CliRunner().invoke(main, ["config", "show"], env=home)
    assert f"maildir:{tmp_path}/scanbridge-demo/Maildir" in shown.stdout
    systemd = {**home, "STATE_DIRECTORY": f"{tmp_path}/a:{tmp_path}/b"}
    assert f"maildir:{tmp_path}/a/Maildir" in CliRunner().invoke(main, ["config", "show"], env=systemd).stdout


def test_config_schema_is_json() -> None:
    """Editors use the schema for completion."""
    shown = CliRunner().invoke(main, ["config", "schema"])
    assert json.loads(shown.stdout)["title"] == "scanbridge configuration"


# scan


def test_scan_prints_one_decision_per_file(place: Place) -> None:
    """Files with LF are sent with CRLF, with the envelope from the command line."""
    first = place.mail("a.eml", b"Subject: a\n\nhello\n")
    second = place.mail("b.eml", b"Subject: b\r\n\r\nhello\r\n")
    place.scanner.reply = answer(200, result("quarantine", verdict="virus"))
    done = place.run("scan", first, second, "--from", "a@b", "--to", "c@d", "--to", "e@f", "--tenant", TENANT)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{path}: quarantine verdict=virus tags=a:b ggrid=11111111-2222-4333-8444-555555555555"
        for path in (first, second)
    ]
    unix, dos = place.scanner.submissions
    assert unix.email == b"Subject: a\r\n\r\nhello\r\n" and dos.email == b"Subject: b\r\n\r\nhello\r\n"
    assert unix.parameters == {
        "borderMtaData": {"envelopeFrom": "a@b", "envelopeRecipients": ["c@d", "e@f"]},
        "tenantUid": TENANT,
    }


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_scan_tells_who_sent_the_mail(place: Place, address: str) -> None:
    """As the mail server saw it: SPF and lists of networks then give the same result as for the mail itself."""
    path = place.mail("a.eml", b"Subject: a\n\nhello\n")
    done = place.run("scan", path, "--remote-address", address, "--helo", "mx.example.org")
    assert done.exit_code == 0
    border = place.scanner.submissions[0].parameters["borderMtaData"]
    assert (border["remoteAddress"], border["senderHelo"]) == (address, "mx.example.org")


@pytest.mark.parametrize("address", ["", "unknown", "192.0.2", "mx.example.org", "192.0.2.0/24"])
def test_scan_refuses_what_is_not_an_address(place: Place, address: str) -> None:
    """A typing error would silently change the result."""
    done = place.run("scan", place.mail("a.eml", b"Subject: a\n\n"), "--remote-address", address)
    assert done.exit_code == 2 and "for example 192.0.2.7" in done.stderr
    assert place.scanner.submissions == []


def test_a_mailbox_was_scanned_as_one_mail(place: Place) -> None:
    """A clean first mail hid the decision about the others."""
    separator = b"From a@client.example Thu Jan  1 00:00:00 2026\n"
    path = place.mail("mbox", b"%bSubject: a\n\nhello\n\n%bSubject: b\n\nhello\n" % (separator, separator))
    done = place.run("scan", path)
    assert done.exit_code == 1 and f"{path}: no decision: it is a mailbox (mbox) with several mails" in done.stderr
    assert place.scanner.submissions == []


def test_scan_prints_json(place: Place) -> None:
    """One JSON object per line; the sender is null unless given."""
    path = place.mail("a.eml", b"Subject: a\n\nhello\n")
    done = place.run("scan", path, "--json")
    (line,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert line["file"] == path and line["decision"] == "deliver" and line["tags"] == ["a:b"]
    assert place.scanner.submissions[0].parameters["borderMtaData"]["envelopeFrom"] == ""


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answer(401, b'{"error": "bad_token"}'), "401 bad_token"),
        (answer(500), "500"),
        (answer(429), "429"),
        (answer(413), "413"),
        (answer(200, b"<html>"), "cannot be read"),
    ],
)
def test_scan_without_a_decision_is_exit_1(place: Place, reply: bytes, words: str) -> None:
    """Standard error has the reason, without the token."""
    place.scanner.reply = reply
    done = place.run("scan", place.mail("a.eml", b"Subject: a\n\n"))
    assert done.exit_code == 1 and done.stdout == ""
    assert "no decision: " in done.stderr and words in done.stderr and TOKEN not in done.output


def test_scan_does_not_send_mail_over_the_size_limit(place: Place) -> None:
    """The limit is 50 MiB; the other file is still scanned."""
    large = place.directory / "large.eml"
    with large.open("wb") as file:
        file.truncate(50 * 1024 * 1024 + 1)
    small = place.mail("small.eml", b"Subject: a\n\n")
    done = place.run("scan", str(large), small)
    assert done.exit_code == 1 and "larger than the 50 MiB" in done.stderr
    assert done.stdout.startswith(f"{small}: deliver") and len(place.scanner.submissions) == 1


@pytest.mark.parametrize("arguments", [[], ["none.eml"], ["token", "--tenant", "17"]])
def test_scan_with_unusable_arguments_is_a_usage_error(
    place: Place, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file, a missing file, and an invalid tenant."""
    monkeypatch.chdir(place.directory)
    assert place.run("scan", *arguments).exit_code == 2


# check


def test_check_of_a_good_set_up_succeeds(place: Place) -> None:
    """One line per check, exit code 0, and the ports are free afterwards."""
    done = place.run("check", "-v")
    assert done.exit_code == 0, done.output
    assert [line.partition(": ")[2].split(" ")[0] for line in done.stdout.splitlines()] == ["ok"] * 8
    assert TOKEN not in done.output
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", place.port))


def test_check_names_every_next_hop_it_tried(place: Place) -> None:
    """Default, routes and tenants: each next hop is tried once, and each that is down is a separate problem."""
    down, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    own = {"next_hops": [place.next_hop.url, f"smtp://{other}"]}
    place.write(
        relay={"routes": [{"recipient_domains": ["x.example"], "next_hop": down}]},
        tenants=[{"uid": TENANT, "recipient_domains": ["y.example"], "relay": own}],
    )
    done = place.run("check", "-v")
    hops = [line for line in done.stdout.splitlines() if line.startswith("next hop")]
    assert [line.split()[2].rstrip(":") for line in hops] == [place.next_hop.url, f"smtp://{down}", f"smtp://{other}"]
    assert problems(done) == hops[1:]
    assert "PIPELINING" in hops[0]


def problems(done: Result) -> list[str]:
    assert done.exit_code == 1, done.output
    return [line for line in done.stdout.splitlines() if "PROBLEM" in line]


def test_check_reports_all_problems_together(place: Place) -> None:
    """Token, ports, deadline and next hop, each with the next step."""
    (place.directory / "token").unlink()
    place.write(
        listeners=[
            {"name": "a", "address": f"127.0.0.1:{place.port}"},
            {"name": "b", "address": "127.0.0.1:1", "deadline": "100s"},
            {"name": "c", "address": "127.0.0.1:2", "tls": {"cert_file": "none.pem", "key_file": "none.pem"}},
        ],
        relay={"next_hop": f"127.0.0.1:{free_port()}"},
    )
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", place.port))
        taken.listen()
        found = problems(place.run("check", "-v"))
    assert [line.split(":")[0] for line in found] == [
        "token",
        "listener a",
        "listener b",
        "listener c",
        "next hop smtp",
    ]
    assert "it must contain the secret on one line" in found[0] and "Address already in use" in found[1]
    assert "set it to 90s" in found[2] and "none.pem" in found[3]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (answer(401), "the token was refused"),
        (answer(500), "the status request was answered with 500"),
        (answer(200, b"[]"), "cannot be read"),
    ],
)
def test_check_reports_what_is_wrong_with_the_scanner(place: Place, status: bytes, words: str) -> None:
    """One line with the scanner's address."""
    place.scanner.status = status
    (found,) = problems(place.run("check", "-v"))
    assert found.startswith(f"scanner {place.scanner.url}: PROBLEM: ") and words in found


def test_scan_and_check_print_no_log_lines(place: Place) -> None:
    """What the daemon would log ("its circuit is open") is in the message already."""
    place.scanner.reply = place.scanner.status = answer(500)
    mail = place.mail("mail.eml", b"Subject: hello\n\nhello\n")
    for command in (["scan", *[mail] * 3], ["check"]):
        done = scanbridge(*command, "-c", place.config)
        lines = (done.stdout + done.stderr).splitlines()
        assert done.returncode == 1
        expected = (f"{mail}: no decision: ", f"scanner {place.scanner.url}: ", f"checked: {place.config}")
        assert all(line.startswith(expected) for line in lines)


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        (answer(401), "; put the service's token into token (scanner.token_file), then run `scanbridge reload`"),
        (answer(403), "; put the service's token into token (scanner.token_file), then run `scanbridge reload`"),
        (answer(404), "; check scanner.urls and scanner.dialect"),
        (answer(500), "; check scanner.urls"),
        (
            answer(500, b'{"error": "upstream", "message": "Connection refused: 404"}'),
            "refused: 404; check scanner.urls",
        ),
        (
            answer(403, b'{"error": "forbidden"}'),
            "; give this token the permission to scan (`permissions` in abby.staticApiTokens), then reload the service",
        ),
        (answer(200, b"<html>"), "; check scanner.urls"),
        (answer(413), "413"),
        (answer(422), "422"),
    ],
)
def test_scan_says_what_to_do_next(place: Place, reply: bytes, end: str) -> None:
    """Nothing, if the mail is the cause."""
    place.scanner.reply = reply
    mail = place.mail("mail.eml", b"Subject: hello\n\nhello\n")
    done = place.run("scan", mail)
    assert done.exit_code == 1 and done.stderr.startswith(f"{mail}: no decision: {place.scanner.url}")
    assert done.stderr.rstrip().endswith(end)


def test_check_names_the_key_of_each_next_hop(place: Place) -> None:
    """Of the default, of a route and of a tenant; the reason is in words."""
    text = place.config.read_text()
    data, _ = yaml_file.read(place.config, text)
    ports = [free_port() for _ in range(4)]
    hops = [f"smtp://127.0.0.1:{port}" for port in ports]
    data["relay"] = {
        "next_hops": hops[:2],
        "routes": [{"recipient_domains": ["a.example"], "next_hop": hops[2]}],
    }
    data["tenants"] = [{"uid": TENANT, "recipient_domains": ["b.example"], "relay": {"next_hop": hops[3]}}]
    place.config.write_text(yaml_file.dump(data))
    keys = ["relay.next_hops", "relay.next_hops", "relay.routes.0.next_hop", "tenants.0.relay.next_hop"]
    said, lines = problems(place.run("check")), place.config.read_text().splitlines()
    for problem, hop, key in zip(said, hops, keys, strict=True):
        mark = "next_hops:" if key.endswith(".next_hops") else hop
        line = next(number for number, line in enumerate(lines, 1) if mark in line)
        where = f"{place.config}:{line}: {key}: {hop}"
        end = "Connection refused; is the server running? check its address"
        assert problem == f"next hop {hop}: PROBLEM: {where}: {end}"


def test_check_shows_the_status_of_the_scanner(place: Place) -> None:
    """RED is not a configuration problem, but the operator should see it."""
    place.scanner.status = answer(200, b'{"messageQueueStatus": "RED"}')
    assert f"scanner {place.scanner.url}: ok (RED)" in place.run("check", "-v").stdout


def test_check_reports_an_unusable_ca_file(place: Place) -> None:
    """scanner.ca_file names a file without certificates."""
    place.write(scanner={"urls": ["https://127.0.0.1:1"], "ca_file": "token"})
    assert any("scanner.ca_file" in line for line in problems(place.run("check", "-v")))


def test_check_leaves_a_unix_socket_of_another_program_alone(place: Place) -> None:
    """A socket in use is reported and kept; a stale one is replaced."""
    path = place.directory / "x.sock"
    place.write(listeners=[{"name": "a", "address": f"unix:{path}"}])
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        (found,) = problems(place.run("check", "-v"))
    assert "listener a" in found and path.exists()
    path.unlink()
    assert place.run("check", "-v").exit_code == 0 and not path.exists()


# status


def test_status_without_a_daemon_is_exit_1(place: Place) -> None:
    """Nothing listens on the admin address."""
    done = place.run("status")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"no daemon answers at 127.0.0.1:{place.admin} (admin.address); is it running?")


def test_a_daemon_that_hangs_was_said_not_to_run(place: Place) -> None:
    """Somebody listens, and does not answer: to start a second daemon would not help."""
    with socket.create_server(("127.0.0.1", place.admin)):
        done = place.run("status")
    assert done.exit_code == 1 and f"although process {os.getpid()} (" in done.stderr, done.stderr
    assert "it is still starting or not responding: try again, then check its log and restart it" in done.stderr


def test_status_of_another_program_is_exit_1(place: Place) -> None:
    """The program on the admin address is not scanbridge."""
    place.write(admin={"address": f"127.0.0.1:{place.scanner.port}"})
    assert place.run("status").exit_code == 1


@pytest.mark.parametrize("address", ["unix:/nonexistent/admin.sock", "systemd:admin"])
def test_status_over_other_sockets_does_not_crash(place: Place, address: str) -> None:
    """A unix socket that does not exist, and one that only systemd knows."""
    place.write(admin={"address": address})
    done = place.run("status")
    assert done.exit_code == 1 and "no daemon answers" in done.stderr


def test_status_over_a_unix_socket(tmp_path: Path) -> None:
    """The admin address need not be a port."""
    path = tmp_path / "admin.sock"
    with running_bridge(tmp_path, {"admin": {"address": f"unix:{path}"}}) as running:
        state = ask(Endpoint(path=str(path)))
        assert state is not None and state["ready"] is True
        shown = table(state).splitlines()
        assert f"next hop       {running.next_hop.url}: not tried yet" in shown
        state["scanner"][0]["circuit"] = "open"
        assert table(state).splitlines()[-2].endswith("in flight, circuit open")
        assert ", up 7 days, ready" in table({**state, "uptime_s": 604_800}).splitlines()[0]
        assert "workers" not in table(state)
        assert "version  " not in table(state)
        replaced = f"version        this command is scanbridge {version()}; restart the daemon to run the same version"
        assert replaced in table({**state, "build": "commit 0123456789ab"}).splitlines()
        assert replaced in table({**state, "version": "0.0.1"}).splitlines()
        del state["build"]  # a daemon from before builds had names
        assert replaced in table(state).splitlines()
        assert "workers        1 of 2 running" in table({**state, "workers_wanted": 2}).splitlines()


def test_a_command_of_another_user_says_who_must_run_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It told a user who may not see the daemon's state to choose another directory."""
    place.write(state_directory="/proc/nothing")
    who = "run this command as root or as the daemon's user\n"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert who not in place.run("quarantine", "list").stderr
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    done = place.run("quarantine", "list")
    assert done.exit_code == 78 and done.stderr.endswith(who)
    assert "state_directory: /proc/nothing cannot be created: " in done.stderr


@pytest.mark.parametrize("command", few(["scan", "check", "replay"], 1))
def test_interrupted_with_ctrl_c(tmp_path: Path, command: str) -> None:
    """As shells report it; it was 1, like a mail without a decision."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config, _, _ = write_config(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", "smtp://127.0.0.1:1")
        mail = tmp_path / "mail.eml"
        mail.write_bytes(b"Subject: x\r\n\r\nx\r\n")
        arguments = [sys.executable, "-m", "bridge", command, "-c", str(config)] + [str(mail)] * (command != "check")
        options: dict[str, Any] = {"cwd": ROOT, "env": environment(), "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(arguments, **options) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
