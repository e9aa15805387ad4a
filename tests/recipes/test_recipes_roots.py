"""The recipes for Exim, Sendmail and OpenSMTPD, each in its own root directory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any, Self

import pytest

from bridge.cli.check.exim import check_exim
from bridge.cli.check.sendmail import check_sendmail
from tests.chain import dialogue, is_listening
from tests.debian_root import Room
from tests.recipes.recipe_kit import HELD, MOVING, WAITING, Case, Service, Setting, agree, mail, play, sent
from tests.sendmail_kit import Sendmail


class EximOf(Room):
    """Exim with the recipe's exim.conf."""

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
    """OpenSMTPD with the recipe's smtpd.conf."""

    def __init__(self, setting: Setting) -> None:
        super().__init__("opensmtpd", "/var/spool/smtpd", "/run")
        self._front = setting.front
        conf = setting.file("smtpd.conf").replace("0.0.0.0 port 25", f"127.0.0.1 port {setting.front}")
        conf = conf.replace("inside.example.net:25", f"127.0.0.1:{setting.destination.port}")
        conf = conf.replace("/usr/local/libexec/scanbridge/", "/mnt/")
        (self.directory / "smtpd.conf").write_text(conf)
        shutil.copy(setting.files / "filter-client", self.directory)

    def __enter__(self) -> Self:
        self.start(_START_OPENSMTPD, lambda: is_listening(self._front))
        return self

    def senders(self) -> dict[str, str]:
        """One line per mail: column 5 is the sender, 11 the number of attempts, 12 the state."""
        lines = [line.split("|") for line in self.run("smtpctl", "show", "queue").splitlines()]
        return {row[4]: WAITING if row[10] > "0" and row[11] == "pending" else MOVING for row in lines}

    def flush(self) -> None:
        self.run("smtpctl", "schedule", "all")


_START_OPENSMTPD = "chmod 711 /var/spool/smtpd; exec smtpd -d -v -f /mnt/smtpd.conf"


FORGED = "X-Scanbridge-Client: ADDR=192.0.2.66 HELO=trusted.example"


def test_sendmail_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """What the client receives and where the mail is in every case; no byte is changed."""
    with Setting("sendmail", tmp_path, service) as setting, SendmailOf(setting) as server:
        agree(setting, play(setting, server))
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
        assert setting.problems(check_sendmail, server.directory / "sendmail.cf") == []


@pytest.mark.long
def test_exim_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """The same, and the scanner knows the client: a forged client field is ignored and removed."""
    with Setting("exim", tmp_path, service) as setting, EximOf(setting) as exim:
        agree(setting, play(setting, exim, forging))
        _knows_the_client(setting, exim, "exim4")
        assert setting.problems(check_exim, exim.directory / "exim.conf") == []


@pytest.mark.long
def test_opensmtpd_recipe_does_what_its_page_says(tmp_path: Path, service: Service) -> None:
    """As with Exim; here a filter names the client."""
    with Setting("opensmtpd", tmp_path, service) as setting, OpenSmtpdOf(setting) as server:
        agree(setting, play(setting, server, forging))
        _knows_the_client(setting, server, "sendmail")


def forging(port: int, content: bytes, **options: Any) -> tuple[str, str]:
    content = f"{FORGED}\r\n".encode() + content
    return dialogue(port, content, source="127.0.0.5", helo="far.example", **options)


def _knows_the_client(setting: Setting, server: Room, sendmail: str) -> None:
    """All mail so far had the forged field; so has a mail from a program on the mail server's machine."""
    lines = re.findall(r"(?m)^id=.*$", setting.bridge.log())
    assert len(lines) >= 5 and all("client=127.0.0.5 helo=far.example " in line for line in lines)
    assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
    server.run(
        "sh", "-c", f"printf 'Subject: local\\n{FORGED}\\n\\nx\\n' | {sendmail} -f local@example.org b@example.net"
    )
    line = setting.bridge.logged(r"(?m)^id=.*from=<local@example\.org>.*$")[0]
    assert "192.0.2.66" not in line and "trusted.example" not in line
    assert b"X-Scanbridge-Client" not in setting.destination.arrived("Subject: local").content
