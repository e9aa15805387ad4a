"""From a quarantined mail to a list: `scanbridge quarantine block-sender | allow-sender`."""

from __future__ import annotations

import json
import re

import pytest

from bridge.runtime import yaml_file
from tests.filter.envelope_lists.envelope_lists_kit import TENANTS, fill, section
from tests.lists.lists_kit import TENANT, http, misbehaving
from tests.quarantine.quarantine_kit import desk


@pytest.fixture(autouse=True)
def filled(service) -> None:
    """Every test starts with the same lists, in whatever order they run."""
    service.clear()
    fill(service)


@pytest.fixture(scope="module")
def kept(service, tmp_path_factory):
    """A quarantine with mail from an ordinary sender, to a tenant, from the null sender, and from an odd sender."""
    with desk(tmp_path_factory.mktemp("kept"), {"tenants": TENANTS}) as made:
        configure(made, section(service, block_list="shunned"))
        made.stranger = made.send(sender=b"Spam@Stranger.example")
        made.tenants = made.send(b"Subject: x\r\n\r\nx\r\n", b"b@tenant.example", sender=b"other@stranger.example")
        made.bounce = made.send(b"Subject: y\r\n\r\ny\r\n", sender=b"")
        yield made


def configure(made, lists: dict) -> None:
    text = made.config.read_text()
    made.config.write_text(text.partition("\nlists:")[0] + "\n" + yaml_file.dump({"lists": lists}))


def test_a_sender_is_blocked_with_a_comment_that_names_the_mail(kept, service):
    """The comment has the user, the mail and the time; a second call changes nothing, not even an edited comment."""
    done = kept.call("block-sender", kept.stranger)
    assert (done.exit_code, done.stdout) == (
        0,
        f"{kept.stranger}: Spam@Stranger.example added to shunned of the deployment\n",
    ), done.output
    comment = service.entries("shunned")["Spam@Stranger.example"]
    assert re.fullmatch(rf"quarantined mail {kept.stranger} of \d{{4}}-\d\d-\d\d \d\d:\d\d UTC, by \S+", comment)
    service.add("shunned", {"spam@stranger.example": "my own words"})
    again = kept.call("block-sender", kept.stranger, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == {
        "id": kept.stranger,
        "list": "shunned",
        "tenant": None,
        "entry": "Spam@Stranger.example",
        "added": False,
        "problem": None,
        "exit_code": 0,
    }
    assert service.entries("shunned") == {"spam@stranger.example": "my own words"}
    noted = [json.loads(line) for line in (kept.directory / "actions.log").read_text().splitlines()]
    assert [(note["action"], note["list"]) for note in noted if note["id"] == kept.stranger] == [
        ("blocked sender", "shunned")
    ]


def test_a_tenants_mail_is_listed_for_the_tenant(kept, service):
    """Unless --global is given; a whole domain needs --domain."""
    done = kept.call("allow-sender", kept.tenants, "--domain", "--list", "changing")
    assert done.exit_code == 0, done.output
    assert list(service.entries("changing", TENANT)) == ["@stranger.example"]
    done = kept.call("allow-sender", kept.tenants, "--global", "--domain", "--list", "allowed-domains")
    assert done.exit_code == 0, done.output
    assert list(service.entries("allowed-domains")) == ["stranger.example"]


@pytest.mark.parametrize(
    ("mail", "arguments", "code", "text"),
    [
        ("bounce", [], 1, "the null sender"),
        ("stranger", ["--list", "blocked-domains"], 1, "use --domain"),
        ("stranger", ["--list", "blocked-networks"], 1, "contains networks"),
        ("stranger", ["--list", "no-such-list"], 1, "no list no-such-list"),
        ("none", [], 3, "no such mail"),
    ],
)
def test_what_cannot_be_listed_is_reported(kept, mail, arguments, code, text):
    """A clear message, an exit code, and no entry added."""
    done = kept.call("block-sender", getattr(kept, mail, "NOSUCHMAIL"), *arguments)
    assert (done.exit_code, text in done.stderr) == (code, True), done.output


def test_a_refused_key_and_missing_settings_have_their_own_exit_codes(kept, service, tmp_path):
    """77 if the service refuses the key, 78 if the configuration has no `lists`."""
    before = kept.config.read_text()
    try:
        with misbehaving(tmp_path, lambda _: http(401, {"error": "unauthorized"})) as server:
            configure(kept, section(server))
            assert kept.call("block-sender", kept.stranger).exit_code == 77
        kept.config.write_text(before.partition("\nlists:")[0] + "\n")
        assert kept.call("block-sender", kept.stranger).exit_code == 78
    finally:
        kept.config.write_text(before)


def test_filters_select_the_senders_and_each_is_added_once(kept, service):
    """From a campaign to a block list: a dry run, a confirmation, one entry, a summary."""
    for number in range(3):
        kept.send(b"Subject: campaign %d\r\n\r\nx\r\n" % number, sender=b"boss@campaign.example")
    chosen = ("--subject", "campaign", "--domain")
    dry = kept.call("block-sender", *chosen, "--dry-run")
    assert dry.exit_code == 0 and "@campaign.example: would be added to shunned of the deployment" in dry.stderr
    assert kept.call("block-sender", *chosen).exit_code == 2 and service.entries("shunned") == {}
    done = kept.call("block-sender", *chosen, "--yes")
    assert done.exit_code == 0 and done.stdout == "3 mails: @campaign.example added to shunned of the deployment\n"
    assert "1 entry from 3 mails added to shunned" in done.stderr
    assert list(service.entries("shunned")) == ["@campaign.example"]


def test_a_forged_sender_at_the_own_domain_or_a_provider_needs_force(kept, service):
    """The mail's own recipients show which domain is the operator's."""
    forged = kept.send(b"Subject: forged\r\n\r\nx\r\n", b"you@firm.example", sender=b"boss@firm.example")
    provider = kept.send(b"Subject: forged\r\n\r\nx\r\n", sender=b"somebody@gmail.com")
    for mail, text in ((forged, "your own domain"), (provider, "large mail provider")):
        done = kept.call("block-sender", mail, "--domain")
        assert done.exit_code == 4 and text in done.stderr and "--force" in done.stderr, done.output
    assert kept.call("block-sender", provider).exit_code == 0
    assert kept.call("block-sender", provider, "--domain", "--force").exit_code == 0
    assert sorted(service.entries("shunned")) == ["@gmail.com", "somebody@gmail.com"]


@pytest.mark.parametrize("command", ["block-sender", "allow-sender"])
def test_one_dangerous_entry_among_several_stops_them_all(kept, service, command):
    """All dangerous ones are named once, and nothing is changed, as `lists add` does."""
    for number, sender in enumerate((b"a@harmless.example", b"b@gmail.com", b"c@gmail.com", b"d@yahoo.fr")):
        kept.send(b"Subject: mixture %d %b\r\n\r\nx\r\n" % (number, command.encode()), sender=sender)
    chosen = (command, "--subject", f"mixture * {command}", "--domain", "--list", "shunned", "--yes")
    done = kept.call(*chosen)
    assert (done.exit_code, done.stdout) == (4, ""), done.output
    assert done.stderr.count("@gmail.com") == 1 and done.stderr.count("@yahoo.fr") == 1, done.stderr
    assert done.stderr.endswith("nothing was changed; add --force if this is intended\n")
    rows = [json.loads(line) for line in kept.call(*chosen, "--json").stdout.splitlines()]
    assert [row["added"] for row in rows] == [False] * 4 and {row["exit_code"] for row in rows} == {4}
    assert service.entries("shunned") == {}
    assert kept.call(*chosen, "--force", "--comment", "campaign 7").exit_code == 0
    assert service.entries("shunned") == dict.fromkeys(("@gmail.com", "@harmless.example", "@yahoo.fr"), "campaign 7")
