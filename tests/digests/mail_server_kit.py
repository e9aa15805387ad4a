"""A mail server as users have it: a private Postfix with the bridge as its filter, and Dovecot's delivery agent."""

from __future__ import annotations

import shutil
import smtplib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.testing import free_port
from tests.postfix_kit import Postfix
from tests.requirements import need, unavailable

LDA = Path("/usr/lib/dovecot/dovecot-lda")


@dataclass
class MailServer:
    home: Path  # of the mailboxes
    door: int  # where mail comes in
    behind: int  # behind the filter

    def send(self, content: bytes, sender: str, *recipients: str) -> None:
        with smtplib.SMTP("127.0.0.1", self.door, timeout=120) as client:
            client.sendmail(sender, list(recipients), content)

    def mailbox(self, name: str) -> list[Path]:
        """The mails of a user, the oldest first. Not what is in `tmp`: it is still being written."""
        delivered = [path for part in ("new", "cur") for path in (self.home / name / part).glob("[0-9]*")]
        return sorted(delivered, key=lambda path: path.stat().st_mtime_ns)


@contextmanager
def mail_server(
    filter_port: int, behind: int, way: str = "smtpd_proxy_filter=127.0.0.1:{port}"
) -> Iterator[MailServer]:
    """`way`: the setting by which Postfix hands mail to the bridge."""
    need("postfix", "dovecot", root=True)
    if not LDA.exists():
        unavailable("dovecot-lda not installed (Debian: apt-get install dovecot-core)")
    home = Path(tempfile.mkdtemp(prefix="mailboxes-"))
    home.chmod(0o755)
    boxes = home / "boxes"
    boxes.mkdir()
    shutil.chown(boxes, "nobody", "nogroup")
    (home / "dovecot.conf").write_text(_DOVECOT.format(home=home))
    door = free_port()
    services = (
        f"127.0.0.1:{door} inet n - n - - smtpd -o {way.format(port=filter_port)}\n"
        "lmtp unix - - n - - lmtp\n"
        f"127.0.0.1:{behind} inet n - n - - smtpd\n"
        f"dovecot unix - n n - - pipe flags=R user=nobody argv={LDA} -c {home}/dovecot.conf "
        f"-o mail_location=maildir:{boxes}/${{user}} -f ${{sender}} -a ${{recipient}}"
    )
    settings = (
        "virtual_mailbox_domains = a.example\nvirtual_transport = dovecot\ndovecot_destination_recipient_limit = 1\n"
    )
    try:
        with Postfix(services, 1, settings):
            yield MailServer(boxes, door, behind)
    finally:
        shutil.rmtree(home, ignore_errors=True)


_DOVECOT = """
base_dir = {home}/run
state_dir = {home}/state
log_path = /dev/null
first_valid_uid = 0
first_valid_gid = 0
default_internal_user = root
default_login_user = root
default_internal_group = root
ssl = no
mail_fsync = never
postmaster_address = postmaster@a.example
"""
