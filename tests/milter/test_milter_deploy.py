"""The files we tell people to copy are ones that work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mta_kit import Postfix, Sink
from requirements import need

from bridge import config
from bridge.daemon import wiring
from bridge.mail.action import Action

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["postfix-milter", "sendmail"])
def test_configuration_is_valid_and_holds_quarantined_mail(name):
    """The bridge's side: a milter listener whose quarantine is the mail server's hold queue."""
    conf = config.load(ROOT / "deploy" / name / "bridge.yml")
    (listener,) = conf.listeners
    assert listener.protocol == "milter"
    assert conf.policy_for(listener).quarantine.action is Action.HOLD
    assert listener.deadline < 300


def test_stalwart_example():
    """Mail is kept by us and not delivered with a mark on it, the body is the whole mail, errors are temporary."""
    conf = config.load(ROOT / "deploy" / "stalwart" / "bridge.yml")
    (listener,) = conf.listeners
    milter = json.loads((ROOT / "deploy" / "stalwart" / "milter.json").read_text())
    assert conf.policy_for(listener).quarantine.action is Action.QUARANTINE
    assert wiring.milter_settings(conf, listener).body_is_whole
    assert (milter["port"], milter["tempFailOnError"]) == (listener.address.port, True)
    assert milter["timeoutData"] == "60s" and listener.deadline < 60


def test_postfix_knows_every_parameter_of_the_example():
    """Postfix's side: no misspelt or unknown parameter, and the values are the ones in force."""
    need("postfix", root=True)
    example = (ROOT / "deploy" / "postfix-milter" / "main.cf").read_text()
    with Sink() as sink:
        postfix = Postfix({}, sink, example)
        names = re.findall(r"^(\w+) =", example, re.MULTILINE)
        assert len(names) >= 6
        shown = postfix.run("postconf", *names)
        postfix.remove()
    assert "warning" not in shown
    for line in re.findall(r"^\w+ = .*$", example, re.MULTILINE):
        assert line in shown


def test_sendmail_example_refuses_while_the_bridge_is_down():
    """Sendmail's side: F=T, and a time for the whole that is longer than our deadline."""
    example = (ROOT / "deploy" / "sendmail" / "scanbridge.mc").read_text()
    (equates,) = re.findall(r"^INPUT_MAIL_FILTER\(`\w+', `(.*)'\)dnl$", example, re.MULTILINE)
    assert "F=T" in equates
    assert "E:5m" in equates
