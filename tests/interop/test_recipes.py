"""The files in deploy/ for Postfix, as they are, on other ports: each does what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from chain import Postfix, Program, added_fields, free_port, send, until
from test_content_filter import EICAR, GTUBE, deferred, queue_id
from test_proxy_filter import STAMPED, mail

from bridge.testing import TOKEN

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


class Recipe:
    """One directory of deploy/, set up in a directory of its own."""

    def __init__(self, name: str, directory: Path, service: int) -> None:
        self._place = {"10025": free_port(), "10026": free_port(), "9081": service}
        self.front = free_port()
        self.directory = directory
        self.main_cf = self._moved((DEPLOY / name / "main.cf").read_text())
        master_cf = (DEPLOY / name / "master.cf").read_text()
        if not re.search(r"(?m)^smtp +inet", master_cf):
            master_cf += "smtp      inet  n       -       y       -       -       smtpd\n"  # Debian's own line
        self.master_cf = self._moved(master_cf)
        bridge_yml = self._moved((DEPLOY / name / "bridge.yml").read_text())
        bridge_yml = bridge_yml.replace("https://scan.example.org:", "http://127.0.0.1:")
        admin = free_port()
        (directory / "bridge.yml").write_text(f"{bridge_yml}admin: {{address: '127.0.0.1:{admin}'}}\n")
        (directory / "api-token").write_text(TOKEN)
        self.bridge = Program(directory, [admin, self._place["10025"]], "run", "-c", str(directory / "bridge.yml"))

    def _moved(self, text: str) -> str:
        """On our ports, and not in Debian's chroot, which a private Postfix has not got."""
        text = re.sub(r"(?m)^smtp (?= *inet)", f"127.0.0.1:{self.front} ", text)
        for port, ours in self._place.items():
            text = text.replace(port, str(ours))
        return re.sub(r"(?m)^(\S+ +inet +n +- +)y", r"\1n", text)


@pytest.fixture
def recipe(request, tmp_path, ports, destination, installed):
    """Postfix and bridge, set up by the files of one recipe, and the service that all tests share."""
    one = Recipe(request.param, tmp_path, ports.service)
    try:
        one.bridge.start()
        with Postfix(one.master_cf, destination.port, one.main_cf) as one.postfix:
            yield one
    finally:
        one.bridge.kill()


@pytest.mark.parametrize("recipe", ["postfix-proxy"], indirect=True)
def test_proxy_recipe(recipe, destination, marker):
    """Delivered, refused, quarantined, put off by Postfix: as the table in its README says."""
    assert send(recipe.front, mail(marker), xclient="ADDR=192.0.2.7").startswith("250 2.0.0 Ok: queued as ")
    assert set(added_fields(destination.arrived(marker).content, mail(marker))) <= {"Received", *STAMPED}
    assert "client=192.0.2.7" in recipe.bridge.logged(r"(?m)^id=.*$")[0]
    assert send(recipe.front, mail(marker, body=GTUBE)).startswith("550 5.7.1 ")
    assert send(recipe.front, mail(marker, body=EICAR)).startswith("250 2.0.0 Ok: queued as ")
    assert len(list(recipe.directory.glob("quarantine/*.eml"))) == 1
    recipe.bridge.kill()
    assert send(recipe.front, mail(marker)) == "451 4.3.0 Error: queue file write error"
    assert len(destination.find(marker)) == 1


@pytest.mark.parametrize("recipe", ["postfix-content-filter"], indirect=True)
def test_content_filter_recipe(recipe, destination, marker):
    """Delivered, quarantined, kept in Postfix's queue: as the table in its README says."""
    postfix = recipe.postfix
    long = mail(marker, body=b"x" * 100_000 + b"\r\n\xe4\xf6\r\n")
    identity = queue_id(send(recipe.front, long, mail=["BODY=8BITMIME"]))
    assert set(added_fields(destination.arrived(marker).content, long)) <= {"Received", *STAMPED}
    recipe.bridge.logged(rf"(?m)^id=.* ident={identity}$")
    for body in (GTUBE, EICAR):
        postfix.logged(rf"{queue_id(send(recipe.front, mail(marker, body=body)))}: .*status=sent")
    assert len(list(recipe.directory.glob("quarantine/*.eml"))) == 2
    recipe.bridge.kill()
    assert deferred(postfix, queue_id(send(recipe.front, mail(marker + "later"))))
    recipe.bridge.start()
    postfix.run("postqueue", "-f")
    destination.arrived(marker + "later")
    until(lambda: not postfix.queue(), "Postfix's queue to be empty")
    assert not destination.find("Undelivered Mail")
