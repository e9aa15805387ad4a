"""Files on disk are accessible to the daemon's user only, whatever the umask."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bridge.config.model import EMBEDDED
from bridge.testing import SmtpClient, free_port, until

ROOT = Path(__file__).parents[2]
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$" + b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"


@contextmanager
def generous_bridge(directory: Path) -> Iterator[tuple[Path, int]]:
    """The embedded default with extra listeners and stores and umask 0; yields its state directory and port."""
    state = directory / "made" / "state"
    text = EMBEDDED.format(state=state)
    for port in ("9081", "10025", "10027", "9082"):
        text = text.replace(f":{port}", f":{free_port()}")
    sock = directory / "mail.sock"
    text = text.replace("relay:\n", f'  - {{name: local, protocol: smtp, address: "unix:{sock}"}}\nrelay:\n')
    text += "log: {addresses: hashed}\nlate_decisions: {store: sqlite}\n"
    (directory / "bridge.yml").write_text(text)
    smtp = int(text.partition('protocol: smtp, address: "127.0.0.1:')[2].partition('"')[0])
    with (directory / "log").open("wb") as log:
        command = [sys.executable, "-m", "bridge", "run", "-c", str(directory / "bridge.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log, umask=0, cwd=ROOT)
    try:
        until(lambda: process.poll() is not None or listens(smtp), "the bridge")
        assert process.poll() is None, (directory / "log").read_text()
        yield state, smtp
    finally:
        process.terminate()
        process.wait(30)


def listens(port: int) -> bool:
    try:
        SmtpClient(port).close()
    except OSError:
        return False
    return True


def test_state_is_readable_by_the_daemons_user_only(tmp_path: Path) -> None:
    """Directories 0700, files 0600: mail, quarantine, index, keys, tokens, databases. The socket: 0660."""
    with generous_bridge(tmp_path) as (state, port):
        with SmtpClient(port) as client:
            client.open()
            assert client.mail().startswith(b"250 ")
            content = b"Subject: x\r\nMIME-Version: 1.0\r\nContent-Type: text/plain\r\n\r\n" + EICAR + b"\r\n"
            assert client.mail(content).startswith(b"250 ")
        found = {path: path.lstat().st_mode for path in [state, *state.rglob("*")]}
        names = {path.name for path in found}
        assert {"quarantine", "log-key", "release-key", "api-token", "api-key", "Maildir"} <= names
        assert any(name.endswith(".eml") for name in names) and any(name.endswith(".sqlite") for name in names)
        loose = {str(path): stat.filemode(mode) for path, mode in found.items() if mode & 0o077}
        assert loose == {}
        assert stat.S_IMODE(state.parent.lstat().st_mode) == 0o755  # the umask would allow 0777
        assert stat.S_IMODE((tmp_path / "mail.sock").lstat().st_mode) == 0o660
