"""`scanbridge check` finds each of these mistakes and says what to change; a good set-up gets one line."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import TOKEN, Background, FakeScanner, NextHop, answer, configuration, free_port, running_bridge
from tests.long_cases import few
from tests.requirements import need

GREEN = b'{"messageQueueStatus": "GREEN"}'


class World:
    """A good set-up: configuration, scanner, next hop, certificates, and Postfix files as `setup` prints them."""

    def __init__(self, directory: Path, background: Background) -> None:
        self.directory, self.scanner, self.hop = directory, FakeScanner(), NextHop()
        self.hop.extensions += ("XFORWARD NAME ADDR PROTO HELO",)
        background.run(self.scanner.start())
        background.run(self.hop.start())
        self.scanner.status = answer(200, GREEN, f"Date: {formatdate(usegmt=True)}")
        self.certify(datetime.now(UTC) + timedelta(days=90))
        tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
        limits = {"max_connections": 50}
        self.data = configuration(directory, self.scanner, self.hop, {"limits": limits}, tls=tls)
        (directory / "token").chmod(0o600)
        self.options: list[str] = []
        self.taken: list[socket.socket] = []

    @property
    def listener(self) -> dict[str, Any]:
        return self.data["listeners"][0]

    def certify(self, end: datetime) -> None:
        ca = trustme.CA()
        cert = ca.issue_cert("mx.example", not_after=end)
        chain = b"".join(pem.bytes() for pem in cert.cert_chain_pems) + ca.cert_pem.bytes()
        (self.directory / "cert.pem").write_bytes(chain)
        cert.private_key_pem.write_to_path(self.directory / "key.pem")

    def run(self, *options: str) -> Result:
        (self.directory / "bridge.yml").write_text(yaml_file.dump(self.data))
        arguments = ["check", "-c", str(self.directory / "bridge.yml"), *self.options, *options]
        return CliRunner().invoke(main, arguments)

    def postfix(self, mode: str, change: Callable[[str], str] = str) -> None:
        """`change` is applied to main.cf and to master.cf."""
        need("postconf")
        if mode == "milter":
            address = self.listener["address"]
            self.data["listeners"] = [{"name": "m", "protocol": "milter", "address": address}]
        else:
            self.listener["profile"] = f"postfix-{mode}"
        (self.directory / "bridge.yml").write_text(yaml_file.dump(self.data))
        place = self.directory / "postfix"
        place.mkdir()
        for name in ("main.cf", "master.cf"):
            arguments = ["setup", "postfix", "--mode", mode, "--file", name, "-c", str(self.directory / "bridge.yml")]
            text = CliRunner().invoke(main, arguments).stdout
            text += "compatibility_level = 3.6\nmyhostname = m.example\n" if name == "main.cf" else LOCAL
            (place / name).write_text(change(text))
            os.utime(place / name, (0, 0))  # Postfix waits two seconds for a file that has just changed
        self.options += ["--postfix", str(place)]

    def file(self, option: str, text: str) -> None:
        path = self.directory / "server.conf"
        path.write_text(text)
        self.options += [option, str(path)]


LOCAL = "local unix - n n - - local\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    background = Background()
    world = World(tmp_path, background)
    yield world
    for sock in world.taken:
        sock.close()
    background.run(world.scanner.stop())
    background.run(world.hop.stop())
    background.close()


@pytest.mark.parametrize("mode", ["", "proxy", "content-filter", "milter"])
def test_good_set_up_prints_one_line(world: World, mode: str) -> None:
    """OK and exit code 0, also with the Postfix files that `scanbridge setup` prints."""
    if mode:
        world.postfix(mode)
    done = world.run()
    assert (done.exit_code, done.stdout.count("\n"), done.stdout[:3]) == (0, 1, "OK:"), done.stdout
    assert done.stdout.endswith(f" checks passed ({world.directory / 'bridge.yml'})\n")
    assert TOKEN not in done.output


def swap(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


def status(world: World, whole: bytes) -> None:
    world.scanner.status = whole


def expire(world: World, days: float) -> None:
    world.certify(datetime.now(UTC) + timedelta(days=days))


def exim(world: World, text: str) -> None:
    world.listener.update(profile="exim-cutthrough", client_header="X-Client")
    port = world.listener["address"].rpartition(":")[2]
    world.file("--exim", text.replace("PORT", port))


EXIM = """\
message_size_limit = 52420000
acl_smtp_mail = acl_mail
acl_not_smtp = acl_local
accept add_header = :at_start:X-Client: ADDR=$sender_host_address
accept add_header = :at_start:X-Client: ADDR=
accept control = cutthrough_delivery/defer=pass
route_list = * 127.0.0.1::PORT byname
"""


def sendmail(world: World, text: str) -> None:
    world.listener.update(protocol="milter", profile="sendmail-milter")
    for key in ("tls", "client_header"):
        world.listener.pop(key, None)
    world.file("--sendmail", text.replace("PORT", world.listener["address"].rpartition(":")[2]))


SENDMAIL = """\
O MaxMessageSize=52428800
O InputMailFilters=scanbridge
Xscanbridge, S=inet:PORT@127.0.0.1, F=T, T=C:30s;S:30s;R:30s;E:5m
"""


def shift_chain(world: World) -> None:
    path = world.directory / "cert.pem"
    other = trustme.CA().cert_pem.bytes()
    path.write_bytes(
        path.read_bytes().partition(b"-----END CERTIFICATE-----\n")[0] + b"-----END CERTIFICATE-----\n" + other
    )


def take(world: World, address: str) -> None:
    """Another program listens there until the end of the test."""
    host, _, port = address.rpartition(":")
    world.taken.append(socket.create_server((host, int(port))))


def second_filter(world: World) -> None:
    """A milter beside the proxy filter: every mail is scanned twice."""
    world.postfix("proxy", lambda text: text.replace("smtpd_proxy_timeout", f"{MILTERS}\nsmtpd_proxy_timeout"))
    world.data["listeners"].append({"name": "m", "protocol": "milter", "address": f"127.0.0.1:{free_port()}"})
    path = world.directory / "postfix" / "main.cf"
    path.write_text(path.read_text().replace("ADDRESS", world.data["listeners"][1]["address"]))
    os.utime(path, (0, 0))


MILTERS = """\
smtpd_milters = inet:ADDRESS
milter_default_action = tempfail"""


def embedded_on_admin_port(world: World) -> None:
    world.data["embedded_service"] = True
    world.data["scanner"]["urls"] = [f"http://{world.data['admin']['address']}"]


def trust_everybody(world: World) -> None:
    address = world.listener["address"].replace("127.0.0.1", "0.0.0.0")
    world.listener.update(address=address, trusted_clients=["0.0.0.0/0", "10.0.0.0/8", "fc00::/7"])


MISTAKES: dict[str, tuple[Callable[[World], Any], str, str]] = {
    "wrong token": (lambda w: status(w, answer(401)), "PROBLEM", "service's token into token (scanner.token_file)"),
    "token for all": (lambda w: (w.directory / "token").chmod(0o644), "WARNING", "chmod 600"),
    "no token": (lambda w: (w.directory / "token").unlink(), "PROBLEM", "it must contain the secret on one line"),
    "expired certificate": (lambda w: expire(w, -1), "PROBLEM", "cert.pem, then run `scanbridge reload`"),
    "certificate ends soon": (lambda w: expire(w, 5), "WARNING", "expires soon"),
    "no chain": (shift_chain, "PROBLEM", "reorder the certificates"),
    "wrong clock": (
        lambda w: status(w, answer(200, GREEN, f"Date: {formatdate(time.time() - 900, usegmt=True)}")),
        "PROBLEM", "timedatectl set-ntp true",
    ),
    "small next hop": (lambda w: setattr(w.hop, "extensions", ("SIZE 1000", *w.hop.extensions)),
                       "PROBLEM", "limits.max_message_size: 1000"),
    "next hop without SMTPUTF8": (lambda w: setattr(w.hop, "extensions", ("8BITMIME", "DSN", "XFORWARD X")),
                                  "WARNING", "hide_extensions: [SMTPUTF8]"),
    "XFORWARD not announced": (lambda w: setattr(w.hop, "extensions", ("8BITMIME", "DSN", "SMTPUTF8")),
                               "WARNING", "smtpd_authorized_xforward_hosts"),
    "deadline too long": (lambda w: w.listener.update(deadline="100s"), "PROBLEM", "set it to 90s"),
    "too few descriptors": (lambda w: w.data["limits"].update(max_connections=10**9), "WARNING", "LimitNOFILE="),
    "admin port taken": (lambda w: take(w, w.data["admin"]["address"]), "PROBLEM", "admin.address: cannot listen on"),
    "the service on the admin port": (embedded_on_admin_port, "PROBLEM", "it has the same address as admin"),
    "everybody is trusted": (trust_everybody, "WARNING", "0.0.0.0/0 lets strangers send mail"),
    "slow mail passes": (lambda w: w.data.update(policy={"deadline": "relay"}), "WARNING", "policy.deadline: a mail"),
    "failing mail passes": (lambda w: w.listener.update(policy={"failed": "relay"}),
                            "WARNING", "use tempfail or quarantine"),
    "mail passes in a flood": (lambda w: w.data.update(policy={"saturated": "relay"}), "WARNING", "policy.saturated: "),
    "odd mail passes": (lambda w: w.data.update(policy={"undecided": "relay"}), "WARNING", "policy.undecided: a mail"),
    "wanted mail is dropped": (lambda w: w.data.update(policy={"deliver": "discard"}), "WARNING", "policy.deliver: "),
    "milter and proxy filter": (second_filter, "PROBLEM", "scanned twice, by smtpd_proxy_filter of smtp/inet and "),
    "unreachable database": (
        lambda w: w.data.update(state_database="postgresql://x@127.0.0.1:1/x"), "PROBLEM", "state_database",
    ),
    "Postfix does not wait": (
        lambda w: w.postfix("proxy", swap("smtpd_proxy_timeout = 100s", "smtpd_proxy_timeout = 60s")),
        "PROBLEM", "set smtpd_proxy_timeout = 100s",
    ),
    "missing XFORWARD host": (
        lambda w: w.postfix("proxy", swap("xforward_hosts=127.0.0.0/8,[::1]/128", "xforward_hosts=192.0.2.1")),
        "PROBLEM", "smtpd_authorized_xforward_hosts=127.0.0.0/8",
    ),
    "filter not named": (lambda w: w.postfix("proxy", swap("-o smtpd_proxy_filter=127", "-o smtpd_proxy_filter=128")),
                         "PROBLEM", "set -o smtpd_proxy_filter=127.0.0.1:"),
    "Postfix takes larger mail": (lambda w: w.postfix("proxy", swap("-o message_size_limit=52420608", "")),
                                  "PROBLEM", "-o message_size_limit=52420608"),
    "small mailboxes": (lambda w: w.postfix("proxy", swap("\nmailbox_size_limit = 0", "\nmailbox_size_limit = 1000")),
                        "PROBLEM", "set mailbox_size_limit = 0"),
    "mail loops": (lambda w: w.postfix("content-filter", swap("-o content_filter=\n", "-o syslog_name=x\n")),
                        "PROBLEM", "set -o content_filter= for"),
    "queue does not wait": (lambda w: w.postfix("content-filter", swap("timeout=600s", "timeout=300s")),
                            "PROBLEM", "set smtp_data_done_timeout = 600s"),
    "client not told": (lambda w: w.postfix("content-filter", swap("xforward_command=yes", "xforward_command=no")),
                        "PROBLEM", "smtp_send_xforward_command=yes"),
    "bounces with content": (lambda w: w.postfix("content-filter", swap("bounce_size_limit = 1\n", "")),
                             "PROBLEM", "set bounce_size_limit = 1"),
    "milter fails open": (lambda w: w.postfix("milter", swap("action = tempfail", "action = accept")),
                          "PROBLEM", "milter_default_action = tempfail"),
    "no macros": (lambda w: w.postfix("milter", swap("protocol = 6", "protocol = 2")),
                  "PROBLEM", "milter_protocol = 6"),
    "Exim defers by itself": (lambda w: exim(w, EXIM.replace("/defer=pass", "")), "PROBLEM", "/defer=pass"),
    "Exim without a router": (lambda w: exim(w, EXIM.replace("PORT", "9")), "PROBLEM", "route_list = * 127.0.0.1::"),
    "Exim takes larger mail": (lambda w: exim(w, EXIM.replace("52420000", "60M")), "PROBLEM", "= 52420608"),
    "Exim believes senders": (lambda w: exim(w, EXIM.replace("acl_not_smtp = acl_local", "")),
                              "PROBLEM", "ADDR=$sender_host_address to acl_not_smtp"),
    "Exim's field is below": (lambda w: exim(w, EXIM.replace(":at_start:", "")),
                              "PROBLEM", "use accept add_header = :at_start:X-Client"),
    "Exim names no client": (lambda w: (exim(w, EXIM), w.listener.update(client_header=None)),
                             "WARNING", "set client_header: X-Scanbridge-Client"),
    "Sendmail fails open": (lambda w: sendmail(w, SENDMAIL.replace(" F=T,", "")), "PROBLEM", "add F=T"),
    "Sendmail does not wait": (lambda w: sendmail(w, SENDMAIL.replace("E:5m", "E:1m")), "PROBLEM", "set E:300s"),
    "Sendmail does not ask": (lambda w: sendmail(w, SENDMAIL.replace("Filters=scan", "Filters=")),
                              "PROBLEM", "INPUT_MAIL_FILTER, not MAIL_FILTER"),
}  # fmt: skip


# What no key of the configuration can change, and what names another file.
ELSEWHERE = re.compile(
    r"^(clock|descriptors|Postfix|Exim|Sendmail|.*[./](cf|conf)\b|[^:]*: [^:]*: .*cert.pem)", re.IGNORECASE
)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_found_with_its_remedy(world: World, name: str) -> None:
    """One line for the one mistake; a problem exits with 1, a warning with 0."""
    make, state, remedy = MISTAKES[name]
    make(world)
    done = world.run()
    (line,) = done.stdout.splitlines()
    assert f": {state}: " in line and remedy in line, line
    assert ELSEWHERE.search(line) or "bridge.yml:" in line, "where is the key in the file?"
    assert done.exit_code == (1 if state == "PROBLEM" else 0)


def test_a_listener_that_postfix_does_not_use_is_a_note(world: World) -> None:
    """The guide has a milter and a proxy listener and says to use one of them; the other was called a problem."""
    world.postfix("proxy")
    world.data["listeners"].append({"name": "m", "protocol": "milter", "address": f"127.0.0.1:{free_port()}"})
    done = world.run()
    note, good = done.stdout.splitlines()
    assert note.startswith("Postfix and listener m: NOTE: this Postfix does not use it") and good.startswith("OK: ")
    assert done.exit_code == 0
    found = json.loads(world.run("--json").stdout)
    assert found["ok"] is True and [finding["state"] for finding in found["findings"]].count("note") == 1


def test_the_admin_port_of_another_daemon_is_found(world: World, tmp_path: Path) -> None:
    """Its listeners are not ours, so it cannot be the daemon of this configuration."""
    other = tmp_path / "other"
    other.mkdir()
    with running_bridge(other) as bridge:
        world.data["admin"]["address"] = f"127.0.0.1:{bridge.admin_port}"
        world.listener["name"] = "mx"
        done = world.run()
        (line,) = done.stdout.splitlines()
        assert "another scanbridge daemon" in line and "admin.address: another" in line and done.exit_code == 1


def shell(place: Path, script: str) -> str:
    """Runs the commands with the Postfix files in `place`. Postfix waits two seconds for files that have just changed,
    so these look old before each of its commands."""
    old = 'postconf() { touch -d @0 "$MAIL_CONFIG"/*.cf; command postconf "$@"; }\n'
    environment = {"MAIL_CONFIG": str(place), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    run = subprocess.run(
        ["/bin/sh", "-e"], input=old + script, text=True, env=environment, check=True, timeout=120, capture_output=True
    )
    return run.stdout


@pytest.mark.parametrize("mode", few(["proxy", "content-filter", "milter"], 1))
def test_setup_commands_may_be_run_twice(world: World, mode: str) -> None:
    """They lead to a Postfix in which `check` finds nothing, keep what is there, and change nothing the second time."""
    world.postfix(mode)
    place = world.directory / "commanded"
    place.mkdir()
    (place / "main.cf").write_text(
        "compatibility_level = 3.6\nmyhostname = m.example\nsmtpd_milters = inet:h:1, inet:h:2\n"
    )
    (place / "master.cf").write_text("smtp inet n - n - - smtpd\n  -o syslog_name=postfix/front\n" + LOCAL)
    arguments = ["setup", "postfix", "--mode", mode, "--commands", "-c", str(world.directory / "bridge.yml")]
    script = CliRunner().invoke(main, arguments).stdout
    seen = []
    for _ in range(2):
        shell(place, script)
        seen.append([(place / name).read_text() for name in ("main.cf", "master.cf")])
    assert seen[0] == seen[1]
    assert "syslog_name=postfix/front" in seen[0][1] and "inet:h:1, inet:h:2" in seen[0][0]
    shutil.rmtree(world.directory / "postfix")
    place.rename(world.directory / "postfix")
    for name in ("main.cf", "master.cf"):
        os.utime(world.directory / "postfix" / name, (0, 0))
    done = world.run()
    assert (done.exit_code, done.stdout[:3]) == (0, "OK:"), done.stdout


@pytest.mark.parametrize("mode", few(["milter", "proxy", "content-filter"], 1))
def test_setup_commands_are_undone(world: World, mode: str) -> None:
    """What the operator had set is kept, also a value that was changed since; undoing twice changes nothing."""
    world.postfix(mode)
    place = world.directory / "commanded"
    place.mkdir()
    main_cf = "compatibility_level = 3.6\nmyhostname = m.example\nsmtpd_milters = inet:h:1, inet:h:2\n"
    (place / "main.cf").write_text(main_cf)
    (place / "master.cf").write_text("smtp inet n - n - - smtpd\n  -o syslog_name=postfix/front\n" + LOCAL)

    def settings() -> list[str]:
        return [shell(place, command) for command in ("postconf -n", "postconf -M", "postconf -P")]

    arguments = ["setup", "postfix", "--mode", mode, "-c", str(world.directory / "bridge.yml")]
    before = settings()
    shell(place, CliRunner().invoke(main, [*arguments, "--commands"]).stdout)
    assert settings() != before
    undo = CliRunner().invoke(main, [*arguments, "--undo"]).stdout
    for _ in range(2):
        shell(place, undo)
        assert settings() == before
    shell(place, CliRunner().invoke(main, [*arguments, "--commands"]).stdout)
    shell(place, "postconf -e 'message_size_limit = 12345678'")
    shell(place, undo)
    assert "message_size_limit = 12345678" in settings()[0]


@pytest.mark.parametrize("mode", ["proxy", "content-filter", "milter"])
def test_postfix_must_not_rewrite_recipients_on_which_a_tenant_depends(world: World, mode: str) -> None:
    """`setup` prints the two settings, and `check` looks for them; without tenants, neither does."""
    world.postfix(mode)
    assert "percent_hack" not in (world.directory / "postfix/main.cf").read_text()
    shutil.rmtree(world.directory / "postfix")
    world.options.clear()
    world.data["tenants"] = [{"uid": "123e4567-e89b-12d3-a456-426614174000", "recipient_domains": ["a.example"]}]
    world.postfix(mode)
    file = world.directory / "postfix/main.cf"
    assert "\nallow_percent_hack = no\nswap_bangpath = no\n" in file.read_text()
    assert world.run().stdout.startswith("OK:")
    file.write_text(file.read_text().replace("allow_percent_hack = no", "").replace("swap_bangpath = no", ""))
    os.utime(file, (0, 0))
    done = world.run()
    assert done.exit_code == 1, done.stdout
    for name in ("allow_percent_hack", "swap_bangpath"):
        assert f"Postfix {name}: PROBLEM: " in done.stdout and f"set {name} = no in main.cf" in done.stdout
    # The message ended with a bare "(yes)".
    assert "set allow_percent_hack = no in main.cf (now: yes)" in done.stdout
    assert done.stderr == f"checked: {world.directory / 'bridge.yml'}\n"


def test_setup_ends_with_the_check_of_the_same_configuration(world: World) -> None:
    world.postfix("proxy")
    file = world.directory / "bridge.yml"
    for more in ([], ["--commands"]):
        text = CliRunner().invoke(main, ["setup", "postfix", "--mode", "proxy", "-c", str(file), *more]).stdout
        assert text.rstrip().endswith(f'scanbridge check -c {file} --postfix "$(postconf -h config_directory)"'), text


def test_a_misspelled_listener_for_test_mail_is_named(world: World) -> None:
    done = world.run("--send-test", "--to", "a@b.example", "--listener", f"{world.listener['name']}x")
    assert f"did you mean {world.listener['name']}?" in done.stdout and done.exit_code == 1, done.stdout


def test_json_has_every_finding(world: World) -> None:
    """Findings without a problem are included."""
    expire(world, -1)
    shown = json.loads(world.run("--json").stdout)
    assert shown["ok"] is False and len(shown["findings"]) > 5
    assert [finding["state"] for finding in shown["findings"]].count("problem") == 1


def test_good_exim_and_sendmail_have_no_problem(world: World) -> None:
    """Settings as in deploy/exim and deploy/sendmail."""
    exim(world, EXIM)
    assert world.run().stdout.startswith("OK:")
    world.options.clear()
    sendmail(world, SENDMAIL)
    assert world.run().stdout.startswith("OK:")


def test_send_test_needs_a_recipient_and_shows_every_outcome(tmp_path: Path) -> None:
    """Five real mails are sent to the given address."""
    with running_bridge(tmp_path, {"limits": {"max_connections": 50}}) as bridge:
        address = f"127.0.0.1:{bridge.port}"
        data = configuration(
            tmp_path, bridge.scanner, bridge.next_hop, {"admin": {"address": f"127.0.0.1:{bridge.admin_port}"}}
        )
        data["listeners"][0]["address"] = address
        (tmp_path / "check.yml").write_text(yaml_file.dump(data))
        command = ["check", "-c", str(tmp_path / "check.yml"), "--send-test"]
        assert CliRunner().invoke(main, command).exit_code == 2
        done = CliRunner().invoke(main, [*command, "--to", "b@example.org"])
        lines = [line for line in done.stdout.splitlines() if line.startswith("test mail ")]
        assert [line.split()[2] for line in lines] == ["clean", "GTUBE", "EICAR", "large", "SMTPUTF8"], done.output
        assert all(": ok (250 2.0.0 Ok: queued as NEXT1" in line for line in lines)
        assert len(bridge.next_hop.mails) == 5
        bridge.scanner.reply = answer(500)
        refused = CliRunner().invoke(main, [*command, "--to", "b@example.org"])
        assert refused.exit_code == 1 and "test mail clean through test: PROBLEM: no decision: 451" in refused.stdout
