"""A private Postfix with its own directories, ports and log; the machine's own Postfix is not touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from bridge.testing import until
from tests.requirements import find, need


class Postfix:
    """Relays everything to one port of this machine."""

    def __init__(self, services: str, destination: int, settings: str = "") -> None:
        """`services` are lines for master.cf, `settings` for main.cf, in addition to the defaults."""
        need("postfix", root=True)  # only root can start it
        directory = self.directory = Path(tempfile.mkdtemp(prefix="postfix-"))
        directory.chmod(0o755)  # Postfix's own user must have access; pytest's directories are private
        self._config = directory / "etc"
        for name in ("etc", "spool", "data", "etc/postfix-files.d", "etc/dynamicmaps.cf.d"):
            (directory / name).mkdir()
        shutil.chown(directory / "data", "postfix")
        for file in Path("/etc/postfix").glob("postfix-files*"):
            if file.is_file():
                shutil.copy(file, self._config)
        (self._config / "dynamicmaps.cf").touch()
        (directory / "maillog").touch()
        (directory / "maillog").chmod(0o666)  # after a crash, Postfix writes to the log as its own user
        main = _MAIN_CF.format(directory=directory, destination=destination)
        (self._config / "main.cf").write_text(_without(main, settings) + settings)
        (self._config / "master.cf").write_text(f"{services}\n{_MASTER_CF}")
        for name in ("main.cf", "master.cf"):
            os.utime(self._config / name, (0, 0))  # Postfix waits two seconds for a file that has just changed

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.remove()

    def start(self) -> None:
        self.run("postfix", "start")

    def stop(self) -> None:
        self.run("postfix", "stop")

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, program: str, *arguments: str, text: str | None = None) -> str:
        """Run one of Postfix's own programs for this instance."""
        command = [str(find(program)), "-C" if program == "sendmail" else "-c", str(self._config), *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def queue(self) -> list[dict[str, Any]]:
        """The current queue, as `postqueue -j` prints it."""
        return [json.loads(line) for line in self.run("postqueue", "-j").splitlines()]

    def complaints(self) -> str:
        """Warnings of `postconf`, which knows every parameter and reports unknown ones."""
        command = [str(find("postconf")), "-c", str(self._config)]
        shown = [subprocess.run([*command, option], capture_output=True, text=True) for option in ("-n", "-M", "-P")]
        return "".join(done.stderr for done in shown)

    def log(self) -> str:
        path = self.directory / "maillog"
        return path.read_text(errors="replace") if path.exists() else "(no log)"

    def logged(self, pattern: str) -> re.Match[str]:
        """Wait for a line in the log."""
        found = until(lambda: re.search(pattern, self.log()), f"{pattern} in Postfix's log")
        assert found
        return found


def _without(main: str, settings: str) -> str:
    """The lines of main.cf that `settings` does not replace.

    For each line that is replaced later, every process of Postfix logs a warning when it starts. If eleven of them wait
    before postlogd has read its own configuration, it waits for itself for ever, and all mail with it (Postfix 3.7).
    """
    names = {line.partition("=")[0].strip() for line in settings.splitlines()}
    return "".join(line for line in main.splitlines(keepends=True) if line.partition("=")[0].strip() not in names)


_MAIN_CF = """\
compatibility_level = 3.6
queue_directory = {directory}/spool
data_directory = {directory}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
maillog_file = {directory}/maillog
maillog_file_prefixes = {directory}
inet_interfaces = 127.0.0.1
inet_protocols = all
myhostname = front.example
mydestination =
mynetworks = 127.0.0.0/8
smtpd_relay_restrictions = permit_mynetworks, reject_unauth_destination
default_transport = smtp:[127.0.0.1]:{destination}
relay_transport = smtp:[127.0.0.1]:{destination}
disable_dns_lookups = yes
smtp_host_lookup = native
smtp_tls_security_level = none
alias_maps =
alias_database =
smtpd_peername_lookup = no
smtpd_client_connection_count_limit = 0
smtpd_authorized_xclient_hosts = 127.0.0.0/8
"""

_MASTER_CF = """\
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
showq unix n - n - - showq
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
tlsmgr unix - - n 1000? 1 tlsmgr
postlog unix-dgram n - n - 1 postlogd
"""
