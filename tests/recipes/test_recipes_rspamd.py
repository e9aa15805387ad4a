"""The recipe with rspamd behind the bridge, and every action of rspamd behind each kind of mail server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.chain import dialogue, until
from tests.recipes.recipe_kit import Case, Setting, agree, mail, play, sent
from tests.recipes.test_recipes_haraka import Forwarding, Haraka
from tests.recipes.test_recipes_postfix import PostfixOf
from tests.recipes.test_recipes_roots import EximOf
from tests.requirements import need
from tests.rspamd_kit import RealRspamd, wanting

ALL = ["add_headers", "remove_headers", "subject", "reply_text"]
EDITS = {
    "add_headers": {"X-Spam-Level": {"value": "***", "order": 1}, "Content-Type": {"value": "text/html", "order": 1}},
    "remove_headers": {"X-Old": 0},
}


@pytest.fixture(scope="module")
def rspamd() -> Iterator[RealRspamd]:
    need("rspamd")
    with RealRspamd() as rspamd:
        yield rspamd


def test_rspamd_recipe_does_what_its_page_says(tmp_path: Path, rspamd: RealRspamd) -> None:
    """What the client receives and where the mail is in every case; rspamd knows the client and the queue id."""
    need("postfix", root=True)
    with Setting("rspamd", tmp_path, rspamd) as setting, PostfixOf(setting, "postfix-proxy") as postfix:
        agree(setting, play(setting, postfix, partial(dialogue, xclient="ADDR=192.0.2.7", helo="far.example")))
        line = setting.bridge.logged(r"(?m)^id=.*from=<deliver@.*$")[0]
        assert "client=192.0.2.7 helo=far.example " in line and "SEEN_BY_TEST" in line
        theirs = until(lambda: re.search(r"id: <mark-deliver-mark\S+ qid: .*", rspamd.log()), "rspamd's line")
        assert "ip: 192.0.2.7" in theirs[0] and "from: <deliver@example.org>" in theirs[0]
        queue_id = re.search(r"qid: <([^>]+)>", theirs[0])
        assert queue_id and f"id={queue_id[1]} " in line


def asking_for(action: str) -> bytes:
    """A mail that gets this action, with a text and with changes."""
    fields = (f"X-Mark: {action.replace(' ', '-')}", "X-Old: 1")
    return wanting(mail(Case.DELIVER, *fields), action=action, message=f"{action}: no", milter=EDITS)


def playing(setting: Setting, server: Any, **options: Any) -> dict[str, tuple[str, bytes]]:
    """For each action of rspamd: what the client received, and the mail as it arrived."""
    seen = {}
    for action in ACTIONS:
        marker = action.replace(" ", "-")
        content = asking_for(action)
        _, reply = dialogue(setting.front, content, sender=f"{marker}@example.org", **options)
        if action in DELIVERED:
            seen[action] = (reply, setting.destination.arrived(f"X-Mark: {marker}").content)
        else:
            until(lambda m=marker: server.senders().get(f"{m}@example.org") != "moving", "an end")
            found = setting.destination.find(f"X-Mark: {marker}")
            assert not found, f"{action} was delivered"
            seen[action] = (reply, b"")
    return seen


ACTIONS = ["no action", "greylist", "add header", "rewrite subject", "soft reject", "reject", "discard", "quarantine"]
DELIVERED = ("no action", "add header", "rewrite subject")


def check(seen: dict[str, tuple[str, bytes]], deferred: str = "451 4.7.1") -> None:
    codes = {action: reply[:9] if reply[0] != "2" else reply[:3] for action, (reply, _) in seen.items()}
    assert codes == {
        **dict.fromkeys(("no action", "add header", "rewrite subject", "discard", "quarantine"), "250"),
        **dict.fromkeys(("greylist", "soft reject"), deferred),
        "reject": "550 5.7.1",
    }
    for action in ("soft reject", "greylist", "reject"):
        assert f"{action}: no" in seen[action][0]
    for action in DELIVERED:
        arrived = seen[action][1]
        assert b"X-Scan-Verdict: %b\r\n" % action.encode() in arrived
        assert b"\nX-Spam-Level: ***\r\n" in arrived
        assert b"\nX-Old:" not in arrived and b"\nContent-Type:" not in arrived
        assert arrived.endswith(b"\r\n\r\nHello\r\n")
    assert b"\nX-Spam: Yes\r\n" in seen["add header"][1] and b"\nX-Spam:" not in seen["no action"][1]
    subjects = re.findall(rb"(?m)^Subject: (.*)\r$", seen["rewrite subject"][1])
    assert subjects == [b"*** SPAM *** " + Case.DELIVER.marker.encode()]


def scanner(rspamd: RealRspamd, **options: Any) -> dict[str, Any]:
    return {"dialect": "rspamd", "urls": [rspamd.url], "allow_changes": ALL, **options}


@pytest.mark.parametrize("recipe", ["postfix-proxy", "postfix-milter"])
def test_every_action_behind_postfix(recipe: str, tmp_path: Path, rspamd: RealRspamd) -> None:
    """As the table in docs/operate/dialects.md says, with all changes allowed."""
    need("postfix", root=True)
    with Setting(recipe, tmp_path, rspamd, scanner(rspamd)) as setting, PostfixOf(setting) as postfix:
        check(playing(setting, postfix))
        place = postfix.senders() if recipe == "postfix-milter" else setting.quarantined("X-Mark: quarantine")
        assert place if recipe == "postfix-proxy" else place == {"quarantine@example.org": "held"}


@pytest.mark.long
def test_every_action_behind_exim(tmp_path: Path, rspamd: RealRspamd) -> None:
    """The same; Exim passes the refusals on."""
    with Setting("exim", tmp_path, rspamd, scanner(rspamd)) as setting, EximOf(setting) as exim:
        check(playing(setting, exim))
        assert setting.quarantined("X-Mark: quarantine")


@pytest.mark.long
def test_every_action_behind_haraka(tmp_path: Path, rspamd: RealRspamd) -> None:
    """The same; Haraka's own code for a deferred mail is 450."""
    with Forwarding("haraka", tmp_path, rspamd, scanner(rspamd)) as setting, Haraka(setting) as haraka:
        check(playing(setting, haraka), "450 4.7.1")
        assert setting.quarantined("X-Mark: quarantine")


def test_nothing_is_changed_that_is_not_allowed(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Without permission, a mail goes on byte for byte, and the refusal has our own words."""
    need("postfix", root=True)
    conf = scanner(rspamd, allow_changes=[])
    with Setting("postfix-proxy", tmp_path, rspamd, conf) as setting, PostfixOf(setting) as postfix:
        seen = playing(setting, postfix)
        assert sent(seen["rewrite subject"][1]) == asking_for("rewrite subject")
        assert "The message was refused" in seen["reject"][0] and "no" not in seen["reject"][0].split("(")[0].split()
