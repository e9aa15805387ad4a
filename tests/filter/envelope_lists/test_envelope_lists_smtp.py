"""Lists enforced at MAIL and RCPT: what the client receives, what is logged and counted, and what does not match."""

from __future__ import annotations

import re

import pytest

from bridge.testing import answer, result
from tests.filter.envelope_lists.envelope_lists_kit import BLOCK, door, forwarded, offer
from tests.filter.smtp_kit import MAIL, Client, counted, mail_lines, send
from tests.filter.test_filter_personal import Personal
from tests.lists.lists_kit import TENANT

REFUSED = re.compile(r"550 5\.7\.1 Refused by the lists of this server \(id=([0-9A-F]+)\)")


@pytest.fixture(scope="module")
def bridge(service, tmp_path_factory):
    lists = {"block": BLOCK, "block_recipients": ["closed-mailboxes"], "skip_scan": ["allowed-networks"]}
    with door(tmp_path_factory.mktemp("door"), service, lists) as bridge:
        yield bridge


@pytest.mark.parametrize(
    ("sender", "listed", "entry"),
    [
        ("bad@sender.example", "blocked-senders", "bad@sender.example"),
        ("BAD@Sender.Example", "blocked-senders", "bad@sender.example"),
        ("anybody@worse.example", "blocked-senders", "@worse.example"),
        ("anybody@sub.worse.example", "blocked-senders", "@worse.example"),
        ("x@evil.example", "blocked-domains", "evil.example"),
        ("x@deep.sub.evil.example", "blocked-domains", "evil.example"),
        (r'"odd \" part"@evil.example', "blocked-domains", "evil.example"),
        ("x@xn--bcher-kva.example", "blocked-domains", "xn--bcher-kva.example"),
        ("bad@sender.example.", "blocked-senders", "bad@sender.example"),
        ('"bad"@sender.example', "blocked-senders", "bad@sender.example"),
        ("x@XN--BCHER-KVA.example..", "blocked-domains", "xn--bcher-kva.example"),
        ("x@-odd-.evil.example", "blocked-domains", "evil.example"),
        ("x@a..evil.example.", "blocked-domains", "evil.example"),
    ],
)
def test_a_blocked_sender_is_refused_and_the_line_names_the_recipient(bridge, sender, listed, entry):
    """550 5.7.1 with our id at RCPT, one log line that names list and recipient, no scan; the next mail passes."""
    before = (
        len(bridge.scanner.submissions),
        counted(bridge, "list_matches_total", listener="test", list=listed, action="refused"),
    )
    with mail_lines() as lines, Client(bridge) as client:
        client.say("EHLO client.example")
        assert client.say(f"MAIL FROM:<{sender}>").startswith("250")
        found = REFUSED.fullmatch(client.say("RCPT TO:<b@example.org>"))
        assert found
        assert (lines[0]["id"], lines[0]["list"], lines[0]["entry"]) == (found[1], listed, entry)
        assert (lines[0]["at"], lines[0]["action"], lines[0]["from"]) == ("rcpt", "reject", f"<{sender}>")
        assert (lines[0]["to"], lines[0]["rule"]) == ("<b@example.org>", f"lists.{listed}")
        assert client.say("DATA").startswith("503")
        client.say("RSET")
        assert client.say("MAIL FROM:<good@sender.example>").startswith("250")
        assert client.say("RCPT TO:<b@example.org>").startswith("250")
    assert len(bridge.scanner.submissions) == before[0]
    after = counted(bridge, "list_matches_total", listener="test", list=listed, action="refused")
    assert after == before[1] + 1


@pytest.mark.parametrize(
    "sender", ["x@B\u00dcCHER.example.", "x@bu\u0308cher\u3002example", "x@sub.b\u00fccher.example"]
)
def test_a_blocked_sender_may_not_write_its_domain_in_unicode(bridge, sender):
    """SMTPUTF8 senders are compared in the same spelling as the entries."""
    with Client(bridge) as client:
        client.say("EHLO client.example")
        client.say(f"MAIL FROM:<{sender}> SMTPUTF8")
        assert REFUSED.fullmatch(client.say("RCPT TO:<b@example.org>"))


@pytest.mark.parametrize(
    "recipient", ["gone@example.org.", "GONE@Example.ORG", '"gone"@example.org', "x@closed.example."]
)
def test_a_closed_mailbox_is_closed_in_every_spelling(bridge, recipient):
    assert REFUSED.fullmatch(offer(bridge, recipient=recipient))


@pytest.mark.parametrize("sender", ["", "bad@other.example", "sender.example@x.example", "x@notevil.example", "evil"])
def test_other_senders_are_not_refused(bridge, sender):
    """The null sender, another domain, a domain that only has the same ending."""
    reply = offer(bridge, sender)
    assert reply.startswith("250"), reply


@pytest.mark.parametrize("address", ["192.0.2.77", "2001:db8:bad::1", "198.51.100.7"])
def test_a_blocked_client_is_refused(bridge, address):
    """The client that the mail server names by XFORWARD, checked for every mail."""
    with Client(bridge) as client:
        forwarded(client, address)
        client.say("MAIL FROM:<good@sender.example>")
        assert REFUSED.fullmatch(client.say("RCPT TO:<b@example.org>"))
        client.say("RSET")
        forwarded(client, "198.51.100.8")
        assert client.say("MAIL FROM:<good@sender.example>").startswith("250")
        assert client.say("RCPT TO:<b@example.org>").startswith("250")


def test_a_blocked_recipient_is_refused_and_the_others_are_not(bridge):
    """The other recipients get the mail; the log has a line for the refused recipient and one for the mail."""
    with mail_lines() as lines, Client(bridge) as client:
        client.begin()
        assert REFUSED.fullmatch(client.say("RCPT TO:<gone@example.org>"))
        assert REFUSED.fullmatch(client.say("RCPT TO:<x@sub.closed.example>"))
        assert client.say("RCPT TO:<c@example.org>").startswith("250")
        assert client.say("DATA").startswith("354")
        client.content()
        assert client.read().startswith("250")
    assert [(line.get("at"), line.get("list"), line["to"]) for line in lines] == [
        ("rcpt", "closed-mailboxes", "<gone@example.org>"),
        ("rcpt", "closed-mailboxes", "<x@sub.closed.example>"),
        (None, None, "<b@example.org>,<c@example.org>"),
    ]


def test_a_tenants_lists_apply_to_its_own_recipients(bridge):
    """They apply at RCPT; the same sender may write to other recipients."""
    sender = "unwanted@sender.example"
    with mail_lines() as lines:
        assert REFUSED.fullmatch(offer(bridge, sender, "a@tenant.example"))
        assert (lines[0]["list"], lines[0]["tenant"], lines[0]["at"]) == ("blocked-senders", TENANT, "rcpt")
    assert offer(bridge, sender).startswith("250")
    assert REFUSED.fullmatch(offer(bridge, recipient="retired@tenant.example"))
    assert REFUSED.fullmatch(offer(bridge, recipient="gone@example.org"))


def test_an_allowed_client_is_not_scanned_and_the_header_says_so(bridge):
    """Relayed with a field that gives the reason, logged and counted; a forged field is removed."""
    before = len(bridge.scanner.submissions)
    with mail_lines() as lines, Client(bridge) as client:
        forwarded(client, "203.0.113.9")
        client.say("MAIL FROM:<good@sender.example>")
        client.say("RCPT TO:<b@example.org>")
        client.say("DATA")
        client.content(b"X-Scan-Decision: deliver\r\n" + MAIL)
        assert client.read() == "250 2.0.0 Ok: queued as NEXT1"
    assert len(bridge.scanner.submissions) == before
    content = bridge.next_hop.mails[-1].content
    assert b"X-Scan-Unscanned: list allowed-networks\r\n" in content
    assert b"X-Scan-Decision" not in content
    assert (lines[0]["action"], lines[0]["list"], lines[0]["entry"]) == ("relay", "allowed-networks", "203.0.113.0/24")
    assert counted(bridge, "list_matches_total", listener="test", list="allowed-networks", action="skipped") == 1


def test_mail_from_the_mail_servers_own_address_is_scanned(bridge):
    """127.0.0.0/8 is on the allowing list; mail of a mail server that does not name its client is scanned."""
    before = len(bridge.scanner.submissions)
    assert offer(bridge).startswith("250")
    assert len(bridge.scanner.submissions) == before + 1


def test_a_blocking_list_wins_over_an_allowing_one(bridge):
    """192.0.2.200 is on both lists."""
    with Client(bridge) as client:
        forwarded(client, "192.0.2.200")
        client.say("MAIL FROM:<good@sender.example>")
        assert REFUSED.fullmatch(client.say("RCPT TO:<b@example.org>"))


def test_commands_pipelined_after_a_refusal_are_not_errors(bridge):
    """Thirty refused recipients, and DATA after them, do not count as client errors."""
    with bridge.client() as client:
        client.open()
        commands = [b"MAIL FROM:<bad@sender.example>", *[b"RCPT TO:<b@example.org>"] * 30, b"DATA", b"RSET"]
        for _ in range(2):
            replies = client.say(*commands)
            assert [reply[:3] for reply in replies] == [b"250", *[b"550"] * 30, b"503", b"250"]
        assert client.mail() == b"250 2.0.0 Ok: queued as NEXT1"


def test_an_allowing_list_can_be_made_to_win(service, tmp_path):
    """`allow_wins` with a sender address as the reason: the operator must enable both."""
    lists = {"block": BLOCK, "skip_scan": ["allowed-senders"], "allow_wins": True, "text": "Not here"}
    with door(tmp_path, service, lists) as bridge:
        assert offer(bridge, "both@sender.example").startswith("250")
        assert bridge.scanner.submissions == []
        assert offer(bridge, "bad@sender.example").startswith("550 5.7.1 Not here (id=")


@pytest.mark.parametrize(
    "recipient", ["pre\u017f\u017f@example.org", "PRE\u1e9e@Example.org.", '"pre\u00df"@example.org']
)
def test_a_closed_mailbox_was_open_under_a_name_that_folds_to_its_own(bridge, recipient):
    """Postfix folds case as Unicode defines it, and delivers mail for `pre\u00df` to `press`."""
    with Client(bridge) as client:
        client.say("EHLO client.example")
        assert client.say("MAIL FROM:<good@sender.example> SMTPUTF8").startswith("250")
        assert REFUSED.fullmatch(client.say(f"RCPT TO:<{recipient}>"))
        assert client.say("RCPT TO:<pre\u017f@example.org>").startswith("250")
        assert client.say("RCPT TO:<jos\u00e9@example.org>").startswith("250")


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_shadow_mode_only_reports(service, tmp_path, protocol):
    """Everything is scanned and relayed; log and metrics show what the lists would have done."""
    lists = {"block": BLOCK, "block_recipients": ["closed-mailboxes"], "skip_scan": ["allowed-networks"]}
    hello = "LHLO" if protocol == "lmtp" else "EHLO"
    cases = [
        ("bad@sender.example", "b@example.org", "", "reject", "blocked-senders"),
        ("unwanted@sender.example", "b@tenant.example", "", "reject", "blocked-senders"),
        ("good@sender.example", "gone@example.org", "", "reject", "closed-mailboxes"),
        ("good@sender.example", "b@example.org", "203.0.113.1", "relay", "allowed-networks"),
        ("good@sender.example", "b@example.org", "", "relay", None),
    ]
    with door(tmp_path, service, lists, mode="shadow", protocol=protocol) as bridge, mail_lines() as lines:
        for sender, recipient, client_address, would, listed in cases:
            with Client(bridge) as client:
                client.say(f"{hello} mx.example")
                if client_address:
                    client.say(f"XFORWARD ADDR={client_address}")
                assert client.say(f"MAIL FROM:<{sender}>").startswith("250")
                assert client.say(f"RCPT TO:<{recipient}>").startswith("250")
                client.say("DATA")
                client.content()
                assert client.read().startswith("250")
            assert (lines[-1]["action"], lines[-1]["would"], lines[-1].get("list")) == ("relay", would, listed)
        assert len(bridge.scanner.submissions) == len(bridge.next_hop.mails) == len(cases)
        for name, action, count in (
            ("blocked-senders", "shadow_refused", 2),
            ("allowed-networks", "shadow_skipped", 1),
        ):
            assert counted(bridge, "list_matches_total", listener="test", list=name, action=action) == count


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_a_name_without_a_dot_missed_a_list_of_recipients(service, tmp_path, protocol):
    """Many mail servers complete it, and delivered to the blocked address; a domain of a tenant is not completed."""
    tenants = [{"uid": TENANT, "recipient_domains": ["intranet", "[192.0.2.9]"]}]
    with (
        door(
            tmp_path, service, {"block_recipients": ["closed-mailboxes"]}, {"tenants": tenants}, protocol=protocol
        ) as bridge,
        Client(bridge) as client,
    ):
        client.say("LHLO mx.example" if protocol == "lmtp" else "EHLO mx.example")
        client.say("MAIL FROM:<good@sender.example>")
        for recipient in ("gone@example", "a@closed", "A@Closed.", '"a b"@closed'):
            assert client.say(f"RCPT TO:<{recipient}>").startswith("553 5.1.3 ")
        for recipient in ("a@intranet", "a@[192.0.2.9]"):
            assert client.say(f"RCPT TO:<{recipient}>").startswith("250 ")
        client.say("RSET")
        client.say("MAIL FROM:<good@sender.example>")
        for recipient in ("postmaster", "a@other.example"):
            assert client.say(f"RCPT TO:<{recipient}>").startswith("250 ")


def test_lmtp_refuses_as_smtp_does(service, tmp_path):
    """At RCPT, with the same replies."""
    lists = {"block": BLOCK, "block_recipients": ["closed-mailboxes"]}
    with door(tmp_path, service, lists, protocol="lmtp") as bridge, Client(bridge) as client:
        client.say("LHLO mx.example")
        client.say("MAIL FROM:<bad@sender.example>")
        assert REFUSED.fullmatch(client.say("RCPT TO:<b@example.org>"))
        client.say("RSET")
        assert client.say("MAIL FROM:<good@sender.example>").startswith("250")
        assert REFUSED.fullmatch(client.say("RCPT TO:<gone@example.org>"))
        assert client.say("RCPT TO:<b@example.org>").startswith("250")


def test_a_shadow_share_gets_the_same_answer_at_every_step(service, tmp_path):
    """A mail in the shadow share passes MAIL, RCPT and the final check, and the share is about right."""
    lists = {"block": ["blocked-senders"], "block_recipients": ["closed-mailboxes"]}
    with door(tmp_path, service, lists, shadow_percent=50) as bridge, mail_lines() as lines:
        replies = [offer(bridge, "bad@sender.example", "gone@example.org") for _ in range(40)]
        passed = [reply for reply in replies if reply.startswith("250")]
        assert all(REFUSED.fullmatch(reply) for reply in replies if reply not in passed)
        assert 5 <= len(passed) <= 35
        assert {line.get("at") for line in lines} == {"rcpt", None}


def test_a_client_named_in_the_mail_is_checked_after_the_final_dot(tmp_path, service):
    """With client_header, the client is not known before the content has arrived."""
    lists = {"block": BLOCK, "skip_scan": ["allowed-networks"], "block_recipients": ["closed-mailboxes"]}
    with door(tmp_path, service, lists, client_header="X-Client") as bridge, mail_lines() as lines:
        assert REFUSED.fullmatch(send(bridge, b"X-Client: ADDR=192.0.2.77\r\n" + MAIL))
        assert REFUSED.fullmatch(send(bridge, b"X-Client: ADDR=198.51.100.8\r\n" + MAIL, sender="bad@sender.example"))
        to_tenant = {"sender": "unwanted@sender.example", "recipients": ("a@tenant.example",)}
        assert REFUSED.fullmatch(send(bridge, b"X-Client: ADDR=198.51.100.8\r\n" + MAIL, **to_tenant))
        assert REFUSED.fullmatch(send(bridge, MAIL, recipients=("gone@example.org",)))
        assert not bridge.scanner.submissions
        assert send(bridge, b"X-Client: ADDR=203.0.113.9\r\n" + MAIL).startswith("250")
        assert not bridge.scanner.submissions
        assert send(bridge, MAIL).startswith("250")  # 127.0.0.0/8 is allowed, but that is the mail server
        assert len(bridge.scanner.submissions) == 1
    assert [(line.get("at"), line.get("list"), line["action"]) for line in lines] == [
        (None, "blocked-networks", "reject"),
        (None, "blocked-senders", "reject"),
        (None, "blocked-senders", "reject"),
        ("rcpt", "closed-mailboxes", "reject"),
        (None, "allowed-networks", "relay"),
        (None, None, "relay"),
    ]


def test_an_allowed_client_named_in_the_mail_can_win(tmp_path, service):
    """With `allow_wins`, a blocked sender is not refused before the client is known."""
    lists = {"block": ["blocked-senders"], "skip_scan": ["allowed-networks"], "allow_wins": True}
    with door(tmp_path, service, lists, client_header="X-Client") as bridge:
        bad = {"sender": "bad@sender.example"}
        assert send(bridge, b"X-Client: ADDR=203.0.113.9\r\n" + MAIL, **bad).startswith("250")
        assert REFUSED.fullmatch(send(bridge, b"X-Client: ADDR=198.51.100.8\r\n" + MAIL, **bad))


@pytest.mark.parametrize("header", [None, "X-Client"])
def test_a_personal_entry_weakens_no_list_of_the_operator(tmp_path, service, header):
    """Neither the deployment's block lists nor the tenant's; and an allow list lets nobody past a personal block."""
    config = {"personal_lists": {"allow_by": "users"}, "late_decisions": {"store": "off"}}
    lists = {"block": BLOCK, "skip_scan": ["allowed-networks"]}
    given = {} if header is None else {"client_header": header}
    with door(tmp_path, service, lists, config, **given) as bridge:
        personal = Personal(bridge)
        personal.add_all(
            [
                ("b@example.org", "allow", "bad@sender.example"),
                ("a@tenant.example", "allow", "unwanted@sender.example"),
                ("b@example.org", "block", "pest@sender.example"),
            ]
        )
        bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=["auth:spf-pass"]))
        for sender, recipient in (
            ("bad@sender.example", "b@example.org"),
            ("unwanted@sender.example", "a@tenant.example"),
        ):
            assert REFUSED.fullmatch(send_to(bridge, header, "198.51.100.8", sender, recipient))
        assert not bridge.scanner.submissions and not bridge.quarantined
        assert send_to(bridge, header, "203.0.113.9", "pest@sender.example", "b@example.org").startswith("250")
        assert not bridge.next_hop.mails and len(bridge.quarantined) == 1
        personal.remove_all()


def send_to(bridge, header: str | None, client_address: str, sender: str, recipient: str) -> str:
    """Send a mail of this client, who is named in the mail or before it; returns the last reply."""
    with Client(bridge) as client:
        forwarded(client, client_address) if header is None else client.say("EHLO mx.example")
        for command in (f"MAIL FROM:<{sender}>", f"RCPT TO:<{recipient}>", "DATA"):
            reply = client.say(command)
            if reply[0] not in "23":
                return reply
        client.content((f"{header}: ADDR={client_address}\r\n".encode() if header else b"") + MAIL)
        return client.read()
