"""The recipes for Postfix."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from bridge.cli.check.postfix import check_postfix
from bridge.testing import SmtpClient
from tests.chain import dialogue, send
from tests.postfix_kit import Postfix
from tests.recipes.recipe_kit import (
    DEPLOY,
    EICAR,
    HELD,
    MOVING,
    WAITING,
    Case,
    Service,
    Setting,
    agree,
    mail,
    play,
    sent,
)
from tests.requirements import need

_OURS = "relay_domains = example.net\nsmtp_line_length_limit = 0\n"  # only this; the rest comes from the recipe
_STATES = {"deferred": WAITING, "hold": HELD}


class PostfixOf(Postfix):
    """Postfix with a recipe's main.cf and master.cf, or those of another recipe that it refers to."""

    def __init__(self, setting: Setting, recipe: str = "") -> None:
        files = DEPLOY / (recipe or setting.recipe)
        main_cf, master_cf = (
            setting.file(name, recipe) if (files / name).exists() else "" for name in ("main.cf", "master.cf")
        )
        if not re.search(r"(?m)^smtp +inet", master_cf):
            master_cf += "smtp      inet  n       -       y       -       -       smtpd\n"  # Debian's own line
        # On our port, and without Debian's chroot, which a private Postfix does not have.
        master_cf = re.sub(r"(?m)^smtp (?= *inet)", f"127.0.0.1:{setting.front} ", master_cf)
        master_cf = re.sub(r"(?m)^(\S+ +inet +n +- +)y", r"\1n", master_cf)
        super().__init__(master_cf, setting.destination.port, _OURS + main_cf)

    def senders(self) -> dict[str, str]:
        return {entry["sender"]: _STATES.get(entry["queue_name"], MOVING) for entry in self.queue()}

    def flush(self) -> None:
        self.run("postqueue", "-f")


@pytest.mark.parametrize("recipe", ["postfix-proxy", "postfix-content-filter", "postfix-milter"])
def test_recipe_does_what_its_page_says(recipe: str, tmp_path: Path, service: Service) -> None:
    """What the client gets and where the mail is in every case; the scanner knows the client, no byte is changed."""
    need("postfix", root=True)
    with Setting(recipe, tmp_path, service) as setting, PostfixOf(setting) as postfix:
        assert postfix.complaints() == ""
        assert setting.problems(check_postfix, postfix.directory / "etc") == []
        agree(setting, play(setting, postfix, partial(dialogue, xclient="ADDR=192.0.2.7", helo="far.example")))
        assert "client=192.0.2.7 helo=far.example " in setting.bridge.logged(r"(?m)^id=.*$")[0]
        assert sent(setting.destination.arrived(Case.DELIVER.marker).content) == mail(Case.DELIVER)
        odd = mail(Case.DELIVER, "X-Odd:  two").replace(b"Hello", b"odd" + b"x" * 100_000 + b"\r\n\xe4\xf6\r\n.")
        send(setting.front, odd, mail=["BODY=8BITMIME"])
        assert sent(setting.destination.arrived("X-Odd").content) == odd


def test_a_bounce_does_not_deliver_what_was_not_scanned(tmp_path: Path, service: Service) -> None:
    """Malware to an address that only the bridge refuses: Postfix bounces it, unfiltered, to a forged sender."""
    need("postfix", root=True)
    victim = "victim@example.net"
    with Setting("postfix-content-filter", tmp_path, service) as setting, PostfixOf(setting) as postfix:
        with SmtpClient(setting.front) as client:
            client.open()
            client.begin(sender=f"<{victim}>".encode(), recipient=b'<"a\x7fb"@example.net>')
            assert client.say(mail(Case.QUARANTINE) + b".")[0].startswith(b"250")
        postfix.logged(r"status=bounced .* said: 553")
        bounce = setting.destination.arrived(Case.QUARANTINE.marker).content
    assert b"text/rfc822-headers" in bounce and EICAR.strip() not in bounce


def test_malware_with_a_nul_is_quarantined_after_the_queue(tmp_path: Path, service: Service) -> None:
    """The bridge refuses a NUL elsewhere; here, Postfix would return the mail to a forged sender."""
    need("postfix", root=True)
    with Setting("postfix-content-filter", tmp_path, service) as setting, PostfixOf(setting) as postfix:
        send(setting.front, mail(Case.QUARANTINE) + b"\0\r\n")
        postfix.logged(r"relay=127\.0\.0\.1\S+, .*status=sent \(250 2\.0\.0 Ok: queued as ")
        assert setting.destination.find(Case.QUARANTINE.marker) == []
        assert "action=quarantine" in setting.bridge.logged(r"(?m)^id=.*$")[0]
