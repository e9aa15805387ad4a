"""A private Sendmail in its own root directory."""

from __future__ import annotations

from collections.abc import Collection
from typing import Self

from tests.chain import is_listening
from tests.debian_root import Room


class Sendmail(Room):
    """One daemon that relays everything to one port of this machine."""

    def __init__(self, lines: str, ports: Collection[int], destination: int) -> None:
        """`lines` are added to the default sendmail.mc; `ports` are the ports that they configure."""
        super().__init__("sendmail", "/run", "/var/spool/mqueue")
        self._ports = ports
        (self.directory / "sendmail.mc").write_text(_MC.format(destination=destination, lines=lines))

    def __enter__(self) -> Self:
        self.start(_START, lambda: all(map(is_listening, self._ports)))
        return self

    def sendmail(self, *arguments: str) -> str:
        """Run the sendmail program inside the daemon's root."""
        return self.run("sendmail", "-C", "/mnt/sendmail.cf", *arguments)


# If the queue has the owner from the package, Sendmail fails with "collect: Cannot write"; a queue owned by root
# works. Sendmail sometimes defers a first delivery, hence the short interval between queue runs.
_START = """\
chmod 700 /var/spool/mqueue
mkdir -p /var/lib/sendmail/host_status
m4 /mnt/sendmail.mc > /mnt/sendmail.cf 2>/mnt/m4.log
exec sendmail -C /mnt/sendmail.cf -bD -q2s"""

_MC = """\
divert(-1)
include(`/usr/share/sendmail/cf/m4/cf.m4')
OSTYPE(`debian')dnl
DOMAIN(`generic')dnl
define(`confDOMAIN_NAME', `front.example')dnl
define(`confPID_FILE', `/run/sendmail.pid')dnl
define(`confDONT_PROBE_INTERFACES', `True')dnl
define(`confTO_IDENT', `0')dnl
define(`confQUEUE_LA', `64')dnl
define(`confREFUSE_LA', `80')dnl
define(`confCONNECTION_RATE_THROTTLE', `0')dnl
FEATURE(`no_default_msa')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`accept_unqualified_senders')dnl
FEATURE(`promiscuous_relay')dnl
define(`RELAY_MAILER_ARGS', `TCP $h {destination}')dnl
define(`SMART_HOST', `relay:[127.0.0.1]')dnl
define(`QUEUE_DIR', `/var/spool/mqueue')dnl
{lines}MAILER_DEFINITIONS
MAILER(`local')dnl
MAILER(`smtp')dnl
"""
