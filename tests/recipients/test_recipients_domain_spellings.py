"""One domain has many spellings: each gets the same tenant, policy, lists and next hop, and is sent on as it came.

`v@victim.test.` and the `xn--` form of an international domain once missed all four.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.quarantine.sender_lists import entry_of
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.errors import ConfigError
from bridge.intake.milter.mail import Limits, Mail
from bridge.intake.one_tenant import RecipientGroups
from bridge.mail.address import KnownDomains, comparable_domain, domain_of, has_certain_domain
from bridge.mail.message import Spool
from bridge.matching import match, table
from bridge.matching.table import Table, TableMaker
from bridge.observe.redaction import Redaction
from bridge.quarantine.index_search import Query
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.runtime import yaml_file
from bridge.service.analysis import headers
from bridge.service.analysis.dmarc import dmarc, find_record
from bridge.service.lists.index import ListIndex, traits_of
from bridge.service.settings import ListDefinition
from bridge.testing import (
    Background,
    NextHop,
    RunningBridge,
    SmtpClient,
    answer,
    free_port,
    result,
    running_bridge,
)
from tests.intake.milter.milter_kit import Mta, ScriptedFilter
from tests.long_cases import few
from tests.quarantine.quarantine_kit import HEAD, make_tx

ONE, TWO = "123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174001"

DOMAINS: dict[str, list[str]] = {
    "victim.test": [
        "victim.test",
        "VICTIM.Test",
        "victim.test.",
        "victim.test..",
        "victim\u3002test",
        "\uff56\uff49ctim.test\uff61",
        "vic\u00adtim.test",
        "vic\u200dtim.test",
    ],
    "xn--bcher-kva.test": [
        "b\u00fccher.test",
        "B\u00dcCHER.test.",
        "bu\u0308cher.test",
        "xn--bcher-kva.test",
        "XN--BCHER-KVA.TEST.",
        "\uff42\u00fcch\uff25r\uff0etest",
    ],
    "xn--strae-oqa.test": ["stra\u00dfe.test", "STRA\u1e9eE.test", "xn--strae-oqa.test."],
    "[2001:db8::1]": ["[IPv6:2001:db8::1]", "[IPv6:2001:DB8:0:0:0:0:0:1]", "[ipv6:2001:db8:0::0001]"],
}
OTHERS = ["victim.test.evil.test", "xvictim.test", "strasse.test", "bucher.test", "[IPv6:2001:db8::2]", "victim-test"]
PAIRS = [(configured, written) for group in DOMAINS.values() for configured in group for written in group]
DIFFERENT = [(group[0], written) for group in DOMAINS.values() for written in OTHERS]


def in_filter(configured: str, written: str) -> bool:
    conf = config(tenants=[{"uid": ONE, "recipient_domains": [configured]}])
    return wiring.tenants_by_domain(conf).get(domain_of(f"v@{written}")) == ONE


def at_smtp(configured: str, written: str) -> bool:
    """Which recipients may share a mail, by tenant and next hop."""
    hop = {"next_hop": "smtp://127.0.0.1:26"}
    conf = config(tenants=[{"uid": ONE, "recipient_domains": [configured], "relay": hop}])
    return wiring.smtp_settings(conf, conf.listeners[0]).groups.of(f"v@{written}") == (ONE, 1)


def by_route(configured: str, written: str) -> bool:
    hop = {"next_hop": "smtp://127.0.0.1:26"}
    relay = {"next_hop": "smtp://127.0.0.1:25", "routes": [{"recipient_domains": [configured], **hop}]}
    return domain_of(f"v@{written}") in wiring.hops_by_domain(config(relay=relay))


def at_milter(configured: str, written: str) -> bool:
    conf = config(tenants=[{"uid": ONE, "recipient_domains": [configured]}])
    mail = Mail("a@example.org", (), Spool(1000), Limits(1000, 10, b"x-scan-", wiring.tenant_groups(conf)))
    return not any(mail.add_recipient(f"<v@{domain}>\0".encode()) for domain in (configured, written))


def on_a_local_list(configured: str, written: str) -> bool:
    maker = TableMaker("sender")
    maker.add(f"v@{configured}")
    about, body = maker.finish("senders", None)
    place = Path(_directory.name) / "table"
    place.write_bytes(table.head(about) + b"".join(body))
    return match.find_address("sender", Table.open(place), match.address(f"V@{written}")) is not None


def on_a_list_of_the_service(configured: str, written: str) -> bool:
    from bridge.matching import spelling

    index = ListIndex([ListDefinition(name="senders", category="sender")], frozenset())
    index.add("", "senders", spelling.normalise("sender", f"v@{configured}"))
    return bool(index.match(None, traits_of(f'"v"@{written}', (), None, (), ())))


def in_a_reply_to(configured: str, written: str) -> bool:
    found = headers.check([("from", f"a@{configured}"), ("reply-to", f"b@{written}")])
    return "header:reply-to-differs" not in found


def in_a_hash(configured: str, written: str) -> bool:
    redaction = Redaction("hashed", b"key")
    return redaction.address(f"v@{configured}") == redaction.address(f"V@{written}")


CONSUMERS: list[Callable[[str, str], bool]] = [
    in_filter, at_smtp, by_route, at_milter, on_a_local_list, on_a_list_of_the_service, in_a_reply_to, in_a_hash,
]  # fmt: skip


def config(**sections: Any) -> Config:
    data = {
        "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:2500"}],
        "relay": {"next_hop": "smtp://127.0.0.1:25"},
        **sections,
    }
    return yaml_file.load(Path("bridge.yml"), Config, yaml_file.dump(data))


class _directory:
    name = ""


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path) -> None:
    _directory.name = str(tmp_path)


@pytest.mark.parametrize("same", CONSUMERS, ids=lambda same: same.__name__)
def test_every_spelling_is_the_same_domain_everywhere(same: Callable[[str, str], bool]) -> None:
    """Whichever spelling is in the configuration, and whichever in the mail."""
    assert [pair for pair in PAIRS if not same(*pair)] == []


@pytest.mark.parametrize("same", CONSUMERS, ids=lambda same: same.__name__)
def test_another_domain_stays_another(same: Callable[[str, str], bool]) -> None:
    assert [pair for pair in DIFFERENT if same(*pair)] == []


@pytest.mark.parametrize("written", DOMAINS["xn--bcher-kva.test"])
def test_alignment_ignores_the_spelling_of_a_signature(written: str) -> None:
    """DMARC compares the author's domain with the signer's in one spelling."""
    records = {"_dmarc.xn--bcher-kva.test": ["v=DMARC1; p=reject; adkim=s"]}
    record = find_record("xn--bcher-kva.test", lambda name: records.get(name, []))
    assert dmarc("xn--bcher-kva.test", {"adkim": [written]}, record) == "pass"


@pytest.mark.parametrize("sender", ["v@sub.B\u00dcCHER.test.", "v@-odd-.b\u00fccher.test", "v@a..xn--bcher-kva.test"])
def test_a_subdomain_that_no_list_could_contain_is_found_by_its_parent(sender: str) -> None:
    """It matched nothing, so a blocked domain could send from an odd name below it."""
    assert match.find_address("domain", {"xn--bcher-kva.test"}, match.address(sender)) == "xn--bcher-kva.test"


@pytest.mark.parametrize("written", few(DOMAINS["victim.test"], 2) + few(DOMAINS["xn--bcher-kva.test"], 2))
def test_a_search_in_the_quarantine_finds_every_spelling(tmp_path: Path, written: str) -> None:
    quarantine = Quarantine(QuarantineSettings(tmp_path / "q", None, None, {domain_of(f"v@{written}"): "t"}, None))
    tx = make_tx(sender=f"s@{written}", recipients=(f"v@{written}",))
    asyncio.run(quarantine.keep(tx, HEAD, {}))
    group = next(group for group in DOMAINS.values() if written in group)
    for wanted in (*group, *(f"*@{domain}" for domain in group)):
        assert [mail.id for mail in quarantine.search(Query(recipient=wanted))] == [tx.id], wanted
        assert [mail.id for mail in quarantine.search(Query(sender=wanted))] == [tx.id], wanted
    (mail,) = quarantine.search(Query(recipient=f"v@{written}"))
    assert mail.tenant == "t" and mail.envelope.addresses == (f"v@{written}",)
    assert entry_of(mail, "domain", whole_domain=True) == domain_of(f"v@{written}")


def test_the_domain_shown_in_the_log_is_never_part_of_a_local_part() -> None:
    """`"name@secret"` has no domain: with `log.addresses: domain`, half of it was shown."""
    assert Redaction("domain").address('"name@secret"') == "*"
    assert Redaction("domain").address('"name@secret"@example.org') == "*@example.org"


SAME = ("B\u00fccher.test", "xn--bcher-kva.test.")


@pytest.mark.parametrize(
    "sections",
    [
        {"tenants": [{"uid": ONE, "recipient_domains": [SAME[0]]}, {"uid": TWO, "recipient_domains": [SAME[1]]}]},
        {"tenants": [{"uid": ONE, "recipient_domains": [*SAME]}]},
        {
            "relay": {
                "next_hop": "smtp://127.0.0.1:25",
                "routes": [{"recipient_domains": [name], "next_hop": "smtp://127.0.0.1:26"} for name in SAME],
            }
        },
    ],
)
def test_two_spellings_of_one_domain_are_refused_by_name(sections: dict[str, Any]) -> None:
    """Otherwise the last one would win, silently."""
    with pytest.raises(ConfigError, match=rf"{SAME[0]} and {SAME[1]} are the same domain") as caught:
        config(**sections)
    assert "recipient_domains" not in str(caught.value) or "two" in str(caught.value)


@pytest.mark.parametrize("domain", [".", "\u3002", "\u00ad"])
def test_a_domain_without_a_name_is_refused(domain: str) -> None:
    """It would be the domain of every address without one."""
    with pytest.raises(ConfigError, match=r"example\.org"):
        config(tenants=[{"uid": ONE, "recipient_domains": [domain]}])


# --- with real listeners ---------------------------------------------------------------------------


@dataclass
class Place:
    """One daemon with a listener of each protocol, and a tenant with its own next hop and policy."""

    bridge: RunningBridge
    own_hop: NextHop
    ports: dict[str, int]

    def last_tenant(self) -> str:
        return str(self.bridge.scanner.submissions[-1].parameters.get("tenantUid"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    background, hop = Background(), NextHop()
    background.run(hop.start())
    ports = {protocol: free_port() for protocol in ("smtp", "lmtp", "milter")}
    domains = ["Victim.test", "B\u00fccher.test", "[IPv6:2001:DB8::1]"]
    own = {"uid": ONE, "recipient_domains": domains, "policy": {"bounce": "discard"}, "relay": {"next_hop": hop.url}}
    given = {
        "listeners": [{"name": name, "protocol": name, "address": f"127.0.0.1:{port}"} for name, port in ports.items()],
        "tenants": [own],
    }
    with running_bridge(tmp_path_factory.mktemp("spellings"), given) as bridge:
        yield Place(bridge, hop, ports)
    background.run(hop.stop())
    background.close()


WRITTEN = [
    written
    for name in ("victim.test", "xn--bcher-kva.test", "[2001:db8::1]")
    for written in DOMAINS[name]
]  # fmt: skip


def over_smtp(place: Place, protocol: str, recipient: bytes) -> bytes:
    with SmtpClient(place.ports[protocol]) as client:
        client.open(b"LHLO client.example" if protocol == "lmtp" else b"EHLO client.example")
        said = client.say(b"MAIL FROM:<a@client.example> SMTPUTF8", b"RCPT TO:<%b>" % recipient, b"DATA")
        assert [reply[:3] for reply in said] == [b"250", b"250", b"354"], said
        return client.say(b"Subject: x\r\n\r\nx\r\n.")[0]


async def over_milter(place: Place, recipient: bytes) -> str:
    reader, writer = await asyncio.open_connection(sock=socket.create_connection(("127.0.0.1", place.ports["milter"])))
    mta = Mta(reader, writer)
    await mta.greet()
    await mta.mail(rcpt=b"<%b>" % recipient)
    mta.content()
    answers = await mta.until_final()
    writer.close()
    return answers[-1][0]


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
@pytest.mark.parametrize("written", WRITTEN, ids=ascii)
def test_a_mail_finds_its_tenant_policy_and_next_hop(place: Place, protocol: str, written: str) -> None:
    """And the next hop reads the recipient exactly as the client wrote it."""
    recipient = f"v@{written}".encode()
    place.bridge.scanner.reply = answer(200, result("deliver"))
    assert over_smtp(place, protocol, recipient).startswith(b"250 2.0.0 Ok")
    assert place.last_tenant() == ONE
    assert place.own_hop.mails[-1].recipients == [recipient]
    place.bridge.scanner.reply = answer(200, result("bounce"))
    assert over_smtp(place, protocol, recipient).startswith(b"250"), "the tenant's policy discards it"


@pytest.mark.parametrize("written", [*WRITTEN, "victim.test(a comment)", "victim . test", "(v@other.test)victim.test"])
def test_a_milter_finds_the_tenant_and_its_policy(place: Place, written: str) -> None:
    """A mail server may pass an address as its client wrote it, comments and all."""
    place.bridge.scanner.reply = answer(200, result("bounce"))
    assert asyncio.run(over_milter(place, f"v@{written}".encode())) == "d", "the tenant's policy discards it"
    assert place.last_tenant() == ONE


def test_another_domain_has_none_of_it(place: Place) -> None:
    place.bridge.scanner.reply = answer(200, result("bounce"))
    assert over_smtp(place, "smtp", b"v@other.test").startswith(b"55")
    assert asyncio.run(over_milter(place, b"postmaster")) in "ry"  # a local part without a domain
    assert place.last_tenant() == "None"


CERTAIN = [
    "v@victim.test",
    "V.w+tag@VICTIM.test.",
    "SRS0=a1=b2=other.test=v@victim.test",
    "prvs=1234=v@victim.test",
    '"john doe"@victim.test',
    "(c)v@victim.test (x@y)",
    "jos\u00e9@b\u00fccher.test",
    "v@[IPv6:2001:db8::1]",
    "postmaster",
    "PostMaster",
    "postmaster@[127.0.0.1]",
]
UNCERTAIN = [
    "v",
    "v%victim.test",
    "victim.test!v",
    "v%victim.test@front.test",
    "victim.test!v@front.test",
    "v%victim.test@[127.0.0.1]",
    "v@[127.0.0.1]",
    '"v@victim.test"',
    '"v%victim.test"',
    '"v@victim.test"@',
    '"v@victim.test"@front.test',
    '"v\\@victim.test"@front.test',
    "v\\@victim.test",
    "v\\@victim.test@front.test",
    "@victim.test:v@front.test",
    "(c)@victim.test:v@front.test",
    "Name: v@victim.test;",
    "v@victim.test>x",
    "v@victim.test,w@front.test",
    "v@victim.test@",
    "v@",
    "postmaster%victim.test",
    "",
]


@pytest.mark.parametrize("address", CERTAIN + UNCERTAIN)
def test_the_domain_of_a_recipient_is_certain_or_not(address: str) -> None:
    """Mail servers read a second address out of some local parts; ordinary mail has none of these."""
    assert has_certain_domain(address, KnownDomains(["[2001:db8::1]"])) is (address in CERTAIN)


KNOWN = KnownDomains(("strasse.test", comparable_domain("\u03bf\u03b4\u03bf\u03c3.test"), "host.internal", "local"))
ANOTHER = [
    "v@stra\u00dfe.test",
    "v@STRA\u1e9eE.test",
    "v@\uff33tra\u00dfe.test.",
    '"john doe"@stra\u00dfe.test',
    "v@\u03bf\u03b4\u03bf\u03c2.test",
    "v@strasse",
    "v@STRASSE.",
    "v@stra\u00dfe",
    "v@host",
    '"john doe"@host',
]
NOT_ANOTHER = [
    "v@strasse.test",
    "v@STRASSE.test.",
    "v@mail.stra\u00dfe.test",
    "v@stra\u00dfe.example",
    "v@xn--strae-oqa.test",
    "v@local",
    "v@localhost",
    "v@stra",
    "v@\u03bf\u03b4\u03bf\u03c3.test",
    "v@b\u00fccher.test",
]


@pytest.mark.parametrize("address", ANOTHER + NOT_ANOTHER)
def test_a_domain_that_the_mail_server_reads_as_another_one_got_no_tenant(address: str) -> None:
    """Postfix folds case as Unicode defines it, and completes names without a dot; the tenant was the default one."""
    assert has_certain_domain(address, KNOWN) is (address in NOT_ANOTHER)
    own = KnownDomains((*KNOWN, domain_of(address)))
    assert has_certain_domain(address, own), "a domain of one's own is certain"
    assert has_certain_domain(address), "where no domain is known, it is no other one"


@pytest.mark.parametrize("address", ["v@mail", "V@Mail.", '"john doe"@mail', "v@stra\u00dfe", "v"])
def test_a_name_that_a_list_may_be_about_was_certain(address: str) -> None:
    """The domains in lists are not known, so a mail server may complete any name to one of them."""
    assert not has_certain_domain(address, KNOWN, are_all=False)
    assert has_certain_domain(address, KnownDomains((*KNOWN, domain_of(address))), are_all=False) is ("@" in address)
    for known in ("v@local", "v@mail.test", "v@mail.test.", "postmaster", '"john doe"@b\u00fccher.test'):
        assert has_certain_domain(known, KNOWN, are_all=False)


class Counted(KnownDomains):
    """Counts how often all of them are looked at."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()


def test_names_without_a_dot_are_not_compared_with_each_domain() -> None:
    """With 50,000 domains, that took 20 ms for each recipient."""
    known = Counted(KNOWN)
    assert not any(has_certain_domain(address, known) for address in ANOTHER)
    assert all(has_certain_domain(f"v@unknown{number}", known) for number in range(100))
    assert known.times == 1


SPELLINGS = [
    b"v",
    b"v%victim.test",
    b"victim.test!v",
    b"v%victim.test@front.test",
    b'"v@victim.test"',
    b"v@[127.0.0.1]",
]


def _replies(port: int, greeting: bytes = b"EHLO x") -> dict[bytes, bytes]:
    with SmtpClient(port) as client:
        client.open(greeting)
        client.say(b"MAIL FROM:<a@example.org>")
        recipients = (*SPELLINGS, b"postmaster")
        return {recipient: client.say(b"RCPT TO:<%b>" % recipient)[0] for recipient in recipients}


WAYS: dict[str, dict[str, Any]] = {
    "tenant": {"tenants": [{"uid": ONE, "recipient_domains": ["victim.test"]}]},
    "route": {
        "relay": {
            "next_hop": "smtp://127.0.0.1:26",
            "routes": [{"recipient_domains": ["victim.test"], "next_hop": "smtp://127.0.0.1:27"}],
        }
    },
}


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
@pytest.mark.parametrize("way", WAYS)
def test_a_sender_chose_the_tenant_by_the_spelling_of_the_recipient(tmp_path: Path, way: str, protocol: str) -> None:
    """The mail server behind us delivers `v%victim.test` to v@victim.test; we saw no domain, and took the defaults."""
    with running_bridge(tmp_path, WAYS[way], protocol=protocol) as bridge:
        replies = _replies(bridge.port, b"LHLO x" if protocol == "lmtp" else b"EHLO x")
    assert replies.pop(b"postmaster").startswith(b"250 ")
    assert all(reply.startswith(b"553 5.1.3 ") for reply in replies.values()), replies


@pytest.mark.parametrize("more", [{}, {"mode": "shadow"}])
def test_where_nothing_depends_on_the_domain_every_spelling_is_accepted(tmp_path: Path, more: dict[str, Any]) -> None:
    """`%` and `!` are legal in a local part; and shadow mode refuses nothing."""
    with running_bridge(tmp_path, WAYS["tenant"] if more else {}, **more) as bridge:
        replies = _replies(bridge.port)
    assert not any(reply.startswith(b"5") for reply in replies.values()), replies


def test_a_sender_chose_the_tenant_by_the_spelling_of_the_recipient_over_milter() -> None:
    """The mail server passes on what its client wrote."""
    groups = RecipientGroups({"victim.test": (ONE, 0)})
    may_be_another = partial(ScriptedFilter().early.may_be_another, known=groups.known)
    limits = Limits(1000, 10, b"x-scan-", groups, may_be_another=may_be_another)
    for address in UNCERTAIN:
        mail = Mail("a@example.org", (), Spool(1000), limits)
        refusal = mail.add_recipient(f"<{address}>\0".encode())
        assert refusal is not None and refusal.code == 553, address
    assert Mail("a@example.org", (), Spool(1000), limits).add_recipient(b"<postmaster>\0") is None
