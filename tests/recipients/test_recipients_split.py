"""Recipients of several tenants and of several next hops in one mail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.config.model import Config
from bridge.mail.message import Message, Spool
from bridge.quarantine.release_token import ReleaseTokens
from bridge.runtime import yaml_file
from bridge.testing import NextHop, answer, configuration, result, running_bridge
from tests.filter.smtp_kit import Gate, counted, mail_lines, until
from tests.recipients.recipients_kit import CONTENT, ONE, TWO, arrived, bridge_before, converse, decide, next_hop, send

TENANTS: list[dict[str, Any]] = [
    {"uid": ONE, "recipient_domains": ["one.example"]},
    {"uid": TWO, "recipient_domains": ["two.example"], "policy": {"bounce": "quarantine"}},
]
PEOPLE = ("b@one.example", "c@two.example", "d@ONE.example", "e@example.org")
EACH = pytest.mark.parametrize("protocol", ["lmtp", "prdr"])


@pytest.fixture
def hop() -> Iterator[NextHop]:
    with next_hop() as running:
        yield running


def own(protocol: str, replies: list[bytes]) -> list[bytes]:
    return replies if protocol == "lmtp" else replies[1:-1]


@EACH
def test_each_tenant_has_its_own_scan(tmp_path: Path, hop: NextHop, protocol: str) -> None:
    """The same bytes, but its own recipients, tenantUid and log line; the replies are in order."""
    with mail_lines() as lines, bridge_before(hop, tmp_path, protocol, tenants=TENANTS) as bridge:
        replies = own(protocol, send(bridge, protocol, *PEOPLE))
        assert [reply[:3] for reply in replies] == [b"250"] * 4
        sent = {
            submission.parameters.get("tenantUid"): submission.parameters["borderMtaData"]["envelopeRecipients"]
            for submission in bridge.scanner.submissions
        }
        assert sent == {ONE: ["b@one.example", "d@ONE.example"], TWO: ["c@two.example"], None: ["e@example.org"]}
        assert {submission.email for submission in bridge.scanner.submissions} == {CONTENT}
        assert sorted(arrived(hop)) == [["b", "d"], ["c"], ["e"]]
        assert all(mail.content.endswith(CONTENT) for mail in hop.mails)
        assert len({line["id"] for line in lines}) == 3
        assert {line.get("tenant") for line in lines} == {ONE, TWO, None}
        assert sum(line["nrcpt"] for line in lines) == 4
        assert counted(bridge, "in_processing") == counted(bridge, "bytes_in_processing") == 0


@EACH
def test_each_tenant_has_its_own_decision_and_policy(tmp_path: Path, hop: NextHop, protocol: str) -> None:
    """One is refused, one quarantined, the rest delivered, all in one transaction."""
    with bridge_before(hop, tmp_path, protocol, tenants=TENANTS) as bridge:
        decide(bridge, b="bounce", c="bounce")
        replies = own(protocol, send(bridge, protocol, *PEOPLE))
        assert [reply[:9] for reply in replies] == [b"550 5.7.1", b"250 2.0.0", b"550 5.7.1", b"250 2.0.0"]
        assert replies[0] == replies[2]
        assert arrived(hop) == [["e"]]
        (kept,) = bridge.quarantined
        assert replies[1] == f"250 2.0.0 Ok: queued as {kept.stem}".encode()
        assert kept.read_bytes().endswith(CONTENT)


@EACH
def test_a_refused_mail_was_kept_for_the_first_tenant_with_the_recipients_of_the_others(
    tmp_path: Path, protocol: str
) -> None:
    """After a queue: its first line continues the field that names the client. The first tenant could release it."""
    kind = "lmtp" if protocol == "lmtp" else "smtp"
    with running_bridge(
        tmp_path, {"tenants": TENANTS}, protocol=kind, profile="exim-queue", client_header="X-Client"
    ) as bridge:
        content = b"X-Client: ADDR=192.0.2.7\r\n HELO=x\r\n" + CONTENT
        replies = own(protocol, send(bridge, protocol, *PEOPLE, content=content))
        assert [reply[:3] for reply in replies] == [b"250"] * 4
        records = [json.loads(kept.with_suffix(".json").read_bytes()) for kept in bridge.quarantined]
        assert {record["tenant"]: record["recipients"] for record in records} == {
            ONE: ["b@one.example", "d@ONE.example"],
            TWO: ["c@two.example"],
            None: ["e@example.org"],
        }
        assert all(kept.read_bytes() == content for kept in bridge.quarantined)
        assert counted(bridge, "bytes_in_processing") == 0


def test_forged_fields_are_removed_from_every_part(tmp_path: Path, hop: NextHop) -> None:
    content = b"X-Scan-Decision: deliver\r\n" + CONTENT
    with bridge_before(hop, tmp_path, "lmtp", tenants=TENANTS) as bridge:
        send(bridge, "lmtp", *PEOPLE, content=content)
        assert {submission.email for submission in bridge.scanner.submissions} == {CONTENT}
        assert all(mail.content.count(b"X-Scan-Decision") == 1 for mail in hop.mails)


def test_each_part_takes_a_slot_or_is_deferred(tmp_path: Path, hop: NextHop) -> None:
    """The limit applies to scans, not transactions; the other parts of the mail are processed."""
    config = {"tenants": TENANTS, "admission": {"max_in_processing": 2, "throttle_threshold": 2}}
    with bridge_before(hop, tmp_path, "lmtp", **config) as bridge:
        gate = Gate(bridge, answer(200, result()))
        with bridge.client() as client:
            client.open(b"LHLO x")
            client.say(b"MAIL FROM:<>", *(b"RCPT TO:<%b>" % person.encode() for person in PEOPLE), b"DATA")
            client.send(CONTENT + b".\r\n")
            gate.arrived()
            gate.arrived()
            assert counted(bridge, "in_processing") == 2
            gate.open()
            replies = [client.reply() for _ in PEOPLE]
        assert [reply[:9] for reply in replies] == [b"250 2.0.0", b"250 2.0.0", b"250 2.0.0", b"451 4.3.2"]
        assert bridge.scanner.max_in_flight == 2
        assert counted(bridge, "in_processing") == counted(bridge, "bytes_in_processing") == 0


def test_one_mail_for_many_tenants_leaves_slots_for_others(tmp_path: Path, hop: NextHop) -> None:
    """At most four of its scans run at the same time, and all are completed."""
    uids = [f"123e4567-e89b-12d3-a456-4266141740{number:02}" for number in range(10)]
    tenants = [{"uid": uid, "recipient_domains": [f"t{number}.example"]} for number, uid in enumerate(uids)]
    with bridge_before(hop, tmp_path, "lmtp", tenants=tenants) as bridge:

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.01)
            writer.write(answer(200, result()))

        bridge.scanner.reply = slow
        replies = send(bridge, "lmtp", *(f"b@t{number}.example" for number in range(10)))
        assert [reply[:3] for reply in replies] == [b"250"] * 10
        assert bridge.scanner.max_in_flight == 4


def test_a_client_that_goes_away_ends_all_scans(tmp_path: Path, hop: NextHop) -> None:
    with mail_lines() as lines, bridge_before(hop, tmp_path, "lmtp", tenants=TENANTS) as bridge:
        gate = Gate(bridge, answer(200, result()))
        with bridge.client() as client:
            client.open(b"LHLO x")
            client.say(b"MAIL FROM:<>", *(b"RCPT TO:<%b>" % person.encode() for person in PEOPLE), b"DATA")
            client.send(CONTENT + b".\r\n")
            for _ in range(3):
                gate.arrived()
        until(lambda: len(lines) == 3, "three log lines")
        assert [line["action"] for line in lines] == ["cancelled"] * 3
        until(lambda: counted(bridge, "in_processing") == counted(bridge, "bytes_in_processing") == 0, "the end of all")
        gate.open()
        assert hop.mails == []


def test_one_tenants_late_scan_defers_only_its_recipients(tmp_path: Path, hop: NextHop) -> None:
    """Its recipients read 451, the others get the mail; the retry gets the stored decision."""
    config = {"tenants": TENANTS, "late_decisions": {"store": "memory"}}
    config["relay"] = {"next_hop": hop.url}
    with running_bridge(tmp_path, config, protocol="lmtp", deadline="4s") as bridge:
        late = asyncio.Event()

        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if bridge.scanner.submissions[-1].parameters.get("tenantUid") == TWO:
                await late.wait()
            writer.write(answer(200, result()))

        bridge.scanner.reply = reply
        replies = send(bridge, "lmtp", "b@one.example", "c@two.example")
        assert [reply[:9] for reply in replies] == [b"250 2.0.0", b"451 4.4.7"]
        bridge.background.loop.call_soon_threadsafe(late.set)
        until(lambda: counted(bridge, "late_scans_total", end="kept"), "the late decision")
        assert send(bridge, "lmtp", "c@two.example")[0].startswith(b"250")
        assert (len(bridge.scanner.submissions), arrived(hop)) == (2, [["b"], ["c"]])


def test_the_default_tenant_and_an_entry_with_its_uid_are_the_same_tenant(tmp_path: Path) -> None:
    """`scanner.tenant_uid` and an entry of `tenants` with the same uid may share a mail."""
    with running_bridge(tmp_path, {"tenants": TENANTS, "scanner": {"tenant_uid": ONE}}) as bridge:
        assert send(bridge, "smtp", "b@one.example", "e@example.org")[0].startswith(b"250")
        assert arrived(bridge.next_hop) == [["b", "e"]]


# Next hops


def test_plain_smtp_recipients_of_another_next_hop_need_another_transaction(tmp_path: Path, hop: NextHop) -> None:
    with next_hop() as other:
        routes = [{"recipient_domains": ["own.example"], "next_hop": other.url}]
        with bridge_before(hop, tmp_path, "smtp", relay={"routes": routes}) as bridge, bridge.client() as client:
            people = ("b@example.org", "c@own.example", "d@example.com", "e@Own.Example")
            at_rcpt, replies = converse(client, "smtp", *people)
            assert [reply[:9] for reply in at_rcpt] == [b"250 2.1.5", b"452 4.5.3", b"250 2.1.5", b"452 4.5.3"]
            assert replies[0].startswith(b"250")
            assert (arrived(hop), arrived(other)) == ([["b", "d"]], [])
        send_again = ("c@own.example", "e@Own.Example")
        with bridge_before(hop, tmp_path, "smtp", relay={"routes": routes}) as bridge:
            assert send(bridge, "smtp", *send_again)[0].startswith(b"250")
            assert arrived(other) == [["c", "e"]]


def test_two_routes_to_one_next_hop_share_a_transaction(tmp_path: Path, hop: NextHop) -> None:
    """The same holds for a route that names the default next hop."""
    with next_hop() as other:
        routes = [
            {"recipient_domains": ["x.example"], "next_hop": other.url},
            {"recipient_domains": ["y.example"], "next_hop": other.url},
            {"recipient_domains": ["z.example"], "next_hop": hop.url},
        ]
        with bridge_before(hop, tmp_path, "smtp", relay={"routes": routes}) as bridge:
            assert send(bridge, "smtp", "b@x.example", "c@y.example")[0].startswith(b"250")
            assert send(bridge, "smtp", "b@z.example", "c@example.org")[0].startswith(b"250")
            assert (arrived(other), arrived(hop)) == ([["b", "c"]], [["b", "c"]])


@EACH
def test_each_next_hop_replies_for_its_own_recipients(tmp_path: Path, hop: NextHop, protocol: str) -> None:
    """One scan, one delivery to each next hop; a failing one does not affect the other's recipients."""
    with next_hop(DOT=b"452 4.3.1 Full") as other:
        routes = [{"recipient_domains": ["own.example"], "next_hop": other.url}]
        with bridge_before(hop, tmp_path, protocol, relay={"routes": routes}) as bridge:
            replies = own(protocol, send(bridge, protocol, "c@own.example", "b@example.org", "d@own.example"))
            assert replies == [b"452 4.3.1 Full", b"250 2.0.0 Ok: queued as NEXT1", b"452 4.3.1 Full"]
            assert len(bridge.scanner.submissions) == 1
            assert arrived(hop) == [["b"]]


@pytest.mark.parametrize("form", ["next_hop", "next_hops"])
def test_a_tenants_own_next_hop_takes_precedence_over_a_route(tmp_path: Path, hop: NextHop, form: str) -> None:
    with next_hop() as routed, next_hop() as owned:
        tenant = {**TENANTS[0], "relay": {form: owned.url if form == "next_hop" else [owned.url]}}
        routes = [{"recipient_domains": ["one.example", "own.example"], "next_hop": routed.url}]
        with bridge_before(hop, tmp_path, "lmtp", tenants=[tenant], relay={"routes": routes}) as bridge:
            replies = send(bridge, "lmtp", "b@one.example", "c@own.example", "d@example.org")
            assert [reply[:3] for reply in replies] == [b"250"] * 3
            assert (arrived(owned), arrived(routed), arrived(hop)) == ([["b"]], [["c"]], [["d"]])


def test_a_released_mail_for_two_tenants_is_recognised_once_for_each_recipient(tmp_path: Path, hop: NextHop) -> None:
    """Its token is read before it is split; a recipient whom the next hop defers may come again."""
    people = ("b@one.example", "c@two.example")
    hop.replies[b"RCPT <c@two.example>"] = b"450 4.2.2 Full"
    with bridge_before(hop, tmp_path, "lmtp", tenants=TENANTS) as bridge:
        tokens = ReleaseTokens((tmp_path / "state" / "release-key").read_text().strip(), "X-Scan-")
        with closing(Message(Spool(1 << 20))) as mail:
            mail.write(CONTENT)
            released = tokens.field(mail, "a@client.example", people, datetime.now(UTC)) + CONTENT
        replies = [reply[:4] for reply in send(bridge, "lmtp", *people, content=released)]
        assert replies == [b"250 ", b"450 "] and not bridge.scanner.submissions
        hop.replies.clear()
        assert send(bridge, "lmtp", people[1], content=released)[0].startswith(b"250 ")
        assert not bridge.scanner.submissions and len(hop.mails) == 2
        assert all(b"X-Scan-Released" not in mail.content for mail in hop.mails)
        send(bridge, "lmtp", *people, content=released)
        assert len(bridge.scanner.submissions) == 2


def test_a_reload_mixed_the_tenants_of_an_open_transaction(tmp_path: Path) -> None:
    """Recipients that were accepted together under the old configuration were all decided by the first one's tenant."""
    tenants = [
        {"uid": "0b8e4567-e89b-12d3-a456-426614174001", "recipient_domains": ["one.example"]},
        {"uid": "0b8e4567-e89b-12d3-a456-426614174002", "recipient_domains": ["two.example"]},
    ]
    with running_bridge(tmp_path) as bridge, bridge.client() as client:
        client.open()
        client.say(b"MAIL FROM:<a@x.example>", b"RCPT TO:<u@one.example>", b"RCPT TO:<v@two.example>")
        data = configuration(tmp_path, bridge.scanner, bridge.next_hop, {"tenants": tenants})
        data["listeners"][0]["address"] = f"127.0.0.1:{bridge.port}"
        data["admin"]["address"] = f"127.0.0.1:{bridge.admin_port}"
        conf = yaml_file.load(tmp_path / "bridge.yml", Config, yaml_file.dump(data))
        bridge.background.run(bridge.daemon.reload(lambda: conf))
        client.say(b"DATA")
        assert client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"451 4.3.5 ")
        assert not bridge.next_hop.mails and not bridge.scanner.submissions
        assert client.mail().startswith(b"250 ")
