"""The recipes for Exim, Sendmail and OpenSMTPD, each in a root of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self

import pytest
from chain import dialogue, is_listening
from debian_root import Room
from recipe_kit import HELD, MOVING, WAITING, Case, Service, Setting, agree, mail, play, sent
from sendmail_kit import Sendmail

from bridge.cli.checks.exim import check_exim
from bridge.cli.checks.sendmail import check_sendmail


class EximOf(Room):
    """Exim as the recipe's exim.conf has it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("exim", "/var/spool/exim4", "/etc/exim4", "/run")
        self._front = setting.front
        conf = setting.file("exim.conf").replace("daemon_smtp_ports = 25", f"daemon_smtp_ports = {setting.front}")
        conf = conf.replace("<; 0.0.0.0 ;", "<; 127.0.0.1 ;")
        there = f"* 127.0.0.1::{setting.destination.port} byname\n  self = send"
        conf = conf.replace("* inside.example.net", there)
        conf = conf.replace("remote_smtp:\n  driver = smtp", "remote_smtp:\n  driver = smtp\n  allow_localhost")
        (self.directory / "exim.conf").write_text(_EXIM + conf)

    def __enter__(self) -> Self:
        self.start(_START_EXIM, lambda: is_listening(self._front))
        return self

    def senders(self) -> dict[str, str]:
        return dict.fromkeys(re.findall(r"<(\S+@example\.org)>", self.run("exim4", "-bp")), MOVING)

    def flush(self) -> None:
        self.run("exim4", "-qff")


_EXIM = "log_file_path = /mnt/%slog\ntls_advertise_hosts =\n"  # without TLS it need not make a certificate
_START_EXIM = """\
chown Debian-exim:Debian-exim /var/spool/exim4 /mnt
cp /mnt/exim.conf /etc/exim4/exim4.conf
exec exim4 -bdf -q5m"""


class SendmailOf(Sendmail):
    """Sendmail with the recipe's lines."""

    def __init__(self, setting: Setting) -> None:
        daemon = f"DAEMON_OPTIONS(`Port={setting.front}, Addr=127.0.0.1, Name=MTA')dnl\n"
        super().__init__(setting.file("scanbridge.mc") + daemon, [setting.front], setting.destination.port)

    def senders(self) -> dict[str, str]:
        queued, held = (re.findall(r"<(\S+@example\.org)>", self.sendmail("-bp", *how)) for how in ([], ["-qQ"]))
        return {**dict.fromkeys(queued, MOVING), **dict.fromkeys(held, HELD)}

    def flush(self) -> None:
        self.sendmail("-q")


class OpenSmtpdOf(Room):
    """OpenSMTPD as the recipe's smtpd.conf has it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("opensmtpd", "/var/spool/smtpd", "/run")
        self._front = setting.front
        conf = setting.file("smtpd.conf").replace("0.0.0.0 port 25", f"127.0.0.1 port {setting.front}")
        conf = conf.replace("inside.example.net:25", f"127.0.0.1:{setting.destination.port}")
        (self.directory / "smtpd.conf").write_text(conf)

    def __enter__(self) -> Self:
        self.start(_START_OPENSMTPD, lambda: is_listening(self._front))
        return self

    def senders(self) -> dict[str, str]:
        """A line for each; the fifth column is the sender, then how often it was tried, and how it stands."""
        lines = [line.split("|") for line in self.run("smtpctl", "show", "queue").splitlines()]
        return {one[4]: WAITING if one[10] > "0" and one[11] == "pending" else MOVING for one in lines}

    def flush(self) -> None:
        self.run("smtpctl", "schedule", "all")


_START_OPENSMTPD = "chmod 711 /var/spool/smtpd; exec smtpd -d -v -f /mnt/smtpd.conf"


SERVERS = {"sendmail": SendmailOf, "opensmtpd": OpenSmtpdOf}
FORGED = "X-Scanbridge-Client: ADDR=192.0.2.66 HELO=trusted.example"


@pytest.mark.parametrize("recipe", SERVERS)
def test_recipe_does_what_its_page_says(recipe: str, tmp_path: Path, service: Service) -> None:
    """What the client reads and where the mail is in every case; no byte is changed."""
    with Setting(recipe, tmp_path, service) as setting, SERVERS[recipe](setting) as server:
        agree(setting, play(setting, server))
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
        if recipe == "sendmail":
            assert setting.problems(check_sendmail, server.directory / "sendmail.cf") == []


def test_exim_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """The same, and the scanner knows the client: who names another is not believed, nor does his field arrive."""
    with Setting("exim", tmp_path, service) as setting, EximOf(setting) as exim:
        agree(setting, play(setting, exim, forging))
        assert "client=127.0.0.1 helo=far.example " in setting.bridge.logged(r"(?m)^id=.*$")[0]
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
        assert setting.problems(check_exim, exim.directory / "exim.conf") == []
        exim.run("sh", "-c", f"printf 'Subject: local\\n{FORGED}\\n\\nx\\n' | exim4 -f local@example.org b@example.net")
        line = setting.bridge.logged(r"(?m)^id=.*from=<local@example\.org>.*$")[0]
        assert "192.0.2.66" not in line and "trusted.example" not in line
        assert b"X-Scanbridge-Client" not in setting.destination.arrived("Subject: local").content


def forging(port: int, content: bytes, **options: Any) -> tuple[str, str]:
    return dialogue(port, f"{FORGED}\r\n".encode() + content, helo="far.example", **options)
