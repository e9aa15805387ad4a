"""A real Exim as our client, with its own root directory."""

from __future__ import annotations

from tests.debian_root import Room
from tests.requirements import unavailable


def deliver(port: int, recipients: tuple[str, ...], options: str, content: str) -> tuple[str, str]:
    """Give Exim a mail and wait until it has tried to deliver it: its log, and its queue after that.

    `options` are those of the transport to 127.0.0.1:`port`.
    """
    with Room("exim", "/var/spool/exim4") as room:
        (room.directory / "exim.conf").write_text(CONFIGURATION.format(port=port, options=options))
        done = room.once(SCRIPT.format(recipients=" ".join(recipients)), content)
        log = room.directory / "mainlog"
        if not log.exists():
            unavailable(f"Exim does not start: {done.stderr[-400:]}")
        return log.read_text(), done.stdout


SCRIPT = """\
chown Debian-exim:Debian-exim /var/spool/exim4 /mnt
chown root:root /mnt/exim.conf
exim4 -C /mnt/exim.conf -odf -oi -f a@client.example {recipients} || true
exim4 -C /mnt/exim.conf -bp"""

CONFIGURATION = """\
exim_user = Debian-exim
exim_group = Debian-exim
primary_hostname = exim.example
qualify_domain = exim.example
log_file_path = /mnt/%slog
spool_directory = /var/spool/exim4
keep_environment =
trusted_users = root
log_selector = +smtp_confirmation
bounce_return_message = false
begin routers
bounces:
  driver = redirect
  senders = :
  data = :blackhole:
all:
  driver = manualroute
  transport = bridge
  route_list = * 127.0.0.1 byname
  self = send
begin transports
bridge:
  driver = smtp
  port = {port}
  allow_localhost
  hosts_try_fastopen =
  {options}
begin retry
* * F,2h,15m
"""
