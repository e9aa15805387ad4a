"""Debian's miltertest plays the mail server: the protocol as another project implements it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bridge.mail.reply import Reply
from tests.intake.milter.mta_kit import Bridge
from tests.requirements import need

SCRIPTS = Path(__file__).with_name("lua")


@pytest.fixture
def bridge():
    need("miltertest")
    with Bridge() as running:
        yield running


def play(bridge, name):
    """Run one script against the bridge; the script itself fails if an answer is wrong."""
    script = (SCRIPTS / "common.lua").read_text() + (SCRIPTS / f"{name}.lua").read_text()
    done = subprocess.run(
        ["miltertest", "-v", "-D", f"port={bridge.port}", "-D", "marker=mark"],
        input=script, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_decision_is_understood(bridge):
    """Six mails on one connection, each with a different decision."""
    play(bridge, "decisions")
    assert len(bridge.filter.seen) == 6


def test_aborted_mail_leaves_nothing_behind(bridge):
    """The next mail has only its own recipients and content."""
    play(bridge, "abort")
    (seen,) = bridge.filter.seen
    assert seen.tx.envelope.addresses == ("b@example.net",)
    assert b"aborted" not in seen.content


def test_old_versions_and_missing_actions_are_respected(bridge):
    """We use nothing that the mail server did not offer."""
    play(bridge, "version")
    assert all(seen.content.startswith(b"Subject: mark\r\n") for seen in bridge.filter.seen)


def test_unknown_family_macros_and_large_bodies(bridge):
    """A client without an address, an authenticated user, a body of many chunks."""
    play(bridge, "corners")
    (seen,) = bridge.filter.seen
    assert seen.tx.session.client.address is None
    assert (seen.tx.session.client.ident, seen.tx.session.client.login) == ("QUEUE1", "ann")
    assert len(seen.content) > 300_000


def test_saturation_is_answered_at_mail(bridge):
    """No mail is accepted, and the connection stays usable."""
    bridge.call(lambda: setattr(bridge.filter.early, "saturated", Reply(451, "4.3.2", "Busy")))
    play(bridge, "saturated")
    assert not bridge.filter.seen
