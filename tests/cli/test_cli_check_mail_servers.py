"""`scanbridge check` against the mail server's own settings: each mistake is found, a good set-up has no problem."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.check.finding import Finding
from bridge.cli.check.postfix import check_postfix
from bridge.cli.check.sendmail import check_sendmail
from bridge.config.model import Config
from bridge.runtime import yaml_file
from tests.requirements import need

MASTER = "smtp inet n - {chroot} - - smtpd\n"
GOOD = {
    "smtpd_milters": "inet:127.0.0.1:10027",
    "milter_default_action": "tempfail",
    "milter_content_timeout": "300s",
    "milter_command_timeout": "30s",
    "milter_connect_timeout": "30s",
    "milter_protocol": "6",
    "compatibility_level": "3.6",
    "myhostname": "mail.example",
}


def config(tmp_path: Path, address: str = "127.0.0.1:10027", **listener: Any) -> Config:
    data = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
        "listeners": [{"name": "milter", "protocol": "milter", "address": address, **listener}],
        "relay": {"next_hop": "smtp://127.0.0.1:10026"},
    }
    return yaml_file.load(tmp_path / "bridge.yml", Config, yaml_file.dump(data))


def postfix(tmp_path: Path, chroot: str = "n", **settings: str) -> Path:
    need("postconf")
    directory = tmp_path / "postfix"
    directory.mkdir()
    lines = [f"{name} = {value}" for name, value in {**GOOD, **settings}.items()]
    (directory / "main.cf").write_text("\n".join([*lines, "queue_directory = /var/spool/postfix", ""]))
    (directory / "master.cf").write_text(MASTER.format(chroot=chroot))
    os.utime(directory / "main.cf", (0, 0))  # Postfix waits two seconds for a file that has just changed
    return directory


def problems(findings: Any) -> list[Finding]:
    return [finding for finding in findings if finding.problem]


def test_good_postfix_has_no_problem(tmp_path: Path) -> None:
    """Settings as in docs/operate/milter.md."""
    findings = list(check_postfix(config(tmp_path), postfix(tmp_path)))
    assert len(findings) >= 5
    assert problems(findings) == []


@pytest.mark.parametrize(
    ("settings", "what", "advice"),
    [
        ({"smtpd_milters": ""}, "Postfix and listener milter", "smtpd_milters = inet:127.0.0.1:10027"),
        ({"smtpd_milters": "inet:127.0.0.1:8891"}, "Postfix and listener milter", "no smtpd_milters refers to it"),
        ({"milter_default_action": "accept"}, "Postfix milter_default_action", "= tempfail"),
        ({"milter_default_action": "reject"}, "Postfix milter_default_action", "refused permanently"),
        ({"milter_content_timeout": "4s"}, "Postfix milter_content_timeout", "at least 10s"),
        ({"milter_command_timeout": "1s"}, "Postfix milter_command_timeout", "at least 10s"),
        ({"milter_protocol": "2"}, "Postfix milter_protocol", "milter_protocol = 6"),
        ({"enable_original_recipient": "no"}, "Postfix enable_original_recipient", "enable_original_recipient = yes"),
    ],
)
def test_mistake_in_postfix_is_found(tmp_path: Path, settings: dict[str, str], what: str, advice: str) -> None:
    """Each finding names the setting and says what to change."""
    (found,) = problems(check_postfix(config(tmp_path), postfix(tmp_path, **settings)))
    assert found.what == what
    assert advice in found.problem


def test_milter_named_in_master_cf_counts(tmp_path: Path) -> None:
    """An -o override for one service counts like main.cf."""
    directory = postfix(tmp_path, smtpd_milters="")
    (directory / "master.cf").write_text(MASTER.format(chroot="n") + "    -o smtpd_milters=inet:localhost:10027\n")
    assert problems(check_postfix(config(tmp_path), directory)) == []


@pytest.mark.parametrize(
    ("path", "named", "problem"),
    [
        ("/run/scanbridge.sock", "unix:/run/scanbridge.sock", "cannot reach /run/scanbridge.sock"),
        ("/var/spool/postfix/scan.sock", "unix:/var/spool/postfix/scan.sock", "smtpd_milters = unix:/scan.sock"),
        ("/var/spool/postfix/scan.sock", "unix:/scan.sock", ""),
    ],
)
def test_chrooted_smtpd_and_unix_sockets(tmp_path: Path, path: str, named: str, problem: str) -> None:
    """A chrooted smtpd reaches a socket only in the queue directory, by its path relative to that."""
    found = problems(
        check_postfix(config(tmp_path, f"unix:{path}"), postfix(tmp_path, chroot="y", smtpd_milters=named))
    )
    assert [problem in finding.problem for finding in found] == ([True] if problem else [])


def test_an_ordinary_user_has_no_postconf_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in /usr/sbin; the check said that the configuration was not there."""
    directory = postfix(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert problems(check_postfix(config(tmp_path), directory)) == []


def test_postfix_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """The directory contains no Postfix configuration."""
    need("postconf")
    (found,) = problems(check_postfix(config(tmp_path), tmp_path))
    assert "postconf cannot read it" in found.problem
    assert found.problem.endswith(
        "; --postfix must be the directory that contains main.cf and master.cf, usually /etc/postfix"
    )


GOOD_LINE = "Xscanbridge, S=inet:10027@127.0.0.1, F=T, T=C:5m;S:10s;R:10s;E:10m"
SENDMAIL = f"V10/Berkeley\nDZ8.17.1\nO InputMailFilters=other, scanbridge\n{GOOD_LINE}\n"


@pytest.mark.parametrize(
    ("old", "new", "advice"),
    [
        ("", "", ""),
        ("F=T", "F=4", ""),
        ("F=T, ", "", "add F=T"),
        ("F=T", "F=R", "instead of F=R"),
        ("E:10m", "E:2m", "set E:300s"),
        ("R:10s", "R:2s", "T=R:2s is too short"),
        ("inet:10027", "inet:8891", "no X line refers to it"),
        ("other, scanbridge", "other", "use INPUT_MAIL_FILTER, not MAIL_FILTER"),
        ("O InputMailFilters=other, ", "O DaemonPortOptions=Port=25, InputMailFilters=a;", ""),
        ("V10", "O MaxMessageSize=60000000\nV10", "confMAX_MESSAGE_SIZE', `52428800'"),
        ("DZ8.17", "DZ8.13", "``, i, {auth_authen}'')"),
        ("DZ8.17.1", "DZ8.13.1\nO Milter.macros.envfrom=i, {auth_authen}", ""),
    ],
)
def test_mistake_in_sendmail_cf_is_found(tmp_path: Path, old: str, new: str, advice: str) -> None:
    """Each mistake is one finding that says what to write; a good file has none."""
    (tmp_path / "sendmail.cf").write_text(SENDMAIL.replace(old, new, 1))
    found = problems(check_sendmail(config(tmp_path), tmp_path))
    assert [advice in finding.problem for finding in found] == ([True] if advice else []), found


def test_sendmail_without_a_milter_listener_is_reported(tmp_path: Path) -> None:
    """A missing file, and a configuration with an SMTP listener only."""
    data = {"name": "mx", "address": "127.0.0.1:10025", "protocol": "smtp"}
    (found,) = check_sendmail(config(tmp_path), tmp_path)
    assert "cannot be read" in found.problem
    (tmp_path / "sendmail.cf").write_text(SENDMAIL)
    (found,) = check_sendmail(config(tmp_path, **data), tmp_path / "sendmail.cf")
    assert "profile: sendmail-milter" in found.problem
