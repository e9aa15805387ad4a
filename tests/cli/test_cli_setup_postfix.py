"""`scanbridge setup postfix --commands` and `--undo` leave the operator's own settings in Postfix as they were."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.testing import FakeScanner, NextHop, configuration
from tests.requirements import find, need

MODES = (
    "proxy",
    pytest.param("content-filter", marks=pytest.mark.long),
    pytest.param("milter", marks=pytest.mark.long),
)
MAIN = "compatibility_level = 3.6\nmyhostname = m.example\n"
FRONT = "smtp inet n - n - - smtpd\n"
OTHERS = "local unix - n n - - local\nvirtual unix - n n - - virtual\n"


class Postfix:
    """Configuration files of a Postfix that does not run, and a configuration of the bridge for them."""

    def __init__(self, directory: Path, mode: str, main_cf: str = "", master_cf: str = FRONT) -> None:
        need("postconf")
        self.place = directory / "postfix"
        self.place.mkdir()
        (self.place / "main.cf").write_text(MAIN + main_cf)
        (self.place / "master.cf").write_text(master_cf + OTHERS)
        self.look_old()
        self._programs = directory / "programs"
        self._programs.mkdir()
        wrapper = self._programs / "postconf"  # after which the files look old again
        wrapper.write_text(f'#!/bin/sh\n{find("postconf")} "$@" || exit\ntouch -d @0 "$MAIL_CONFIG"/*.cf\n')
        wrapper.chmod(0o755)
        self._environment = {"MAIL_CONFIG": str(self.place), "PATH": f"{self._programs}:{os.environ['PATH']}"}
        self._mode = mode
        self.file = directory / "bridge.yml"
        self.listen(mode)

    def look_old(self) -> None:
        """Postfix waits two seconds for a file that has just changed."""
        for file in self.place.glob("*.cf"):
            os.utime(file, (0, 0))

    def listen(self, mode: str, **sections: object) -> None:
        """From now on, use this mode."""
        self._mode = mode
        scanner, hop = FakeScanner(), NextHop(port=10026)
        scanner.port = 9  # never contacted
        protocol = "milter" if mode == "milter" else "smtp"
        listener = {"name": mode, "protocol": protocol, "address": "127.0.0.1:10025", "profile": f"postfix-{mode}"}
        data = configuration(self.file.parent, scanner, hop, {"listeners": [listener], **sections})
        self.file.write_text(yaml_file.dump(data))

    def setup(self, *options: str) -> Result:
        arguments = ["setup", "postfix", "--mode", self._mode, "-c", str(self.file), *options]
        return CliRunner().invoke(main, arguments, env=self._environment)

    def run(self, *options: str) -> str:
        """Run the printed commands; what they say on standard error."""
        shown = self.setup(*options)
        assert shown.exit_code == 0, shown.output
        done = self.shell(shown.stdout)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", "-e"], input=script, text=True, env=self._environment, capture_output=True, timeout=300
        )

    def settings(self) -> list[str]:
        shown = [self.shell(f"postconf {option}") for option in ("-n", "-M", "-P")]
        assert [done.stderr for done in shown] == ["", "", ""]  # no warning about unused parameters
        return [done.stdout for done in shown]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.place.iterdir())

    def check(self) -> str:
        arguments = ["check", "-c", str(self.file), "--postfix", str(self.place)]
        lines = CliRunner().invoke(main, arguments).stdout.splitlines()
        return "\n".join(line for line in lines if line.startswith("Postfix"))


OWN = {
    "milter": "milter_protocol = 6\nmilter_default_action = accept\n"
    "smtpd_milters = { inet:h:1, connect_timeout=9s } inet:h:2\nnon_smtpd_milters = $smtpd_milters\n",
    "proxy": "smtpd_proxy_timeout = 42s\n",
    "content-filter": "bounce_size_limit = 4000\ncontent_filter = amavis:[127.0.0.1]:10024\n",
}


@pytest.mark.parametrize("mode", MODES)
def test_undo_deleted_what_the_operator_had_set(tmp_path: Path, mode: str) -> None:
    """Commands twice, then undo twice: every setting is as before, and the file of records is gone."""
    limits = "mailbox_size_limit = 40000000\nvirtual_mailbox_limit = 0\nmessage_size_limit = 99999999\n"
    front = "smtp inet n - y - 300 smtpd\n  -o message_size_limit=88888888\n  -o smtpd_proxy_filter=127.0.0.1:10024\n"
    postfix = Postfix(tmp_path, mode, limits + OWN[mode], front if mode == "proxy" else FRONT)
    before, files = postfix.settings(), postfix.files()
    said = postfix.run("--commands")
    assert "message_size_limit was 99999999 and is now 52" in said and "mailbox_size_limit was 40000000" in said
    once = postfix.settings()
    assert once != before
    assert postfix.run("--commands") == "" and postfix.settings() == once
    for _ in range(2):
        postfix.run("--undo")
        assert (postfix.settings(), postfix.files()) == (before, files)


@pytest.mark.parametrize("mode", MODES)
def test_a_smaller_limit_was_raised_silently(tmp_path: Path, mode: str) -> None:
    """The operator's limit and mailboxes without a limit stay; Postfix and the bridge still match."""
    own = "mailbox_size_limit = 0\nmessage_size_limit = 20480000\n"
    postfix = Postfix(tmp_path, mode, own)
    before = postfix.settings()
    said = postfix.run("--commands")
    after = postfix.settings()
    assert "keeping message_size_limit at 20480000" in said
    assert "message_size_limit = 20480000\n" in after[0] and "mailbox_size_limit = 0\n" in after[0]
    if mode != "milter":
        assert "smtp/inet/message_size_limit = 20414464" in after[2]  # header fields are added
        assert "20414464" in said
    assert "PROBLEM" not in postfix.check()
    postfix.run("--undo")
    assert postfix.settings() == before


def test_a_new_limit_of_the_bridge_is_not_taken_for_the_operators(tmp_path: Path) -> None:
    """Our own value is recorded, so a larger one replaces it, and undo still restores what was there before."""
    postfix = Postfix(tmp_path, "milter")
    before = postfix.settings()
    postfix.listen("milter", limits={"max_message_size": "20MiB"})
    postfix.run("--commands")
    assert "message_size_limit = 20971520\n" in postfix.settings()[0]
    postfix.listen("milter")
    postfix.run("--commands")
    assert "message_size_limit = 52428800\n" in postfix.settings()[0]
    postfix.run("--undo")
    assert postfix.settings() == before


@pytest.mark.parametrize("order", [("milter", "proxy"), ("proxy", "milter")])
@pytest.mark.long
def test_two_modes_are_undone_in_any_order(tmp_path: Path, order: tuple[str, str]) -> None:
    """A setting that both need stays until both are undone."""
    postfix = Postfix(tmp_path, "milter")
    before = postfix.settings()
    for mode in ("milter", "proxy"):
        postfix.listen(mode)
        postfix.run("--commands")
    postfix.listen(order[0])
    postfix.run("--undo")
    assert "message_size_limit = 52494336\n" in postfix.settings()[0]
    postfix.listen(order[1])
    postfix.run("--undo")
    assert postfix.settings() == before


@pytest.mark.long
def test_another_filter_mode_does_not_keep_the_settings_of_the_first(tmp_path: Path) -> None:
    """Both share a port: after the undo of both, `bounce_size_limit = 1` and our services were still there."""
    postfix = Postfix(tmp_path, "content-filter")
    before = postfix.settings()
    for mode, option in (
        ("content-filter", "--commands"), ("proxy", "--commands"), ("content-filter", "--undo"), ("proxy", "--undo"),
    ):  # fmt: skip
        postfix.listen(mode)
        postfix.run(option)
        if (mode, option) == ("content-filter", "--undo"):
            shown = postfix.settings()
            assert "bounce_size_limit" not in shown[0] and "127.0.0.1:10026" in shown[1]
    assert postfix.settings() == before and postfix.files() == ["main.cf", "master.cf"]


@pytest.mark.long
def test_undo_removes_a_service_at_a_port_that_was_configured_before(tmp_path: Path) -> None:
    """It trusts its clients, and stayed when the next hop had got another port."""
    postfix = Postfix(tmp_path, "proxy")
    before = postfix.settings()
    postfix.listen("proxy", relay={"next_hop": "smtp://127.0.0.1:10036"})
    postfix.run("--commands")
    assert "127.0.0.1:10036" in postfix.settings()[1]
    postfix.listen("proxy")
    postfix.run("--undo")
    assert postfix.settings() == before


def test_a_milter_that_is_listed_twice_is_removed_twice(tmp_path: Path) -> None:
    postfix = Postfix(tmp_path, "milter", "smtpd_milters = inet:127.0.0.1:10025, inet:127.0.0.1:10025, inet:o:1\n")
    postfix.run("--undo")
    assert "smtpd_milters = inet:o:1\n" in postfix.settings()[0]


@pytest.mark.parametrize("name", ["x$(id)", 'x"', "a b", "x/unix", "x#y"])
def test_a_service_cannot_be_a_command(tmp_path: Path, name: str) -> None:
    """The name is part of a script that root runs."""
    assert Postfix(tmp_path, "proxy").setup("--commands", "--service", name).exit_code == 2


PORT = "192.0.2.1:25 inet n - n - - smtpd\n"
SUBMISSION = "submission inet n - n - - smtpd\n"
POSTSCREEN = "smtp inet n - n - 1 postscreen\nsmtpd pass - - n - - smtpd\n"


@pytest.mark.parametrize(
    ("master_cf", "options", "service"),
    [
        pytest.param(PORT, [], "192.0.2.1:25/inet", marks=pytest.mark.long),
        pytest.param(FRONT + SUBMISSION, [], "smtp/inet", marks=pytest.mark.long),
        (FRONT + SUBMISSION, ["--service", "submission"], "submission/inet"),
        (POSTSCREEN + SUBMISSION, [], "smtpd/pass"),
    ],
)
def test_the_filter_was_set_for_a_service_that_does_not_exist(
    tmp_path: Path, master_cf: str, options: list[str], service: str
) -> None:
    """The only smtpd, the one behind postscreen, or the one that was named is used; undo finds it by itself."""
    postfix = Postfix(tmp_path, "proxy", master_cf=master_cf)
    before = postfix.settings()
    found = postfix.check()
    if not options:
        assert f"for {service} in master.cf" in found
    postfix.run("--commands", *options)
    assert f"{service}/smtpd_proxy_filter = 127.0.0.1:10025" in postfix.settings()[2]
    assert "PROBLEM" not in postfix.check()
    postfix.run("--undo")
    assert postfix.settings() == before


@pytest.mark.parametrize("options", [[], ["--service", "smtp/inet"]])
def test_an_unclear_service_is_an_error(tmp_path: Path, options: list[str]) -> None:
    """Exit code 78, and the error lists the services; the script also stops if it is run elsewhere."""
    postfix = Postfix(tmp_path, "proxy", master_cf=PORT + SUBMISSION)
    shown = postfix.setup("--commands", *options)
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert "192.0.2.1:25/inet, submission/inet" in shown.stderr and "--service" in shown.stderr
    assert "192.0.2.1:25/inet, submission/inet: choose one with --service NAME" in postfix.check()
    before = postfix.settings()
    master = postfix.place / "master.cf"
    kept = master.read_text()
    master.write_text(FRONT)
    postfix.look_old()
    script = postfix.setup("--commands").stdout
    master.write_text(kept)
    postfix.look_old()
    done = postfix.shell(script)
    assert done.returncode == 78 and "submission/inet" in done.stderr and "--service NAME" in done.stderr
    assert postfix.settings() == before


@pytest.mark.long
def test_undo_of_one_service_keeps_what_another_needs(tmp_path: Path) -> None:
    """The service for scanned mail goes with the last filter."""
    postfix = Postfix(tmp_path, "proxy", master_cf=FRONT + SUBMISSION)
    before = postfix.settings()
    postfix.run("--commands")
    postfix.run("--commands", "--service", "submission")
    assert "keeping the service" in postfix.run("--undo", "--service", "smtp")
    after = postfix.settings()
    assert "smtp/inet/smtpd" not in after[2] and "submission/inet/smtpd_proxy_filter = 127.0.0.1:10025" in after[2]
    assert "127.0.0.1:10026" in after[1]
    postfix.run("--undo", "--service", "submission")
    assert postfix.settings() == before


def test_a_filter_that_was_set_by_hand_is_removed_everywhere(tmp_path: Path) -> None:
    """Without records; a filter in main.cf, or spelt in another way, still needs the service for scanned mail."""
    postfix = Postfix(tmp_path, "proxy", master_cf=FRONT + SUBMISSION)
    (postfix.place / "master.cf").write_text(
        postfix.setup("--file", "master.cf").stdout + f"{SUBMISSION}  -o smtpd_proxy_filter=localhost:10025\n" + OTHERS
    )
    postfix.look_old()
    assert "a filter still uses" in postfix.run("--undo")
    after = postfix.settings()
    assert "smtp/inet/smtpd_proxy_filter" not in after[2] and "127.0.0.1:10026" in after[1]
    assert postfix.shell("postconf -PX submission/inet/smtpd_proxy_filter").returncode == 0
    postfix.run("--undo")
    assert "127.0.0.1:10026" not in postfix.settings()[1]


def test_a_service_of_the_operators_at_our_port_was_replaced(tmp_path: Path) -> None:
    """The commands stop before they change anything, and say so; undo does not remove it."""
    own = "127.0.0.1:10026 inet n - n - - smtpd\n  -o syslog_name=mine\n"
    postfix = Postfix(tmp_path, "proxy", master_cf=FRONT + own)
    before = postfix.settings()
    done = postfix.shell(postfix.setup("--commands").stdout)
    assert done.returncode == 78 and "another service 127.0.0.1:10026/inet" in done.stderr
    assert postfix.settings() == before
    postfix.run("--undo")
    assert postfix.settings() == before


@pytest.mark.parametrize("options", [["--service", "smtp"], ["--undo", "--service", "smtp"]])
def test_a_service_has_no_meaning_for_a_milter(tmp_path: Path, options: list[str]) -> None:
    shown = Postfix(tmp_path, "milter").setup(*options)
    assert shown.exit_code == 2 and "leave out --service" in shown.stderr
