"""Personal lists, from the page of a person to the mail that they get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.testing import answer, result, until
from tests.console.held_kit import hold
from tests.digests.digest_kit import users
from tests.digests.test_user_pages import signed_in


def test_what_a_person_lists_on_the_page_applies_to_their_mail_alone(tmp_path: Path) -> None:
    """A blocked sender's mail is held, an allowed sender's spam is delivered; malware of the same sender is not."""
    with users(tmp_path, personal_lists={"allow_by": "users"}, late_decisions={"store": "off"}) as world:
        for mail, sender in (("PEST", "pest@client.example"), ("FRIEND", "friend@client.example")):
            hold(tmp_path, mail, "own@a.example", sender=sender)
        hold(tmp_path, "VIRUS", "own@a.example", sender="friend@client.example", verdict="malware", tags=["malware:x"])
        person = signed_in(world, "own@a.example")
        until(lambda: "/mail/PEST" in person.get("/").text, "the list")
        assert person.post("/mail/PEST/block").target == "/?notice=blocked"
        assert person.post("/mail/VIRUS/allow").target == "/?notice=requested"  # an administrator decides
        assert "friend@client.example" not in person.get("/choices").text
        assert person.post("/mail/FRIEND/allow").target == "/?notice=allowed"
        wrong = {"kind": "allow", "sender": "no address", "recipient": "own@a.example"}
        assert person.post("/choices/remove", wrong).status == 400  # was 503, "try again later", and a line in the log

        def delivered(sender: str, **scan: Any) -> list[list[str]]:
            world.scanner.reply = answer(200, result(**scan))
            before = len(world.next_hop.mails)
            with world.bridge.client() as client:
                said = client.say(
                    f"MAIL FROM:<{sender}>".encode(), b"RCPT TO:<own@a.example>", b"RCPT TO:<other@a.example>", b"DATA"
                )
                assert said[-1].startswith(b"354")
                assert client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"250")
            return [mail.recipients for mail in world.received()[before:]]

        spam = {"decision": "quarantine", "verdict": "spam", "tags": ["spam:bulk", "auth:spf-pass"]}
        until(lambda: delivered("pest@client.example") == [["other@a.example"]], "the block entry in the daemon")
        until(lambda: delivered("friend@client.example", **spam) == [["own@a.example"]], "the allow entry there")
        virus = {"decision": "quarantine", "verdict": "malware", "tags": ["malware:x", "auth:spf-pass"]}
        assert delivered("friend@client.example", **virus) == []
