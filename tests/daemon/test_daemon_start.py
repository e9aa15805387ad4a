"""Starting: a configuration that cannot work is reported in plain words, before the first mail."""

from __future__ import annotations

import os
import re
import socket
import sys
from email.message import EmailMessage
from pathlib import Path

import pytest

from bridge.runtime.build import version
from tests.daemon.process_kit import (
    ROOT,
    Bridge,
    busy,
    environment,
    get,
    running,
    scanbridge,
    start,
    until,
    write_config,
)

HOP = "127.0.0.1:9"
SCANNER = "http://127.0.0.1:9"


def test_a_bad_configuration_reports_every_mistake_and_exits_with_78(tmp_path: Path) -> None:
    """A service manager must not restart us, and the operator sees all mistakes together."""
    path = tmp_path / "bridge.yml"
    path.write_text(
        "scanner: {urls: [ftp://x], token_file: t}\n"
        "listeners:\n"
        "  - {name: a, address: 0.0.0.0:25}\n"
        "  - {name: b, address: 127.0.0.1:26, prot: smtp}\n"
    )
    done = scanbridge("run", "-c", path)
    assert done.returncode == 78
    assert done.stderr.splitlines() == [
        f"{path}:1: scanner.urls: a base URL must be https://host:port, or http://host:port on loopback",
        f"{path}:3: listeners.0.trusted_clients: 0.0.0.0:25 can be reached from other machines: "
        "list the mail servers that may use it, or listen on 127.0.0.1",
        f"{path}:4: listeners.1.prot: unknown key; did you mean protocol?",
    ]


def test_a_missing_next_hop_is_reported_with_the_next_step(tmp_path: Path) -> None:
    """An SMTP listener without a next hop could only lose mail."""
    config, _, _ = write_config(tmp_path, SCANNER, HOP, relay=None)
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78
    assert "relay: an SMTP or LMTP listener needs a next hop: set relay.next_hop" in done.stderr


def test_a_missing_token_file_is_reported_with_the_next_step(tmp_path: Path) -> None:
    """The error names the key, the file and what it must contain."""
    config, _, _ = write_config(tmp_path, SCANNER, HOP)
    (tmp_path / "token").unlink()
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78
    assert done.stderr == (
        f'level=info logger=bridge msg="starting: scanbridge {version()}"\n'
        f"{config}:4: scanner.token_file: {tmp_path}/token cannot be read: No such file or directory; "
        "it must contain the secret on one line and be readable by scanbridge\n"
    )


def test_a_taken_port_is_reported_as_a_temporary_problem(tmp_path: Path) -> None:
    """The configuration is fine, so a service manager may try again: exit 1. The key and the process are named."""
    config, port, _ = write_config(tmp_path, SCANNER, HOP)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = scanbridge("run", "-c", config)
    assert done.returncode == 1
    reason = f"cannot listen on 127.0.0.1:{port}: Address already in use by process {os.getpid()} ("
    assert re.search(rf"scanbridge: {config}:\d+: listeners.mx.address: {re.escape(reason)}", done.stderr)
    assert "; stop it, or choose another address\n" in done.stderr
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr


def test_a_state_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """There is a file where its parent directory should be."""
    (tmp_path / "file").write_text("")
    config, _, _ = write_config(tmp_path, SCANNER, HOP, state_directory=str(tmp_path / "file" / "state"))
    done = scanbridge("run", "-c", config)
    assert done.returncode == 78 and "state_directory" in done.stderr and "Traceback" not in done.stderr


def message(subject: str, body: str, attachment: bytes | None = None) -> bytes:
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = subject, "a@example.org", "b@example.org"
    mail.set_content(body)
    if attachment is not None:
        mail.add_attachment(attachment, maintype="application", subtype="octet-stream", filename="test.com")
    return mail.as_bytes().replace(b"\n", b"\r\n")


GTUBE = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


def test_the_embedded_default_shows_deliver_bounce_and_quarantine(tmp_path: Path) -> None:
    """Without setup, a clean mail reaches the Maildir, GTUBE is refused, EICAR is quarantined; one log line each."""
    ports = (9081, 9082, 9083, 10025, 10027)
    until(lambda: not any(map(busy, ports)), f"the embedded default's ports {ports}, which another program uses")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = environment(XDG_STATE_HOME=str(tmp_path / "state"), PYTHONPATH=path)
    bridge = Bridge(tmp_path, 10025, 9082, [sys.executable, "-m", "bridge", "run"], env)
    try:
        bridge.wait_ready()
        state = tmp_path / "state" / "scanbridge-demo"
        assert bridge.send(message("hello", "hello\n")).startswith("250 2.0.0 Ok: queued as ")
        assert bridge.send(message("spam", GTUBE + "\n")).startswith("550 5.7.1 ")
        assert bridge.send(message("virus", "see\n", EICAR)).startswith("250 2.0.0 Ok: queued as ")
        (delivered,) = (state / "Maildir" / "new").iterdir()
        assert b"\r\nX-Scan-Decision: deliver\r\n" in delivered.read_bytes()
        (kept,) = (state / "quarantine").glob("*.eml")
        assert b"Subject: virus" in kept.read_bytes()
        lines = bridge.mail_lines(3)
        for line, action in zip(lines, ("relay", "reject", "quarantine"), strict=True):
            assert f" action={action} " in line
        token = (state / "api-token").read_text().strip()
        assert len(token) == 64 and (state / "api-token").stat().st_mode & 0o777 == 0o600
        until(lambda: "scanbridge is running" in bridge.output, "the welcome text")
        assert "swaks --server 127.0.0.1:10025" in bridge.output and "smtplib" in bridge.output
        assert token not in bridge.log + bridge.output
        assert token not in Path(f"/proc/{bridge.process.pid}/cmdline").read_text()
        until(lambda: "/enter/" in bridge.output, "the console's sign-in link")
        link = bridge.output.partition("http://127.0.0.1:9083")[2].partition("http://127.0.0.1:9083")[2].split()[0]
        assert get(9083, link)[0] == 200 and link.rpartition("/")[2] not in bridge.log
        assert scanbridge("status", env=env).returncode == 0
        again = scanbridge("run", env=env)
        assert again.returncode == 1 and "Address already in use" in again.stderr
        bridge.signal()
        assert bridge.wait() == 0
        assert get(9082, "/livez")[0] == 0
        until(lambda: not busy(9083), "the console to end with the daemon")
    finally:
        bridge.end()


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_was_said_of_two_daemons_in_one_state_directory(tmp_path: Path, workers: int) -> None:
    """Each showed the other's mail. The second one names the first, and works; a later one has nothing to say."""
    (tmp_path / "other").mkdir()
    with running(tmp_path, workers=workers) as (first, scanner, next_hop):
        state = {"state_directory": str(tmp_path / "state"), "workers": workers}
        config, port, admin = write_config(tmp_path / "other", scanner.url, next_hop.url, **state)
        second = start(config, port, admin)
        try:
            assert second.has_logged(f"is in use by another daemon (process {first.process.pid}); stop that daemon")
            assert second.send().startswith("250 ") and first.send().startswith("250 ")
            for daemon in (first, second):
                daemon.signal()
                assert daemon.wait() == 0
        finally:
            second.end()
        assert "in use by another" not in first.log
        third = start(config, port, admin)
        third.end()
        assert "in use by another" not in third.log
