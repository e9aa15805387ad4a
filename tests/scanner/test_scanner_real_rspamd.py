"""A real rspamd behind the bridge: killed, frozen, overloaded. No mail is lost, and none passes unscanned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bridge.api.scanning import MAX_MESSAGE_BYTES, Decision
from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.scanner.dialects.rspamd import Rspamd, RspamdSettings
from bridge.testing import RunningBridge, SmtpClient, free_port, running_bridge, until
from tests.rspamd_kit import RealRspamd, wanting
from tests.scanner.fault_server import scanner_of, submit

MAIL = b"Subject: s\r\n\r\nbody\r\n"


@pytest.fixture(scope="module")
def rspamd() -> Iterator[RealRspamd]:
    with RealRspamd(max_tasks=3) as rspamd:
        yield rspamd


def conf(rspamd: RealRspamd, **scanner: Any) -> dict[str, Any]:
    options = {"urls": [rspamd.url], "dialect": "rspamd", "status_interval": "300ms", "connect_timeout": "2s"}
    return {"scanner": {**options, **scanner}}


def reply(bridge: RunningBridge, content: bytes = MAIL) -> bytes:
    with SmtpClient(bridge.port, timeout_s=120) as client:
        client.open()
        commands = client.say(b"MAIL FROM:<a@client.example>", b"RCPT TO:<b@example.org>")
        refused = next((answer for answer in commands if not answer.startswith(b"250")), None)
        if refused is not None:
            return refused
        said = client.say(b"DATA")[0]
        return said if not said.startswith(b"354") else client.say(content + b".")[0]


def healthy(bridge: RunningBridge) -> bool:
    return reply(bridge).startswith(b"250")


def test_a_killed_rspamd_defers_mail_until_it_is_back(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Every mail is answered with 451 4.3.0 meanwhile, and none is delivered."""
    with running_bridge(tmp_path, conf(rspamd)) as bridge:
        assert healthy(bridge)
        rspamd.kill()
        try:
            for _ in range(4):
                assert reply(bridge).startswith(b"451 4.3.0")
            assert len(bridge.next_hop.mails) == 1
        finally:
            rspamd.start()
        until(lambda: healthy(bridge), "mail to pass again")


def test_a_frozen_rspamd_defers_mail_at_the_deadline(tmp_path: Path, rspamd: RealRspamd) -> None:
    """451 4.4.7; the decision that comes late is used when the mail comes again."""
    with running_bridge(tmp_path, conf(rspamd), deadline="3s") as bridge:
        assert healthy(bridge)
        marked = wanting(MAIL, action="reject")
        with rspamd.frozen():
            assert reply(bridge, marked).startswith(b"451 4.4.7")
            assert len(bridge.next_hop.mails) == 1
        until(lambda: reply(bridge, marked).startswith(b"550"), "the decision")
        until(lambda: healthy(bridge), "mail to pass again")


def test_an_overloaded_rspamd_never_has_more_mail_than_admission_allows(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Ten clients, a slow rule, and a worker that takes three mails at a time: all are answered 250 or 451."""
    settings = {**conf(rspamd), "admission": {"max_in_processing": 4, "throttle_threshold": 4}}
    with running_bridge(tmp_path, settings, deadline="100s") as bridge:
        assert healthy(bridge)
        answers: list[bytes] = []
        slow = wanting(MAIL, busy=0.1)
        threads = [threading.Thread(target=lambda: answers.append(reply(bridge, slow))) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 10 and all(answer[:3] in (b"250", b"451") for answer in answers), answers
        delivered = sum(answer.startswith(b"250") for answer in answers)
        assert delivered >= 4 and len(bridge.next_hop.mails) == delivered + 1
        assert all(answer.startswith(b"451 4.3.2") for answer in answers if answer.startswith(b"451"))
        until(lambda: healthy(bridge), "mail to pass again")


def test_another_host_takes_the_mail_of_a_killed_rspamd(tmp_path: Path, rspamd: RealRspamd) -> None:
    """As with every dialect, a host that cannot be reached costs no mail."""
    dead = f"http://127.0.0.1:{free_port()}"
    with running_bridge(tmp_path, conf(rspamd, urls=[dead, rspamd.url])) as bridge:
        for _ in range(5):
            assert healthy(bridge)


async def test_the_largest_mail_is_accepted(rspamd: RealRspamd) -> None:
    """50 MiB, as much as rspamd accepts."""
    made = partial(Rspamd, settings=RspamdSettings())
    content = wanting(MAIL, action="reject")
    async with scanner_of(rspamd.url, dialect=made, token="") as scanner:
        found = await submit(scanner, content.ljust(MAX_MESSAGE_BYTES, b"x"), deadline_s=300)
        assert found.decision is Decision.BOUNCE


# The commands


def written(directory: Path, rspamd: RealRspamd, **scanner: Any) -> str:
    data = {
        "scanner": {"urls": [rspamd.url], "dialect": "rspamd", **scanner},
        "listeners": [{"name": "test", "address": f"127.0.0.1:{free_port()}"}],
        "relay": {"next_hop": f"maildir:{directory}/Maildir"},
        "admin": {"address": f"127.0.0.1:{free_port()}"},
        "state_directory": str(directory / "state"),
    }
    (directory / "bridge.yml").write_text(yaml_file.dump(data))
    return str(directory / "bridge.yml")


def test_check_names_the_dialect_and_scans_a_test_mail(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Without a password; and with one, which it does not print."""
    done = CliRunner().invoke(main, ["check", "--verbose", "-c", written(tmp_path, rspamd)])
    assert "no password for rspamd" in done.output and f"scanner {rspamd.url}" in done.output, done.output
    assert "rspamd, GREEN" in done.output
    (tmp_path / "password").write_text("very-secret-word\n")
    (tmp_path / "password").chmod(0o600)
    done = CliRunner().invoke(main, ["check", "--verbose", "-c", written(tmp_path, rspamd, token_file="password")])
    assert "rspamd, GREEN" in done.output and "very-secret" not in done.output


def test_check_says_that_it_is_not_rspamd(tmp_path: Path, rspamd: RealRspamd) -> None:
    """rspamd under the default dialect is a mistake that the first line shows."""
    (tmp_path / "token").write_text("0123456789abcdef\n")
    path = written(tmp_path, rspamd, dialect="email-scanning", token_file="token")
    done = CliRunner().invoke(main, ["check", "-c", path])
    assert done.exit_code != 0 and "scanner.dialect: rspamd" in done.output, done.output


def test_scan_prints_the_decision_and_the_changes(tmp_path: Path, rspamd: RealRspamd) -> None:
    """One line for people, or JSON."""
    (tmp_path / "a.eml").write_bytes(wanting(MAIL, action="rewrite subject", milter={"add_headers": {"X-A": "1"}}))
    path = written(tmp_path, rspamd, allow_changes=["add_headers", "subject"])
    done = CliRunner().invoke(main, ["scan", "-c", path, str(tmp_path / "a.eml")])
    assert done.exit_code == 0
    assert ": deliver verdict=rewrite subject tags=score:0.00/100.00 " in done.output
    assert done.output.endswith("changes=+X-A,subject\n")
    done = CliRunner().invoke(main, ["scan", "-c", path, "--json", str(tmp_path / "a.eml")])
    assert '"subject": "*** SPAM *** s"' in done.output
    done = CliRunner().invoke(
        main, ["scan", "-c", path, "--tenant", "123e4567-e89b-12d3-a456-426614174000", str(tmp_path / "a.eml")]
    )
    assert done.exit_code == 2 and "knows no tenants" in done.output
