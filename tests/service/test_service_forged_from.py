"""DMARC of mail whose author is hard to make out, or whose lookups get no answer: real service, real DNS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.mime.test_mime_authors import FORGED, HONEST, NAMED
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import Lists, mail, service, wait_for

pytest.importorskip("dns.message", reason="the extra `authentication` is not installed")
dkim = pytest.importorskip("dkim")

from bridge.mime.structure import Bounds  # noqa: E402
from bridge.service.analysis import dns_lookups  # noqa: E402
from bridge.service.analysis.author_domains import MAX_AUTHORS, AuthorDomains, author_domains  # noqa: E402
from bridge.service.analysis.decision import DecisionTable  # noqa: E402
from bridge.service.analysis.dmarc import Proofs, find_record, judge  # noqa: E402
from bridge.service.decision_settings import Decisions  # noqa: E402
from tests.service.zone_kit import PEM, PUBLIC, auth_tags, txt, with_dns, zone_server  # noqa: E402

ZONE = {
    ("_dmarc.bank.example.", "TXT"): ['"v=DMARC1; p=reject; sp=reject"'],
    ("_dmarc.slow.example.", "TXT"): ['"v=DMARC1; p=reject"'],
    ("evil.example.", "TXT"): ['"v=spf1 +all"'],
    ("many.slow.example.", "TXT"): txt(
        f"v=spf1 {' '.join(f'a:a{n}.slow.example' for n in range(9))} ip4:192.0.2.9 -all"
    ),
    **{(f"a{number}.slow.example.", "A"): ["192.0.2.1"] for number in range(9)},
    ("k._domainkey.bank.example.", "TXT"): txt(f"v=DKIM1; p={PUBLIC}"),
    ("sha1._domainkey.bank.example.", "TXT"): txt(f"v=DKIM1; h=sha1; p={PUBLIC}"),
    ("upper._domainkey.bank.example.", "TXT"): txt(f"v=DKIM1; h=SHA256; p={PUBLIC}"),
    ("any._domainkey.bank.example.", "TXT"): txt(f"v=DKIM1; h=*; p={PUBLIC}"),
    ("both._domainkey.bank.example.", "TXT"): txt(f"v=DKIM1; h=sha1 : sha256; p={PUBLIC}"),
}
HELD = {"auth:dmarc-reject", "auth:dmarc-quarantine", "auth:dmarc-temperror", "auth:dmarc-permerror"}


@pytest.fixture(scope="module")
def nameserver():
    with zone_server(ZONE) as port:
        yield port


@pytest.fixture(scope="module")
def running(tmp_path_factory, nameserver):
    with service(tmp_path_factory.mktemp("forged"), with_dns(nameserver)) as running:
        yield running


def _from(value: str, field: str = "From", body: bytes = b"Hello\r\n") -> bytes:
    return f"{field}: {value}\r\n".encode() + mail(body).partition(b"From: ")[2].partition(b"\r\n")[2]


def _submit(running, content: bytes, sender: str = "x@evil.example"):
    return running.submit(content, sender=sender, remoteAddress="192.0.2.9")


@pytest.mark.parametrize("value", [*FORGED, "ceo@bank.example\u200e", "ceo@ba\u200enk.example", "ceo@.bank.example"])
def test_an_author_that_could_not_be_read_had_no_policy(running, value):
    """A forged mail was delivered although the domain that its readers see says `p=reject`."""
    answer = _submit(running, _from(value))
    assert "auth:dmarc-reject" in auth_tags(answer), answer.json
    assert answer.json["decision"] == "quarantine"


@pytest.mark.parametrize("value", NAMED)
def test_an_address_as_a_name_without_quotes_had_no_policy(running, value):
    """Dovecot's clients see bank.example, which says `p=reject`. Some honest programs write such names."""
    answer = _submit(running, _from(value))
    assert "auth:dmarc-permerror" in auth_tags(answer), answer.json
    assert answer.json["decision"] == "quarantine"
    content = _from(value)
    signed = dkim.sign(content, b"k", b"bank.example", PEM) + content
    assert "auth:dmarc-permerror" not in auth_tags(_submit(running, signed))


@pytest.mark.parametrize("required", ["", ", required: true"])
def test_a_mail_whose_author_is_not_clear_is_held(tmp_path, nameserver, required):
    """Even if no domain that we find in it has a policy: a reader may see another. Sending it again would not help."""
    with service(tmp_path, with_dns(nameserver, required)) as running:
        answer = _submit(running, _from('ceo@"shop.example"'))
        assert "auth:dmarc-permerror" in auth_tags(answer), answer.json
        assert answer.json["decision"] == "quarantine"


def test_an_author_in_doubt_never_has_a_mail_returned():
    """The sender may be honest: its points do not count towards a bounce."""
    found = {"auth:dmarc-permerror", "auth:spf-fail", "office:macro", "header:duplicate"}
    assert DecisionTable(Decisions()).decide(found).decision == "quarantine"


@pytest.mark.parametrize("value", HONEST)
def test_odd_and_honest_mail_is_not_held(running, value):
    """From fields of cron jobs, groups, printers and mailing lists."""
    answer = _submit(running, _from(value))
    assert auth_tags(answer).isdisjoint(HELD | {"failed:authentication"}), answer.json


def test_an_honest_author_with_an_invisible_character_passes(running):
    """People paste addresses with direction marks into their mail programs."""
    content = _from("Jane <j@bank.example\u200e>")
    answer = _submit(running, dkim.sign(content, b"k", b"bank.example", PEM) + content)
    assert "auth:dmarc-pass" in auth_tags(answer), answer.json


@pytest.mark.parametrize("head", ["", "From: \r\n"])
def test_without_from_the_sender_field_is_the_author(running, head):
    """Some mail programs show it instead."""
    content = head.encode() + _from("CEO <ceo@bank.example>", "Sender")
    assert "auth:dmarc-reject" in auth_tags(_submit(running, content))


def test_the_sender_field_does_not_matter_if_there_is_an_author(running):
    """Mailing lists write their own address into it."""
    content = b"Sender: list@bank.example\r\n" + _from("j@shop.example")
    assert auth_tags(_submit(running, content)).isdisjoint(HELD)


@pytest.mark.parametrize(
    "value", ['x@"blocked.example"', "X <x@=?utf-8?q?blocked.example?=>", "x@blocked.example\u200e"]
)
def test_block_lists_know_every_domain_that_readers_see(running, value):
    """What we could not read was on no list."""
    Lists(running).add("blocked-domains", "blocked.example")
    wait_for(lambda: "list:blocked-domains" in _submit(running, _from("x@blocked.example")).json["tags"])
    assert "list:blocked-domains" in _submit(running, _from(value)).json["tags"]


PADDING = b"".join(b"X-Padding-%d: %s\r\n" % (i, b"x" * 900) for i in range(300))  # 270 KiB


def test_a_long_header_hid_the_author():
    """It was read with the default limits, and beyond them there was no author, and so no policy."""
    content = b"From: ceo@bank.example\r\n" + PADDING + b"\r\nHello\r\n"
    assert author_domains(content, Bounds()) == AuthorDomains(is_clear=False)
    assert author_domains(content, Bounds(header_bytes=1024 * 1024)).names == {"bank.example"}


@pytest.mark.parametrize(
    "value",
    [
        ", ".join(f"a@{'-.' * 100}x{number}.example" for number in range(1100)),
        ", ".join(f"a@{'-.' * 100}x{number}.example" for number in range(70)),
        ", ".join(f"a@{chr(0xE0) * 3}-.{chr(0x4E00 + number)}-.x" for number in range(900)),
        ", ".join(f"a@x{number}.example" for number in range(900)),
    ],
    ids=["a long field", "many labels", "names that are none", "many domains"],
)
def test_a_field_with_many_authors_kept_a_thread_busy(value):
    """All parents of all hosts were spelled before they were counted: 256 KB took 25 seconds."""
    found: list[AuthorDomains] = []
    content, bounds = _from(value), Bounds(header_bytes=1024 * 1024)
    assert fair_cpu_s(lambda: found.append(author_domains(content, bounds))) < 0.3
    assert found == [AuthorDomains(is_clear=False)]


def test_many_from_fields_kept_a_thread_busy():
    content = b"".join(b"From: a@-.x%d.example\r\n" % number for number in range(900)) + b"\r\n"
    assert author_domains(content, Bounds()) == AuthorDomains(is_clear=False)


@pytest.mark.parametrize("count", [1, 7, 9, 100])
def test_labels_that_are_none_do_not_hide_the_domain(count):
    found = author_domains(_from(f"ceo@{'-.' * count}bank.example"), Bounds())
    assert found == AuthorDomains(frozenset({"bank.example"}), is_clear=False)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (", ".join(f"a{number}@shop.example" for number in range(500)), {"shop.example"}),
        ("Jane <j@a.b.c.d.e.f.g.h.i.j.shop.example>", {"a.b.c.d.e.f.g.h.i.j.shop.example"}),
        (", ".join(f"j@{name}.example" for name in "abcd"), {f"{name}.example" for name in "abcd"}),
        (f"{'Jane ' * 1000}<j@shop.example>", {"shop.example"}),
    ],
    ids=["many of one domain", "many labels", "four domains", "a long name"],
)
def test_long_and_honest_fields_are_clear(value, names):
    assert author_domains(_from(value), Bounds()) == AuthorDomains(frozenset(names))


def test_the_configured_limit_applies_to_authors(tmp_path, nameserver):
    """With `mime.max_header_size: 1MiB`, the author in a header of 270 KiB is read like any other."""
    other = ", mime: {max_header_size: 1MiB}"
    with service(tmp_path, with_dns(nameserver, other=other)) as running:
        answer = _submit(running, b"From: ceo@bank.example\r\n" + PADDING + _from("x", "X-Old-From"))
        assert "auth:dmarc-reject" in auth_tags(answer), answer.json


def _silent(count: int) -> str:
    return ", ".join(f"x@a.b.c.d.e.z{number}.silent.example" for number in range(count))


def test_silent_co_authors_switched_dmarc_off(running):
    """Each got a share of the time, so that the record of the domain that mattered was not found in its own."""
    answer = _submit(running, _from(f"CEO <ceo@a.b.c.d.e.slow.example>, {_silent(MAX_AUTHORS - 1)}"))
    assert auth_tags(answer) & {"auth:dmarc-reject", "auth:dmarc-temperror"}, answer.json
    assert answer.json["decision"] == "quarantine"


def test_a_mail_with_more_authors_than_anybody_writes_is_in_doubt(running, monkeypatch):
    """Nothing is looked up for them."""
    asked: list[str] = []

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: dns_lookups.Lookups, question: Any, *more: Any) -> Any:
            asked.append(str(question))
            return method(self, question, *more)

        return call

    for name in ("_ask", "_fetch_one"):
        monkeypatch.setattr(dns_lookups.Lookups, name, noting(getattr(dns_lookups.Lookups, name)))
    answer = _submit(running, _from(f"CEO <ceo@bank.example>, {_silent(9)}"))
    assert "auth:dmarc-permerror" in auth_tags(answer), answer.json
    assert any("evil.example" in question for question in asked)  # the sender's
    assert not any("silent.example" in question for question in asked)


def test_one_of_several_authors_without_an_answer_is_a_doubt(running):
    """The other one has no policy, so there was no result, and the mail was delivered."""
    answer = _submit(running, _from("j@shop.example, ceo@broken.example"))
    assert "auth:dmarc-temperror" in auth_tags(answer), answer.json


@pytest.mark.parametrize("name", ["broken.bank.example", "a.silent.bank.example"])
def test_a_subdomain_without_a_name_server_hid_the_policy_above_it(running, name):
    """A forger chooses the subdomain. It may have another policy, so this is a doubt."""
    assert "auth:dmarc-temperror" in auth_tags(_submit(running, _from(f"ceo@{name}")))


def test_a_record_that_may_not_be_the_only_one_is_enough_to_pass():
    """A proof that aligns with a record stays one."""

    def lookup(name: str) -> list[str]:
        if name == "_dmarc.x.a.org":
            raise dns_lookups.DnsUnavailable("x")
        return ["v=DMARC1; p=reject"]

    record = find_record("x.a.org", lookup)
    assert judge("x.a.org", Proofs({"aspf": ["a.org"]}, {}), record) == "pass"
    assert judge("x.a.org", Proofs({"aspf": ["b.org"]}, {}), record) == "temperror"


SIGNED = _from("j@bank.example", body=b"Hello\r\n")
FIELDS = [b"from", b"to", b"subject", b"date"]


def test_a_signature_of_the_beginning_of_a_body_proved_the_rest(running):
    """Anybody could append a page to a signed newsletter, and send it in the name of its author."""
    signature = dkim.sign(SIGNED, b"k", b"bank.example", PEM, include_headers=FIELDS, length=True)
    assert b"l=" in signature
    whole, longer = _submit(running, signature + SIGNED), _submit(running, signature + SIGNED + b"Pay now\r\n")
    assert {"auth:dkim-pass", "auth:dmarc-pass"} <= auth_tags(whole), whole.json
    assert {"auth:dkim-fail", "auth:dmarc-reject"} <= auth_tags(longer), longer.json


@pytest.mark.parametrize(
    ("selector", "algorithm", "result"),
    [
        (b"k", b"rsa-sha1", "fail"),
        (b"sha1", b"rsa-sha256", "fail"),
        (b"both", b"rsa-sha256", "pass"),
        (b"upper", b"rsa-sha256", "pass"),
        (b"any", b"rsa-sha256", "pass"),
    ],
)
def test_signatures_with_sha1_prove_nothing(running, selector, algorithm, result):
    """RFC 8301 3.1; and a key may say which algorithms it is for."""
    signature = dkim.sign(SIGNED, selector, b"bank.example", PEM, include_headers=FIELDS, signature_algorithm=algorithm)
    assert f"auth:dkim-{result}" in auth_tags(_submit(running, signature + SIGNED))


SILENT = b"".join(
    b"DKIM-Signature: v=1; a=rsa-sha256; c=simple/simple; d=d%d.silent.example; s=k; h=from;\r\n"
    b" bh=uoq1oCgLlTqpdDX/iUbLy7J1Wic=; b=AAAA\r\n" % number
    for number in range(5)
) + _from("a@x.silent.example")


@pytest.mark.parametrize(("may_wait", "tag"), [(0, "auth:dmarc-temperror"), (1, "failed:authentication")])
def test_few_mails_wait_for_silent_name_servers(tmp_path, nameserver, may_wait, tag):
    """Each occupied a slot for 80 % of the timeout. Those that must not wait are in doubt after 15 %."""
    with service(tmp_path, with_dns(nameserver)) as running:
        _let_wait(running, may_wait)
        for _ in range(2):  # a mail that has waited makes room for the next
            begin = time.monotonic()
            answer = _submit(running, SILENT)
            assert tag in auth_tags(answer), answer.json
            assert (time.monotonic() - begin > 2.4) == bool(may_wait)


def _let_wait(running, count: int) -> None:
    """Take the other places of mails that wait longer."""
    (engine,) = running.server._site._engines
    for _ in range(dns_lookups.MAX_WAITING - count):
        assert engine.analyzer._resolvers.waiting.acquire(blocking=False)


def test_lookups_that_are_answered_cost_no_patience(tmp_path, nameserver):
    """While others waited, an honest sender with many SPF lookups had no time for all of them."""
    with service(tmp_path, with_dns(nameserver)) as running:
        _let_wait(running, 0)
        begin = time.monotonic()
        answer = _submit(running, _from("j@many.slow.example"), "j@many.slow.example")
        assert time.monotonic() - begin > 0.15 * 5, "the lookups take longer than any mail may wait for silence"
        assert {"auth:spf-pass", "auth:dmarc-pass"} <= auth_tags(answer), answer.json


@pytest.mark.parametrize("may_wait", [False, True])
def test_name_servers_that_answer_late_again_and_again_could_occupy_the_service(may_wait):
    """A chain of SPF records whose server answers each of them late. Only a few mails wait for all answers."""

    class Late:
        def resolve(self, name: str, kind: str, lifetime: float) -> list[Any]:
            time.sleep(0.1)
            return []

    resolvers = dns_lookups.Resolvers(Late(), None, threading.Semaphore(int(may_wait)))
    now = time.monotonic()
    lookups = dns_lookups.Lookups(resolvers, now + 60, patience_s=30, slow_from=now + 0.35)
    answered = 0
    with closing(lookups), suppress(dns_lookups.DnsUnavailable):
        for number in range(20):
            lookups.ask(f"{number}.late.example", "A")
            answered += 1
    assert (answered == 20) if may_wait else 1 <= answered <= 4


def test_mail_goes_on_while_others_wait_for_silent_name_servers(running):
    """Three such mails in a second stopped all others."""
    found: list[set[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(auth_tags(_submit(running, SILENT, "x@e.silent.example"))))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    answers = 0
    while any(thread.is_alive() for thread in threads):
        answer = _submit(running, _from("ceo@bank.example"))
        assert "auth:dmarc-reject" in auth_tags(answer), answer.json
        answers += 1
    assert answers > 1
    in_doubt = [tags for tags in found if "auth:dmarc-temperror" in tags]
    assert in_doubt and all(tags == {"failed:authentication"} for tags in found if tags not in in_doubt)


def test_without_any_answer_mail_is_not_held(tmp_path):
    """If our own name server is down, nobody can tell what is forged: as before, there is no result."""
    with zone_server({}) as port:
        pass  # nobody listens there now
    with service(tmp_path, with_dns(port)) as running:
        answer = _submit(running, _from("j@shop.example"))
        assert auth_tags(answer) == {"failed:authentication"}
