"""A real Exim as our client, in a root of its own: Debian's mail servers exclude one another.

The root is built once with mmdebstrap and kept in the user's cache. Each run has a mount namespace of
its own with a temporary spool, so several can share the root and nothing is left mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from requirements import need, unavailable

SOURCES = "/etc/apt/sources.list.d/debian.sources"


def cached_root() -> Path:
    """The Debian root with Exim in it; built on first use, which takes half a minute."""
    need("mmdebstrap", "unshare", root=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scanbridge-tests"
    root = cache / "exim-bookworm"
    if not root.exists():
        cache.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=cache, prefix="building-"))
        building.chmod(0o755)
        command = ["mmdebstrap", "--mode=root", "--variant=apt", "--include=exim4-daemon-light", "bookworm"]
        sources = [SOURCES] if Path(SOURCES).exists() else []
        done = subprocess.run([*command, str(building), *sources], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            shutil.rmtree(building, ignore_errors=True)
            unavailable(f"the root for Exim cannot be built: {done.stderr[-400:]}")
        building.rename(root)
    return root


def deliver(directory: Path, port: int, recipients: tuple[str, ...], options: str, content: str) -> tuple[str, str]:
    """Give Exim a mail and wait until it has tried to deliver it: its log, and its queue after that.

    `options` are those of the transport to 127.0.0.1:`port`.
    """
    (directory / "exim.conf").write_text(CONFIGURATION.format(port=port, options=options))
    script = START.format(root=cached_root(), work=directory, recipients=" ".join(recipients))
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    done = subprocess.run(command, input=content, capture_output=True, text=True, timeout=60)
    log = directory / "mainlog"
    if not log.exists():
        unavailable(f"Exim does not start: {done.stderr[-400:]}")
    return log.read_text(), done.stdout


START = """\
set -e
mount --bind /dev {root}/dev
mount -t proc proc {root}/proc
mount -t tmpfs -o mode=755 tmpfs {root}/var/spool/exim4
mount --bind {work} {root}/mnt
chmod 755 {root}/mnt
chroot {root} sh -c '
  chown Debian-exim:Debian-exim /var/spool/exim4 /mnt
  chown root:root /mnt/exim.conf
  exim4 -C /mnt/exim.conf -odf -oi -f a@client.example {recipients} || true
  exim4 -C /mnt/exim.conf -bp'
"""

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
