"""Changes that a scanner asks for: which fields of the mail they touch, on every way out of the bridge."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.api.changes import Changes
from bridge.filter.changes import FieldEdit, changed_head, edits, too_many
from bridge.filter.policy import TOO_MANY_FORGED, rule_of_refusal
from bridge.mail.message import HEAD_LIMIT, Message, Spool
from bridge.testing import RunningBridge, SmtpClient, running_bridge
from tests.filter.smtp_kit import mail_lines
from tests.processor_time import fair_cpu_s
from tests.rspamd_kit import RealRspamd, wanting

HEAD = b"X-A: 1\r\nSubject: one\r\n two\r\nx-a : 2\r\nTo: b@example.org\r\nX-A: 3\r\n"


@pytest.mark.parametrize(
    ("changes", "after"),
    [
        (Changes(), HEAD),
        (Changes(add=(("X-B", "b"),)), HEAD),
        (Changes(remove=(("x-a", 0),)), b"Subject: one\r\n two\r\nTo: b@example.org\r\n"),
        (Changes(remove=(("x-a", 1),)), HEAD.removeprefix(b"X-A: 1\r\n")),
        (Changes(remove=(("x-a", -1),)), HEAD.removesuffix(b"X-A: 3\r\n")),
        (Changes(remove=(("x-a", 2), ("x-a", 2), ("x-a", 9), ("x-a", -9))), HEAD.replace(b"x-a : 2\r\n", b"")),
        (Changes(remove=(("x-none", 0),)), HEAD),
        (Changes(remove=(("x-a", 0), ("subject", 0), ("to", 0))), b""),
        (Changes(subject="new"), HEAD.replace(b"one\r\n two", b"new")),
        (Changes(subject=""), HEAD.replace(b"one\r\n two", b"")),
        (Changes(remove=(("subject", 0),), subject="new"), HEAD.replace(b"one\r\n two", b"new")),
    ],
)
def test_only_the_named_fields_change(changes: Changes, after: bytes) -> None:
    """Every other byte of the header section stays."""
    assert changed_head(HEAD, changes) == after


def test_a_mail_has_one_subject_afterwards() -> None:
    """A sender cannot keep an unmarked one beside it, or have none."""
    new = Changes(subject="new")
    assert changed_head(b"Subject: a\r\nsubject: b\r\nTo: c\r\nSUBJECT : d\r\n", new) == b"Subject: new\r\nTo: c\r\n"
    assert changed_head(b"To: c\r\n", new) == b"Subject: new\r\nTo: c\r\n"
    assert changed_head(b"", new) == b"Subject: new\r\n"


def test_a_mail_server_is_told_the_last_field_first() -> None:
    """So the numbers of the others stay true while it deletes them."""
    found = edits(HEAD, Changes(remove=(("x-a", 0),), subject="new"))
    assert found == (
        FieldEdit(b"x-a", 3, None), FieldEdit(b"x-a", 2, None), FieldEdit(b"x-a", 1, None),
        FieldEdit(b"subject", 1, "new"),
    )  # fmt: skip


FIELDS = st.lists(
    st.sampled_from([b"X-A: 1\r\n", b"x-a:\r\n\t2\r\n", b"Subject: s\r\n x\r\n", b"To: b\r\n", b"junk\r\n"]), max_size=8
)


@given(FIELDS, st.lists(st.tuples(st.sampled_from(["x-a", "to", "subject"]), st.integers(-4, 4)), max_size=4))
@settings(max_examples=300, deadline=None)
def test_what_is_left_is_a_part_of_the_mail_in_its_order(fields: list[bytes], remove: list[tuple[str, int]]) -> None:
    """Nothing is repaired, joined or moved."""
    left = changed_head(b"".join(fields), Changes(remove=tuple(remove)))
    rest = iter(fields)
    pieces = re.findall(rb"[^ \t].*\r\n(?:[ \t].*\r\n)*", left)
    assert b"".join(pieces) == left and all(piece in rest for piece in pieces)


@pytest.mark.parametrize("memory", [0, 1 << 20], ids=["file", "memory"])
def test_the_received_mail_stays_as_it_is(memory: int) -> None:
    """Other parts of the same mail may go elsewhere, with other changes or none."""
    content = HEAD + b"\r\nbody\r\n" * 1000
    message = Message(Spool(1 << 20, memory_per_mail=memory))
    message.write(content)
    view = message.with_head(b"X: y\r\n")
    assert b"".join(view.chunks()) == b"X: y\r\n" + content[len(HEAD) :] and view.size == len(content) - len(HEAD) + 6
    assert view.head() == b"X: y\r\n" and b"".join(message.chunks()) == content
    again = view.with_head(b"Z: z\r\n")
    assert b"".join(again.chunks()) == b"Z: z\r\n" + content[len(HEAD) :]
    view.close()
    assert b"".join(message.chunks()) == content
    message.close()


# With a real rspamd


@pytest.fixture(scope="module")
def rspamd() -> Iterator[RealRspamd]:
    with RealRspamd() as rspamd:
        yield rspamd


def scanner(rspamd: RealRspamd, **options: Any) -> dict[str, Any]:
    allowed = ["add_headers", "remove_headers", "subject", "reply_text"]
    return {"urls": [rspamd.url], "dialect": "rspamd", "allow_changes": allowed, **options}


def send(bridge: RunningBridge, content: bytes, **wanted: Any) -> bytes:
    with SmtpClient(bridge.port) as client:
        client.open()
        return client.mail(wanting(content, **wanted))


MILTER = {"add_headers": {"X-New": "new"}, "remove_headers": {"X-Old": 0}}


def test_a_large_mail_in_a_file_is_changed_too(tmp_path: Path, rspamd: RealRspamd) -> None:
    """The body stays byte for byte."""
    body = b"x" * 990 + b"\r\n"
    content = b"X-Old: 1\r\nSubject: s\r\n\r\n" + body * 3000
    with running_bridge(tmp_path, {"scanner": scanner(rspamd)}) as bridge:
        assert send(bridge, content, action="rewrite subject", milter=MILTER).startswith(b"250")
        (mail,) = bridge.next_hop.mails
        head, _, rest = mail.content.partition(b"\r\n\r\n")
        assert rest == body * 3000 and b"\nX-Old:" not in head
        assert mail.fields("Subject") == ["*** SPAM *** s"] and mail.fields("X-New") == ["new"]


def test_a_field_to_be_removed_stayed_behind_a_long_header_section(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Without a change that the scanner asks for, the mail is not delivered."""
    rest = b"X-Old: forged\r\nSubject: s\r\n\r\nbody\r\n"
    content = b"X: %b\r\n" % (b"y" * 900) * (2 * HEAD_LIMIT // 900) + rest
    with running_bridge(tmp_path, {"scanner": scanner(rspamd)}) as bridge:
        assert send(bridge, content, milter=MILTER).startswith(b"554 5.6.0 ")
        assert send(bridge, content, action="rewrite subject").startswith(b"554 5.6.0 ")
        assert not bridge.next_hop.mails
        assert send(bridge, rest, milter=MILTER).startswith(b"250 ")
        assert not bridge.next_hop.mails[-1].fields("X-Old")


def test_spam_with_too_many_fields_to_remove_bounced_to_a_forged_sender(
    tmp_path: Path, rspamd: RealRspamd, caplog: pytest.LogCaptureFixture
) -> None:
    """After a queue, what we refuse is quarantined, with the rule; the scanner's decision is in the mail log."""
    content = b"X-Old: x\r\n" * 501 + b"Subject: s\r\n\r\nbody\r\n"
    with running_bridge(tmp_path, {"scanner": scanner(rspamd)}, profile="postfix-content-filter") as bridge:
        with mail_lines() as lines, caplog.at_level(logging.INFO, "bridge"):
            assert send(bridge, content, milter=MILTER).startswith(b"250 ")
        assert not bridge.next_hop.mails
        (kept,) = bridge.quarantined
        assert kept.read_bytes().endswith(content)
    facts = json.loads(kept.with_suffix(".json").read_text())["facts"]
    (line,) = lines
    assert facts["reason"] == "refused" and facts["rule"] == line["rule"] == rule_of_refusal(TOO_MANY_FORGED)
    assert (line["action"], line["decision"]) == ("quarantine", "deliver")
    assert f"mail {line['id']}: quarantined instead of bounced: {TOO_MANY_FORGED}" in caplog.messages


def test_shadow_mode_changes_nothing(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Mail goes on as if there were no scanner."""
    with running_bridge(tmp_path, {"scanner": scanner(rspamd)}, mode="shadow") as bridge:
        content = b"X-Old: 1\r\nSubject: s\r\n\r\nbody\r\n"
        for action in ("rewrite subject", "reject"):
            assert send(bridge, content, action=action, milter=MILTER, message="no").startswith(b"250")
        for mail in bridge.next_hop.mails:
            assert mail.content.endswith(content) and not mail.fields("X-New")


def test_the_quarantine_has_the_mail_as_it_came(tmp_path: Path, rspamd: RealRspamd) -> None:
    """With the tags and the verdict."""
    with running_bridge(tmp_path, {"scanner": scanner(rspamd)}) as bridge:
        content = b"X-Old: 1\r\nSubject: s\r\n\r\nbody\r\n"
        assert send(bridge, content, action="quarantine", milter=MILTER).startswith(b"250")
        (stored,) = bridge.quarantined
        assert stored.read_bytes().endswith(content)
        facts = json.loads(stored.with_suffix(".json").read_text())["facts"]
        assert (facts["decision"], facts["verdict"], facts["tags"][0]) == (
            "quarantine",
            "quarantine",
            "score:0.00/100.00",
        )


def test_a_text_of_the_policy_takes_precedence(tmp_path: Path, rspamd: RealRspamd) -> None:
    """Otherwise the client receives rspamd's, on one line."""
    policy = {"undecided": {"action": "tempfail", "text": "ours"}}
    with running_bridge(tmp_path, {"scanner": scanner(rspamd), "policy": policy}) as bridge:
        content = b"Subject: s\r\n\r\nbody\r\n"
        assert b"4.7.1 ours (id=" in send(bridge, content, action="soft reject", message="theirs")
        hostile = send(bridge, content, action="reject", message="theirs\r\n250 Ok\r\n")
        assert re.fullmatch(rb"550 5\.7\.1 theirs 250 Ok \(id=\w+\)", hostile)


def test_each_tenant_of_an_lmtp_mail_gets_its_own_changes(tmp_path: Path, rspamd: RealRspamd) -> None:
    """The parts are scanned and changed one by one; the content is stored once."""
    tenants = [
        {"uid": f"123e4567-e89b-12d3-a456-42661417400{n}", "recipient_domains": [f"{n}.example"]} for n in (1, 2)
    ]
    config = {"scanner": scanner(rspamd), "tenants": tenants}
    with running_bridge(tmp_path, config, protocol="lmtp") as bridge, SmtpClient(bridge.port) as client:
        client.open(b"LHLO x")
        content = wanting(b"X-Old: 1\r\nSubject: s\r\n\r\nbody\r\n", action="rewrite subject", milter=MILTER)
        client.say(b"MAIL FROM:<a@x.example>", b"RCPT TO:<b@1.example>", b"RCPT TO:<b@2.example>", b"DATA")
        client.send(content + b".\r\n")
        assert [client.reply()[:3] for _ in range(2)] == [b"250", b"250"]
        assert len(bridge.next_hop.mails) == 2
        for mail in bridge.next_hop.mails:
            assert mail.fields("Subject") == ["*** SPAM *** s"] and not mail.fields("X-Old")


def test_a_sender_kept_forged_fields_by_writing_many() -> None:
    """Of 600 fields that were to be removed, 100 stayed."""
    head = b"X-Spam: No\r\n" * 600
    wanted = Changes(remove=(("x-spam", 0),))
    assert changed_head(head, wanted) == b"" and len(edits(head, wanted)) == 600
    assert too_many(head, wanted) and not too_many(head[:1200], wanted) and not too_many(b"A: b\r\n" * 600, wanted)


def test_fields_were_counted_beyond_the_limit() -> None:
    """A hundred thousand of them took a quarter of a second, in which no other mail was answered."""
    head = b"Subject:\r\n" * 100_000
    assert fair_cpu_s(lambda: too_many(head, Changes(remove=(("subject", 0),)))) < 0.03
