"""SPF, DKIM and DMARC against a local DNS server."""

from __future__ import annotations

import base64
import random
import re
import threading
import time

import pytest

from tests.service.service_kit import CONFIG, mail, service

pytest.importorskip("dns.message", reason="the extra `authentication` is not installed")
dkim = pytest.importorskip("dkim")
from dkim import canonicalization  # noqa: E402

from bridge.service.analysis import authentication  # noqa: E402
from bridge.service.analysis.authentication import (  # noqa: E402
    _compress_whitespace,
    _strip_trailing_whitespace,
)
from bridge.service.analysis.decision import DecisionTable  # noqa: E402
from bridge.service.analysis.dmarc import Proofs, dmarc, find_record, judge  # noqa: E402
from bridge.service.analyzer_settings import Authentication  # noqa: E402
from bridge.service.decision_settings import Decisions  # noqa: E402
from tests.service.zone_kit import DER, PEM, PUBLIC, auth_tags, txt, with_dns, zone_server  # noqa: E402

HARD_KEY = base64.b64encode(  # a modulus and an exponent of 8,000 bits
    bytes.fromhex("308207d8") + 2 * (bytes.fromhex("028203e8") + b"\x7f" + b"\xfd" * 999)
).decode()
NOT_A_KEY = base64.b64encode(DER.replace(b"\x05\x00", b"\x05\x01", 1)).decode()  # dkimpy fails with an AssertionError


ZONE = {
    ("good.example.", "TXT"): ['"v=spf1 ip4:192.0.2.1 include:more.example -all"'],
    ("more.example.", "TXT"): ['"v=spf1 a:mail.more.example ?all"'],
    ("mail.more.example.", "A"): ["192.0.2.2"],
    ("k._domainkey.good.example.", "TXT"): txt(f"v=DKIM1; p={PUBLIC}"),
    ("k._domainkey.hard.example.", "TXT"): txt(f"v=DKIM1; p={HARD_KEY}"),
    ("k._domainkey.crash.example.", "TXT"): txt(f"v=DKIM1; p={NOT_A_KEY}"),
    ("k._domainkey.sub.good.example.", "TXT"): txt(f"v=DKIM1; p={NOT_A_KEY}"),
    ("long.example.", "TXT"): [" ".join(['"v=spf1 ip4:192.0.2.9 exists:%{i}."', *['"' + "x" * 250 + '"'] * 20])],
    ("_dmarc.good.example.", "TXT"): ['"v=DMARC1; p=reject; sp=quarantine"'],
    ("ptr.example.", "TXT"): ['"v=spf1 ptr ip4:192.0.2.67 -all"'],
    ("name.example.", "TXT"): ['"v=spf1 exists:%{p}.users.name.example -all"'],
    ("helo.example.", "TXT"): ['"v=spf1 a:%{h} -all"'],
    ("user.example.", "TXT"): ['"v=spf1 exists:%{l}.users.user.example -all"'],
    ("include.example.", "TXT"): ['"v=spf1 include:broken.example -all"'],
    ("exp.example.", "TXT"): ['"v=spf1 a:mail.more.example exp=%{l}.exp.example -all"'],
    **{(f"_dmarc.{name}.example.", "TXT"): ['"v=DMARC1; p=reject"']
       for name in ("ptr", "name", "helo", "user", "include", "exp")},
    ("k._domainkey.user.example.", "TXT"): txt(f"v=DKIM1; p={PUBLIC}"),
    ("_dmarc.strict.example.", "TXT"): ['"v=DMARC1; p=reject; aspf=s; adkim=s"'],
}  # fmt: skip


@pytest.fixture(scope="module")
def nameserver():
    with zone_server(ZONE) as port:
        yield port


@pytest.fixture(scope="module")
def running(tmp_path_factory, nameserver):
    with service(tmp_path_factory.mktemp("auth"), with_dns(nameserver)) as running:
        yield running


BROKEN_SIGNATURE = (
    b"DKIM-Signature: v=1; a=rsa-sha256; c=relaxed/relaxed; d=broken.example; s=k; h=from;\r\n"
    b" bh=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=; b=AAAA\r\n"
)


def _signed(by: bytes = b"good.example", **fields: str) -> bytes:
    content = mail(b"Hello\r\n", **fields)
    return dkim.sign(content, b"k", by, PEM) + content


@pytest.mark.parametrize(
    ("sender", "ip", "content", "tags"),
    [
        ("a@good.example", "192.0.2.1", mail(From="a@good.example"),
         {"auth:spf-pass", "auth:dkim-none", "auth:dmarc-pass"}),
        ("a@good.example", "192.0.2.2", mail(From="a@good.example"),
         {"auth:spf-pass", "auth:dkim-none", "auth:dmarc-pass"}),
        ("a@good.example", "192.0.2.9", mail(From="a@good.example"),
         {"auth:spf-fail", "auth:dkim-none", "auth:dmarc-reject"}),
        ("x@other.example", "192.0.2.9", _signed(From="a@good.example"),
         {"auth:spf-none", "auth:dkim-pass", "auth:dmarc-pass"}),
        ("x@other.example", "192.0.2.9", _signed(From="a@good.example").replace(b"Hello", b"Hullo"),
         {"auth:spf-none", "auth:dkim-fail", "auth:dmarc-reject"}),
        ("x@other.example", "192.0.2.9", mail(From="a@sub.good.example"),
         {"auth:spf-none", "auth:dkim-none", "auth:dmarc-quarantine"}),
        ("x@other.example", "192.0.2.9", mail(From="a@unknown.example"), {"auth:spf-none", "auth:dkim-none"}),
        ("x@broken.example", "192.0.2.9", mail(From="a@good.example"),
         {"auth:spf-temperror", "auth:dkim-none", "auth:dmarc-reject"}),
        ("x@long.example", "192.0.2.9", mail(From="a@unknown.example"), {"auth:spf-none", "auth:dkim-none"}),
        ("x@other.example", "192.0.2.9", BROKEN_SIGNATURE + mail(From="a@good.example"),
         {"auth:spf-none", "auth:dkim-fail", "auth:dmarc-reject"}),
        ("x@other.example", "192.0.2.9", BROKEN_SIGNATURE * 5 + _signed(From="a@good.example"),
         {"auth:spf-none", "auth:dkim-pass", "auth:dmarc-pass"}),
        ("x@other.example", "192.0.2.9", mail(From="a@good.example, b@other.example"),
         {"auth:spf-none", "auth:dkim-none", "auth:dmarc-reject"}),
        ("x@other.example", "192.0.2.9", mail(From="a@good.example, b@!"),
         {"auth:spf-none", "auth:dkim-none", "auth:dmarc-reject"}),
        ("x@other.example", "192.0.2.9", mail(From=", ".join(f"a@{i}.example" for i in range(11))),
         {"auth:spf-none", "auth:dkim-none", "auth:dmarc-permerror"}),
        ("x@other.example", "192.0.2.9", mail(From="a@broken.example"), {"failed:authentication"}),
    ],
    ids=["spf", "include", "spf fails", "dkim", "changed", "subdomain", "no record", "envelope without dns",
         "a record of five kilobytes",
         "signature without dns", "signature behind five without dns", "two authors", "malformed second author",
         "eleven authors", "author without dns"],
)  # fmt: skip
def test_authentication(running, sender, ip, content, tags):
    """Each of the three gives the result that the published records call for."""
    assert auth_tags(running.submit(content, sender=sender, remoteAddress=ip)) == tags


def test_without_permission_there_are_no_dns_queries(tmp_path):
    """With `dns: false` there are no lookups and no tags."""
    with service(tmp_path, CONFIG + "analyzers: {authentication: {dns: false}}\n") as running:
        assert auth_tags(running.submit(mail(From="a@good.example"), remoteAddress="192.0.2.1")) == set()


@pytest.mark.parametrize(
    ("author", "spf", "dkim_domains", "record", "result"),
    [
        ("a.org", ["a.org"], [], "", ""),
        ("a.org", ["a.org"], [], "v=DMARC1; p=reject", "pass"),
        ("a.org", ["mail.a.org"], [], "v=DMARC1; p=reject", "pass"),
        ("a.org", [], ["mail.a.org"], "v=DMARC1; p=reject", "pass"),
        ("a.org", ["mail.a.org"], [], "v=DMARC1; p=reject; aspf=s", "reject"),
        ("a.org", ["mail.a.org"], [], "v=DMARC1; p=reject; adkim=s", "pass"),
        ("a.org", [], ["mail.a.org"], "v=DMARC1; p=reject; adkim=s", "reject"),
        ("a.org", [], ["mail.a.org"], "v=DMARC1; p=reject; aspf=s", "pass"),
        ("a.org", ["a.org"], [], "v=DMARC1; p=reject; aspf=s; adkim=s", "pass"),
        ("a.org", ["evila.org"], ["evila.org"], "v=DMARC1; p=quarantine", "quarantine"),
        ("x.a.org", ["a.org"], [], "v=DMARC1; p=reject", "pass"),
        ("x.a.org", [], [], "v=DMARC1; p=reject; sp=none", "none"),
        ("a.org", [], [], "v=DMARC1; p=strange", "none"),
        ("", ["a.org"], [], "v=DMARC1; p=reject", ""),
    ],
)
def test_dmarc(author, spf, dkim_domains, record, result):
    """Alignment and policy, row by row; the record is at a.org."""
    records = {"_dmarc.a.org": [record]} if record else {}
    found = find_record(author, lambda name: records.get(name, []))
    assert dmarc(author, {"aspf": spf, "adkim": dkim_domains}, found) == result


@pytest.mark.parametrize(
    ("author", "spf", "result"),
    [
        ("a.host.test", "evil.host.test", "reject"),
        ("a.host.test", "host.test", "reject"),
        ("x.a.host.test", "a.host.test", "pass"),
        ("b.host.test", "evil.host.test", "pass"),
        ("forged.gov.test", "evil.test", "reject"),
        ("forged.gov.test", "other.gov.test", "reject"),
        ("mail.office.gov.test", "office.gov.test", "pass"),
        ("open.gov.test", "mail.open.gov.test", "pass"),
        ("open.gov.test", "other.gov.test", "none"),
        ("gov.test", "gov.test", "pass"),
        ("gov.test", "other.gov.test", "quarantine"),
    ],
)
def test_records_that_say_where_the_organisation_ends_did_not_count(author, spf, result):
    """With `psd=n`, a neighbour's mail passed; with `psd=y`, a suffix had no policy for the names below it."""
    records = {
        "_dmarc.a.host.test": ["v=DMARC1; p=reject; psd=n"],
        "_dmarc.host.test": ["v=DMARC1; p=none"],
        "_dmarc.gov.test": ["v=DMARC1; p=quarantine; sp=reject; psd=y"],
        "_dmarc.open.gov.test": ["v=DMARC1; p=none"],
    }
    found = find_record(author, lambda name: records.get(name, []))
    assert dmarc(author, {"aspf": [spf], "adkim": []}, found) == result


@pytest.mark.parametrize(
    "content",
    [
        mail(b" " * 200_000 + b"x\r\n", From="a@good.example"),
        mail(b"Hello\r\n", From="a@good.example").replace(b"From:", b"X:\r\n" + b" a\r\n" * 400_000 + b"From:", 1),
        mail(b"Hello\r\n", From="a@good.example").replace(b"From:", b"A: b\r\n" * 100_000 + b"From:", 1),
    ],
    ids=["a line of spaces", "a field of short lines", "many fields"],
)
def test_a_signed_mail_stopped_the_whole_service(running, content):
    """dkimpy took a minute for the first, 60 KB long, and no other mail was scanned meanwhile."""
    signed = BROKEN_SIGNATURE.replace(b"h=from;", b"h=" + b":".join([b"x"] * 500) + b";\r\n").replace(
        b"broken.example", b"good.example"
    )
    begin = time.process_time()
    found = auth_tags(running.submit(signed + content, sender="x@other.example", remoteAddress="192.0.2.9"))
    assert "auth:dkim-fail" in found
    assert time.process_time() - begin < 5


def test_trailing_space_is_removed_as_dkimpy_removes_it(running):
    """The analyzer replaces a function of dkimpy, which must still be the one that dkimpy calls."""
    dice = random.Random(1)
    texts = [b"", b" \r\n", b"a \t\r\n\r\n b\r\n \r\nc ", b"a\r \n\t\r\n", b" a\t \r\n" * 9, b" " * 300_000 + b"\r\n"]
    texts += [bytes(dice.choices(b"a \t\r\n", k=200_000)), b"a b  c\t\td \t e" * 20_000, b"\r" * 200_000 + b" \r\n"]
    for text in texts:
        assert _strip_trailing_whitespace(text) == re.sub(rb"(?<![\t ])[\t ]+\r\n", b"\r\n", text)
        assert _compress_whitespace(text) == re.sub(b"[\t ]+", b" ", text)
    assert canonicalization.compress_whitespace is _compress_whitespace
    assert "compress_whitespace" in canonicalization.Relaxed.canonicalize_body.__code__.co_names
    assert canonicalization.strip_trailing_whitespace is _strip_trailing_whitespace
    assert "strip_trailing_whitespace" in canonicalization.Relaxed.canonicalize_body.__code__.co_names


@pytest.mark.parametrize(
    ("sender", "content"),
    [
        ("x@silent.example", mail(From="a@good.example")),
        ("x@other.example", BROKEN_SIGNATURE.replace(b"broken", b"silent") * 5 + mail(From="a@good.example")),
        ("x@silent.example", BROKEN_SIGNATURE.replace(b"broken", b"silent") + mail(From="a@good.example")),
        ("x@other.example", mail(From="a@good.example, b@silent.example")),
        ("x@other.example", mail(From="a@good.example, b@broken.example")),
        ("x@silent.strict.example", mail(From="a@strict.example")),
        ("x@other.example", BROKEN_SIGNATURE.replace(b"broken.", b"broken.strict.") + mail(From="a@strict.example")),
        ("x@other.example", _signed(b"crash.example", From="a@good.example")),
        ("x@other.example", _signed(b"sub.good.example", From="a@good.example")),
        ("x@other.example",
         BROKEN_SIGNATURE.replace(b"broken", b"good").replace(b"s=k", b"s=\xc3\xa4\xff") + mail(From="a@good.example")),
    ],
    ids=["envelope", "signatures", "both", "second author", "broken second author",
         "subdomain that is not aligned", "its signature", "a key that is none",
         "a key of a subdomain that is none", "a selector"],
)  # fmt: skip
def test_a_sender_switched_dmarc_off(running, sender, content):
    """With a name server that never answers, or a record that makes a library fail: the analysis of the whole mail
    ended without a result, and a forged mail was delivered although the author's domain says `p=reject`."""
    answer = running.submit(content, sender=sender, remoteAddress="192.0.2.9")
    assert "auth:dmarc-reject" in auth_tags(answer), answer.json
    assert answer.json["decision"] == "quarantine"


def test_a_doubt_about_dmarc_returned_honest_mail() -> None:
    """Its points were added to those of other findings, and the mail was bounced for a lookup without an answer."""
    found = {"auth:dmarc-temperror", "auth:spf-fail", "office:macro", "header:duplicate"}
    table = DecisionTable(Decisions())
    assert table.decide(found).decision == "quarantine"
    assert table.decide(found - {"auth:dmarc-temperror"} | {"auth:dmarc-reject"}).decision == "bounce"


def _unanswered(selector: bytes = b"broken", domain: bytes = b"good.example") -> bytes:
    return BROKEN_SIGNATURE.replace(b"d=broken.example; s=k", b"d=" + domain + b"; s=" + selector)


def _assert_held(answer) -> None:
    found = auth_tags(answer)
    assert "auth:dmarc-temperror" in found, answer.json
    assert found.isdisjoint({"auth:dmarc-reject", "auth:dmarc-quarantine", "failed:authentication"}), answer.json
    assert answer.json["decision"] == "quarantine", answer.json


@pytest.mark.parametrize(
    ("author", "parameters", "signature"),
    [
        ("a@ptr.example", {"remoteAddress": "192.0.2.66"}, b""),
        ("broken@user.example", {}, b""),
        ("a@helo.example", {"senderHelo": "broken.evil.example"}, b""),
        ("a@include.example", {}, b""),
        ("a@name.example", {"remoteAddress": "192.0.2.66"}, b""),
        ("a@good.example", {"sender": "x@other.example"}, _unanswered()),
        ("a@good.example, b@broken.example", {"sender": "x@other.example"}, _unanswered()),
    ],
    ids=["ptr", "local part", "helo", "include", "name of the client", "selector", "second author"],
)
def test_a_lookup_that_the_sender_chose_switched_dmarc_off(running, author, parameters, signature):
    """One of the author's own domain failed: there was no result, and the forged mail was delivered."""
    content = signature + mail(From=author)
    _assert_held(running.submit(content, **{"sender": author, "remoteAddress": "192.0.2.9"} | parameters))


@pytest.mark.parametrize(
    ("sender", "signature"),
    [
        ("x@broken.good.example", b""),
        ("x@silent.good.example", b""),
        ("x@other.example", _unanswered(b"k", b"broken.good.example")),
    ],
    ids=["envelope", "silent envelope", "signature"],
)
def test_a_subdomain_without_dns_made_honest_mail_forged(running, sender, signature):
    """Its mail is sent and signed in the name of a subdomain, whose name server was down for a moment."""
    content = signature + mail(From="news@good.example")
    _assert_held(running.submit(content, sender=sender, remoteAddress="192.0.2.9"))


def test_a_signature_whose_turn_came_too_late_counted_as_invalid(running):
    """The lookup for the first one took all the time, so nobody looked at the second, which is valid."""
    content = _unanswered(b"k", b"silent.good.example") + _signed(From="a@good.example")
    answer = running.submit(content, sender="x@other.example", remoteAddress="192.0.2.9")
    assert "auth:dmarc-pass" in auth_tags(answer), answer.json


def test_a_large_mail_without_a_turn_counted_as_forged(tmp_path, nameserver):
    """Hashing large mails kept the other threads from running; one that cannot be hashed in time is not forged.

    Small mails do not wait for large ones.
    """
    large = mail(b"Hello\r\n" * 50_000, From="a@good.example")
    with service(tmp_path, with_dns(nameserver)) as running:
        (engine,) = running.server._site._engines
        for _ in range(authentication.MAX_LARGE):
            assert engine.analyzer._large.acquire(blocking=False)
        signed = dkim.sign(large, b"k", b"good.example", PEM) + large
        _assert_held(running.submit(signed, sender="x@other.example", remoteAddress="192.0.2.9"))
        small = running.submit(_signed(From="a@good.example"), sender="x@other.example", remoteAddress="192.0.2.9")
        assert "auth:dmarc-pass" in auth_tags(small), small.json


def test_large_signed_mails_pass_one_after_the_other(running):
    """Each gives its turn back."""
    large = mail(b"Hello\r\n" * 50_000, From="a@good.example")
    signed = dkim.sign(large, b"k", b"good.example", PEM) + large
    for _ in range(authentication.MAX_LARGE + 1):
        answer = running.submit(signed, sender="x@other.example", remoteAddress="192.0.2.9")
        assert "auth:dmarc-pass" in auth_tags(answer), answer.json


@pytest.mark.parametrize(
    ("author", "client", "content"),
    [
        ("a@good.example", "192.0.2.9", _unanswered() + _signed(From="a@good.example")),
        ("a@good.example", "192.0.2.1", _unanswered() + mail(From="a@good.example")),
        ("broken@user.example", "192.0.2.9", _signed(b"user.example", From="broken@user.example")),
        ("a@ptr.example", "192.0.2.67", mail(From="a@ptr.example")),
        ("silent@exp.example", "192.0.2.2", mail(From="silent@exp.example")),
    ],
    ids=["another signature", "spf", "dkim", "another mechanism", "explanation"],
)
def test_a_proof_was_lost_because_another_lookup_failed(running, author, client, content):
    """One valid signature, or SPF, is enough, whatever happens to the others."""
    answer = running.submit(content, sender=author, remoteAddress=client)
    assert "auth:dmarc-pass" in auth_tags(answer), answer.json


def test_without_the_dmarc_record_a_required_analyzer_holds_the_mail(tmp_path, nameserver):
    """Nobody knows the policy then: there is no result, not `temperror`."""
    with service(tmp_path, with_dns(nameserver, ", required: true")) as running:
        answer = running.submit(mail(From="a@broken.example"), sender="x@other.example", remoteAddress="192.0.2.9")
        assert auth_tags(answer) == {"failed:authentication"}
        assert answer.json["decision"] == "undecided" and "incomplete" in answer.json["tags"]


@pytest.mark.parametrize(
    ("passed", "unsure", "record", "result"),
    [
        ({}, {}, "v=DMARC1; p=reject", "reject"),
        ({}, {"aspf": ["a.org"]}, "v=DMARC1; p=reject", "temperror"),
        ({}, {"aspf": ["a.org"]}, "v=DMARC1; p=quarantine", "temperror"),
        ({}, {"aspf": ["a.org"]}, "v=DMARC1; p=none", "none"),
        ({}, {"aspf": ["a.org"]}, "", ""),
        ({}, {"adkim": ["mail.a.org"]}, "v=DMARC1; p=reject", "temperror"),
        ({}, {"adkim": ["mail.a.org"]}, "v=DMARC1; p=reject; adkim=s", "reject"),
        ({}, {"adkim": ["b.org"]}, "v=DMARC1; p=reject", "reject"),
        ({"adkim": ["b.org"]}, {"aspf": ["a.org"]}, "v=DMARC1; p=reject", "temperror"),
        ({"adkim": ["a.org"]}, {"aspf": ["a.org"]}, "v=DMARC1; p=reject", "pass"),
    ],
)
def test_doubt_is_neither_a_pass_nor_a_forgery(passed, unsure, record, result):
    """Only a lookup that could have made the mail pass puts a failure in doubt; a pass is never in doubt."""
    records = {"_dmarc.a.org": [record]} if record else {}
    found = find_record("a.org", lambda name: records.get(name, []))
    assert judge("a.org", Proofs(passed, unsure), found) == result


def test_the_body_is_read_as_dkimpy_reads_it(running):
    """The analyzer splits a mail itself, because dkimpy takes a second for a large one."""
    analyzer = authentication.AuthenticationAnalyzer(Authentication(dns=True, nameservers=["127.0.0.1:53"]))
    dice = random.Random(2)
    heads = [b"A: b\r\nC: d\r\n e", b"A: b\nC: d\n e", b"A: b\r"]
    for head in heads:
        for end in (b"", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"):
            content = head + end + (bytes(dice.choices(b"a\r\n", k=200)) if end.count(b"\n") == 2 else b"")
            ours, theirs = analyzer._verifier(content), dkim.DKIM(content)
            assert (ours.headers, ours.body) == (theirs.headers, theirs.body), content


def test_a_key_with_a_long_exponent_stopped_the_whole_service(running):
    """Two seconds for each of five signatures, in which nothing else ran: anybody can publish such a key."""
    content = mail(From="a@good.example")
    signature = dkim.sign(content, b"k", b"hard.example", PEM)
    before = time.process_time()
    assert "auth:dkim-fail" in auth_tags(running.submit(signature * 5 + content, remoteAddress="192.0.2.9"))
    assert time.process_time() - before < 5


def test_a_large_signed_mail_stopped_the_whole_service(running):
    """Five signatures, for each of which a pattern ran for four seconds over short words."""
    content = mail(b"a " * (9 * 1024 * 1024) + b"\r\n", From="a@good.example")
    small = mail(b"Hello\r\n", From="a@good.example")
    signature = dkim.sign(small, b"k", b"good.example", PEM, canonicalize=(b"relaxed", b"relaxed"))
    before = time.process_time()
    assert "auth:dkim-fail" in auth_tags(running.submit(signature * 5 + content, remoteAddress="192.0.2.9"))
    assert time.process_time() - before < 15


def test_mails_without_an_answer_from_dns_kept_others_from_being_checked(running):
    """Sixteen of them occupied all threads for as long as they liked."""
    held = [_in_thread(running, mail(From="a@silent.example"), "x@silent.example") for _ in range(18)]
    answer = running.submit(mail(From="a@good.example"), sender="x@other.example", remoteAddress="192.0.2.9")
    assert "auth:dmarc-reject" in auth_tags(answer), answer.json
    for thread in held:
        thread.join()


def _in_thread(running, content: bytes, sender: str) -> threading.Thread:
    thread = threading.Thread(target=running.submit, args=[content], kwargs={"sender": sender})
    thread.start()
    return thread
