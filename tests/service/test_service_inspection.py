"""Inspection, tables and the decision: the pure parts of the analysis, and hostile mail over HTTP."""

from __future__ import annotations

import base64
import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import signal
import tarfile
import time
from binascii import b2a_uu

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bridge.api.scanning import Decision
from bridge.matching import spelling
from bridge.mime.encodings import decode
from bridge.mime.structure import Bounds, TooMuch, parse_value, walk
from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.links import Links, host_of
from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.headers import check
from bridge.service.analysis.inspection import NeedsProcess, inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import DEFAULT_RULES, DecisionRule, Decisions
from tests.processes import children, command_line
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import (
    CONFIG,
    EICAR,
    GTUBE,
    SOON_S,
    Lists,
    attached,
    mail,
    service,
    wait_for,
    zipped,
)

MIB = 1024 * 1024
CRLF_PAIR = b"\r\n\r\n"


def nested_multipart(depth: int) -> bytes:
    head = "".join(f"Content-Type: multipart/mixed; boundary=b{i}\r\n\r\n--b{i}\r\n" for i in range(depth))
    return head.encode() + b"Content-Type: text/plain\r\n\r\nhello\r\n"


def many_parts(count: int) -> bytes:
    return mail(b"--x\r\n\r\np\r\n" * count + b"--x--\r\n", Content_Type="multipart/mixed; boundary=x")


def zip_bomb(size: int) -> bytes:
    return zipped(("zeros", b"\0" * size))


def many_members(count: int) -> bytes:
    return zipped(*((f"{i}", b"") for i in range(count)))


def nested_zips(depth: int, content: bytes) -> bytes:
    for i in range(depth):
        content = zipped((f"{i}.zip", content))
    return content


def tarred(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def encrypted_zip() -> bytes:
    raw = bytearray(zipped(("secret.txt", b"x")))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(magic) + offset] |= 1
    return bytes(raw)


HOSTILE = {
    "zip bomb": (lambda: attached(zip_bomb(300 * MIB), "a.zip"), "limit:archive-size"),
    "nested zips": (lambda: attached(nested_zips(20, b"x"), "a.zip"), "limit:archive-depth"),
    "100,000 parts": (lambda: many_parts(100_000), "limit:parts"),
    "1,000 deep": (lambda: nested_multipart(1000), "limit:depth"),
    "huge header": (lambda: b"X: " + b"a" * MIB + CRLF_PAIR, "limit:header"),
    "many fields": (lambda: b"X: y\r\n" * 50_000, "limit:header"),
    "many members": (lambda: attached(many_members(10_001), "a.zip"), "limit:archive-members"),
}  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with service(tmp_path_factory.mktemp("analysis")) as running:
        yield running


@pytest.mark.parametrize("name", HOSTILE)
def test_a_mail_beyond_the_bounds_is_undecided(running, name):
    """The inspection of bombs and deep nesting stops at a bound, and a tag names it."""
    make, tag = HOSTILE[name]
    content = make()
    answer = running.submit(content).json
    assert answer["decision"] == "undecided"
    assert tag in answer["tags"]
    assert fair_cpu_s(lambda: inspect(content, Limits())) < 2


def test_hostile_mail_never_stops_other_scans(running):
    """While bombs are being inspected, an ordinary mail is answered immediately."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        bomb, waits = HOSTILE["zip bomb"][0](), []
        began = time.monotonic()
        bombs = [pool.submit(running.submit, bomb) for _ in range(4)]
        while not all(bomb.done() for bomb in bombs):
            start = time.monotonic()
            assert running.submit(mail()).json["decision"] == "deliver"
            waits.append(time.monotonic() - start)
    assert all(bomb.result().json["decision"] == "undecided" for bomb in bombs)
    assert sorted(waits)[len(waits) // 2] < (time.monotonic() - began) / 4


def test_an_inspection_that_takes_too_long_is_killed(tmp_path):
    """A process that exceeds its time is killed; its mail is undecided, and the next mail is fine."""
    slow = attached(zip_bomb(200 * MIB), "a.zip")
    text = CONFIG + "analyzers: {mime: {timeout: 1ms}, processes: 1}\n"
    with service(tmp_path, text) as running:
        answer = running.submit(slow).json
        assert (answer["decision"], answer["tags"]) == ("undecided", ["failed:mime-timeout", "incomplete"])
        assert running.submit(mail()).json["decision"] == "deliver"


def test_an_inspection_that_takes_too_much_memory_is_undecided(tmp_path):
    """The process has its own memory limit."""
    content = attached(zipped(("zeros", b"\0" * (120 * MIB))), "a.zip")
    text = CONFIG + "analyzers: {process_memory: 150MiB}\n"
    with service(tmp_path, text) as running:
        answer = running.submit(content).json
        assert answer["decision"] == "undecided"
        assert set(answer["tags"]) & {"limit:memory", "failed:mime-crash"}


def test_bad_charsets_and_encodings_do_no_harm(running):
    """Unknown charsets, broken base64 and broken quoted-printable are treated as text."""
    for charset in ("no-such-charset", "utf-16", "utf-7", "\x00", "idna", "rot13", "zlib"):
        content = mail(b"=E4=\xff http://x", Content_Type=f'text/plain; charset="{charset}"',
                       Content_Transfer_Encoding="quoted-printable")  # fmt: skip
        assert running.submit(content).status == 200
    for name in ("=?zlib?q?x?=.txt", "=?utf-8?b?/w==?=", "=?x?q?=", "=?utf-8?b?!!!?="):
        assert running.submit(attached(b"x", name)).status == 200


@pytest.mark.parametrize(
    ("content", "tags"),
    [
        (tarred("eicar.com", EICAR), {"malware:eicar", "mime:executable"}),
        (gzip.compress(EICAR, mtime=0), {"malware:eicar"}),
        (zipped(("a.tar.gz", tarred("x", EICAR))), {"malware:eicar", "mime:nested-archive"}),
        (gzip.compress(b"harmless", mtime=0) + gzip.compress(EICAR, mtime=0), {"malware:eicar"}),
        (lzma.compress(b"harmless") + lzma.compress(b"x" * 600_000 + EICAR), {"malware:eicar"}),
        (bz2.compress(b"harmless") + bz2.compress(EICAR), {"malware:eicar"}),
        (b"junk before it" + zipped(("x", EICAR)), {"malware:eicar"}),
        (encrypted_zip(), {"mime:encrypted-archive"}),
        (zipped(("invoice.pdf.exe", b"MZ")), {"mime:executable", "mime:double-extension"}),
        (zipped(("word/vbaProject.bin", b"x")), {"mime:macro"}),
        (b"PK\x03\x04" + b"x" * 100, {"mime:broken-archive"}),
        (b"\x1f\x8b" + b"x" * 100, {"mime:broken-archive"}),
        (b"7z\xbc\xaf\x27\x1c" + b"x" * 100, {"mime:unopened-archive"}),
        (zipped(("mail.eml", attached(EICAR))), {"malware:eicar"}),
    ],
)
def test_the_content_of_archives_is_inspected(content, tags):
    """Archives are opened however they are wrapped, and oddities get a tag."""
    assert inspect(attached(content, "a.bin"), Limits()).tags == tags


def test_archives_are_not_opened_in_the_event_loop():
    """Small mail is inspected in the event loop, but archives are not."""
    with pytest.raises(NeedsProcess):
        inspect(attached(zipped(("a", b"x"))), Limits(archives=False))


@pytest.mark.parametrize(
    ("name", "kind", "content", "tags"),
    [
        ("a.pdf", "application/pdf", b"%PDF-1.7", set()),
        ("a.exe", "application/octet-stream", b"MZ\x90\0", {"mime:executable"}),
        ("a.jpg", "image/jpeg", b"MZ\x90\0", {"mime:executable", "mime:type-mismatch"}),
        ("", "image/png", b"\x7fELF\x02", {"mime:executable", "mime:type-mismatch"}),
        ("a.pdf", "application/pdf", b"PK\x03\x04", {"mime:type-mismatch"}),
        ("a.docx", "application/x", b"PK\x03\x04", set()),
        ("a.doc", "application/msword", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", set()),
        ("a.doc", "", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "_VBA_PROJECT".encode("utf-16-le"), {"mime:macro"}),
        ("invoice.pdf.js", "text/plain", b"x", {"mime:executable", "mime:double-extension"}),
        ("invoice\u202efdp.exe", "", b"x", {"mime:executable", "mime:deceptive-name"}),
        ("report.v2.pdf", "", b"%PDF-", set()),
        ("a.pdf" + " " * 40 + ".scr", "", b"", {"mime:executable", "mime:deceptive-name", "mime:double-extension"}),
        ("photo.jpg", "image/jpeg", b"\xff\xd8\xff\xe0", set()),
        ("", "text/x-python", b"#!/bin/sh\n", {"mime:type-mismatch"}),
    ],
)
def test_false_types_and_deceptive_names(name, kind, content, tags):
    """Each oddity of an attachment has its tag."""
    assert file_types.tags_of(name, kind, content) == tags


@pytest.mark.parametrize(
    ("text", "is_html", "hosts", "tags"),
    [
        ("see http://Example.ORG/path and https://b.example:8443", False, {"example.org", "b.example"}, set()),
        ("http://user@evil.example/", False, {"evil.example"}, {"url:userinfo"}),
        ("http://192.0.2.1/ http://3221225985/ http://[2001:db8::1]/", False,
         {"192.0.2.1", "2001:db8::1"}, {"url:ip-host"}),
        ("http://müller.example/", False, {"xn--mller-kva.example"}, {"url:punycode"}),
        ("go to www.example.org.", False, {"www.example.org"}, set()),
        ("http:\\\\evil.example\\x", False, {"evil.example"}, set()),
        ('<img src="//cdn.example/x.png">', True, {"cdn.example"}, set()),
        ("<a href='h&#116;tp://evil.example'>x</a>", True, {"evil.example"}, set()),
        ("<a href=http://evil.example/>https://bank.example/</a>", True, {"evil.example", "bank.example"},
         {"url:mismatch"}),
        ('<a href="http://mail.bank.example/">bank.example</a>', True, {"mail.bank.example"}, set()),
        ("no links // here http://", False, set(), set()),
    ],
)  # fmt: skip
def test_links(text, is_html, hosts, tags):
    """Hosts are found in every spelling that a mail program accepts as a link."""
    links = Links()
    links.scan(text, is_html=is_html)
    assert (links.hosts, links.tags) == (hosts, tags)


@pytest.mark.parametrize(
    ("fields", "tags"),
    [
        ({"From": "a@b.org", "Date": "Sun, 15 Nov 2026 03:00:00 +0000", "Message-ID": "<x@y>"}, set()),
        ({}, {"header:missing-from", "header:missing-date", "header:missing-message-id"}),
        ({"From": '"boss@example.org" <x@evil.example>', "Date": "soon", "Message-ID": "x"},
         {"header:display-address", "header:bad-date"}),
        ({"From": "A <a@b.org>", "Reply-To": "x@evil.example", "Date": "Sun, 15 Nov 2026 03:00:00 +0000",
          "Message-ID": "x"}, {"header:reply-to-differs"}),
        ({"From": "<a@b.org>, <c@d.org>", "Date": "Sun, 15 Nov 2026 03:00:00 +0000", "Message-ID": "x"},
         {"header:several-from"}),
    ],
)  # fmt: skip
def test_headers(fields, tags):
    """Each sign that no regular mail program wrote the header has its tag."""
    assert check([(name.lower(), value) for name, value in fields.items()]) == tags


@pytest.mark.parametrize(
    ("value", "main", "params"),
    [
        ("text/plain", "text/plain", {}),
        ('Text/HTML; charset="utf-8"; name=x.html', "text/html", {"charset": "utf-8", "name": "x.html"}),
        ("a/b; filename*=utf-8''%e2%82%ac.txt", "a/b", {"filename": "€.txt"}),
        ("a/b; filename*0=\"ab\"; filename*1=cd", "a/b", {"filename": "abcd"}),
        ('a/b; name="=?utf-8?q?=E2=82=AC?="', "a/b", {"name": "€"}),
        ('a/b; name="x\\"y"', "a/b", {"name": 'x"y'}),
        ('a/b; name="open', "a/b", {"name": "open"}),
        (";;;=;", "", {}),
    ],
)  # fmt: skip
def test_structured_header_values(value, main, params):
    """Parameters, even broken ones, are parsed as mail programs parse them."""
    assert parse_value(value) == (main, params)


def test_the_structure_is_walked_in_order():
    """Containers precede their parts, and the bodies are exact."""
    inner = b"--y\r\nContent-Type: text/html\r\n\r\n<b>\r\n--y\r\n\r\nlast"
    body = b"preamble\r\n--x \r\n\r\none\r\n--xy\r\n--x\r\nContent-Type: multipart/alternative; boundary=y\r\n\r\n"
    data = mail(body + inner + b"\r\n--x--\r\nepilogue --x", Content_Type='multipart/mixed; boundary="x"')
    parts = list(walk(data, Bounds()))
    assert [(p.depth, p.content_type, data[p.body : p.end]) for p in parts][1:] == [
        (1, "text/plain", b"one\r\n--xy"),
        (1, "multipart/alternative", inner),
        (2, "text/html", b"<b>"),
        (2, "text/plain", b"last"),
    ]


@pytest.mark.parametrize("ending", [b"\r\n", b"\n"])
def test_both_kinds_of_line_ends_are_parsed(ending):
    """Mail whose CRs were lost in transit is parsed like any other."""
    data = attached(EICAR).replace(b"\r\n", ending)
    assert "malware:eicar" in inspect(data, Limits()).tags


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [
        ("base64", base64.encodebytes(EICAR)),
        ("BASE64", base64.b64encode(EICAR).replace(b"E", b"E\r\n !")),
        ("base64", base64.b64encode(EICAR).rstrip(b"=") + b"A"),
        ("quoted-printable", EICAR.replace(b"$", b"=24")),
        ("x-uuencode", b"begin 644 x\n" + b2a_uu(EICAR[:45]) + b2a_uu(EICAR[45:]) + b"end\n"),
    ],
)  # fmt: skip
def test_transfer_encodings_are_decoded(encoding, raw):
    """Content in any transfer encoding is found."""
    data = b"Content-Type: application/x\r\nContent-Transfer-Encoding: " + encoding.encode() + CRLF_PAIR + raw
    part = next(walk(data, Bounds()))
    assert decode(data[part.body : part.end], part.encoding)[0].startswith(EICAR)


def test_gtube_is_found_in_an_encoded_text_part():
    """Text is searched after decoding."""
    data = mail(base64.encodebytes(GTUBE), Content_Transfer_Encoding="base64")
    assert "spam:gtube" in inspect(data, Limits()).tags


def test_too_much_names_the_bound():
    """The walk stops at a bound and names it."""
    with pytest.raises(TooMuch, match="parts"):
        list(walk(many_parts(30), Bounds(parts=10)))


@pytest.mark.parametrize(
    ("tags", "score", "verdict", "decision"),
    [
        (set(), 0, "clean", Decision.DELIVER),
        ({"malware:eicar", "incomplete", "list:allowed-senders"}, 0, "malware", Decision.QUARANTINE),
        ({"list:blocked-urls", "list:allowed-senders"}, 0, "blocked", Decision.BOUNCE),
        ({"spam:gtube", "list:blocked-senders"}, 0, "blocked", Decision.BOUNCE),
        ({"spam:gtube"}, 0, "spam", Decision.BOUNCE),
        ({"mime:executable"}, -0.1, "suspicious", Decision.QUARANTINE),
        ({"mime:executable"}, -1000, "suspicious", Decision.QUARANTINE),
        ({"rspamd:reject", "incomplete"}, 0, "spam", Decision.BOUNCE),
        ({"incomplete", "list:allowed-senders"}, 0, "incomplete", Decision.UNDECIDED),
        ({"list:allowed-domains"}, 100, "allowed", Decision.DELIVER),
        ({"rspamd:soft-reject"}, 0, "deferred", Decision.UNDECIDED),
        ({"list:personal-blocked-senders"}, 0, "blocked", Decision.QUARANTINE),
        ({"list:personal-blocked-senders", "list:allowed-senders"}, 0, "blocked", Decision.QUARANTINE),
        ({"list:personal-allowed-senders"}, 100, "allowed", Decision.DELIVER),
        ({"list:personal-allowed-senders", "list:blocked-senders"}, 0, "blocked", Decision.BOUNCE),
        ({"list:personal-allowed-senders", "malware:eicar"}, 0, "malware", Decision.QUARANTINE),
        ({"list:personal-allowed-senders", "incomplete"}, 0, "incomplete", Decision.UNDECIDED),
        (set(), 15, "spam", Decision.BOUNCE),
        ({"phishing:likely"}, 0, "phishing", Decision.QUARANTINE),
        ({"phishing:likely", "list:allowed-senders"}, 0, "allowed", Decision.DELIVER),
        ({"phishing:likely", "list:personal-allowed-senders"}, 0, "phishing", Decision.QUARANTINE),
        (set(), 8, "suspicious", Decision.QUARANTINE),
        ({"mime:executable"}, 0, "suspicious", Decision.QUARANTINE),
        ({"mime:macro"}, 3.9, "clean", Decision.DELIVER),
    ],
)
def test_every_row_of_the_default_table(tags, score, verdict, decision):
    """The default decision table, row by row."""
    assessment = DecisionTable(Decisions()).decide(tags, score)
    assert (assessment.verdict, assessment.decision) == (verdict, decision)
    assert len(DEFAULT_RULES) == 11


def test_no_table_delivers_mail_that_was_not_fully_inspected():
    """Only a rule that names `incomplete` itself can deliver such a mail."""
    careless = Decisions(rules=[DecisionRule(tags=["x"], verdict="v", decision=Decision.DELIVER)])
    assert DecisionTable(careless).decide({"x", "incomplete"}).decision is Decision.UNDECIDED
    assert DecisionTable(Decisions(rules=[])).decide({"incomplete"}).decision is Decision.UNDECIDED
    explicit = Decisions(rules=[DecisionRule(tags=["incomplete"], verdict="v", decision=Decision.DELIVER)])
    assert DecisionTable(explicit).decide({"incomplete"}).decision is Decision.DELIVER


def test_links_and_attachments_are_matched_against_lists(tmp_path):
    """Mail with a link to a blocked host or with a blocked attachment, even in an archive, is bounced."""
    with service(tmp_path, with_key=True) as running:
        lists = Lists(running)
        lists.add("blocked-urls", "http://Evil.example/some/path")
        lists.add("blocked-attachments", hashlib.sha256(b"bad").hexdigest().upper())
        wait_for(lambda: running.submit(mail(b"http://www.evil.example/")).json["verdict"] == "blocked", SOON_S)
        wait_for(lambda: running.submit(attached(b"bad")).json["tags"] == ["list:blocked-attachments"], SOON_S)
        assert running.submit(attached(zipped(("x", b"bad")))).json["verdict"] == "blocked"
        assert running.submit(attached(b"good")).json["decision"] == "deliver"
        lists.add("blocked-senders", "forger@evil.example")
        forged = mail(From="Boss <forger@evil.example>")
        wait_for(lambda: running.submit(forged).json["verdict"] == "blocked", SOON_S)


FRAGMENTS = [
    b"Content-Type: multipart/mixed; boundary=x\r\n", b"Content-Type: message/rfc822\r\n", b"\r\n", b"\n", b"--x",
    b"--x--", b"--x\r\n", b"Content-Transfer-Encoding: base64\r\n", b"Content-Transfer-Encoding: quoted-printable\r\n",
    b"=?utf-8?b?",
    b'Content-Disposition: attachment; filename="', b"filename*0*=", b"''%", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18,
    b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\x00", b"http://", b"<a href=", b"&#x", b"From: <", b"@", b"\x00\xff",
    base64.b64encode(zipped(("a", b"x"))), zipped(("a", b"x")), b"ustar",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=20), max_size=60))
@hypothesis_settings(max_examples=400, deadline=None)
def test_no_input_breaks_the_inspection(pieces):
    """Hostile mail is inspected or stopped by a bound; it never causes an exception."""
    found = inspect(b"".join(pieces), Limits())
    assert Inspection.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_process_that_was_killed_while_idle_is_replaced(tmp_path):
    """If the kernel kills a process for its memory, the next mail is not affected."""
    with service(tmp_path, CONFIG + "analyzers: {processes: 1}\n") as running:
        content = attached(zipped(("x", b"x")))
        assert running.submit(content).json["decision"] == "deliver"
        for child in children(os.getpid()):
            if "inspector_process" in command_line(child):
                os.kill(child, signal.SIGKILL)
                os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert running.submit(content).json["decision"] == "deliver"


@pytest.mark.parametrize(
    ("entry", "written"),
    [
        ("b\u00fccher.example", "B\u00dcCHER\u3002example."),
        ("xn--bcher-kva.example", "bu\u0308cher.example:443"),
        ("stra\u00dfe.example", "stra%C3%9Fe.example"),
        ("evil.example", "ev\u00adil.example"),
        ("192.0.2.235", "3221226219"),
        ("192.0.2.235", "0xc0.0.0x2eb"),
        ("192.0.2.235", "0300.0.2.0353:80"),
        ("192.0.2.235", "[::ffff:192.0.2.235]"),
        ("2001:db8::1", "[2001:DB8:0::1]:443"),
    ],
)
def test_a_link_is_compared_in_the_spelling_of_lists(entry: str, written: str) -> None:
    """A browser opens the same host in each of these forms."""
    assert host_of(written) == spelling.normalise("url", entry)


@pytest.mark.parametrize("written", ["[fe80::1%25eth0]", "192.0.2.999", "1.2.3.256", "08.1", "a b", ""])
def test_what_is_no_host_has_no_spelling(written: str) -> None:
    assert host_of(written) == ""


@pytest.mark.parametrize(
    "link", ["https:/evil.example", "https:evil.example", "https:////evil.example", "http:\\/evil.example"]
)
def test_a_link_that_browsers_repair_is_found(link):
    """The number and kind of slashes behind the scheme do not matter to a browser."""
    links = Links()
    links.scan(f"see {link}/x", is_html=False)
    assert links.hosts == {"evil.example"}
