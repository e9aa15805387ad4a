"""Sizes and hashes for a page: of all parts of an ordinary mail, and of as much of a hostile one as takes no time."""

from __future__ import annotations

import base64
import hashlib

import pytest

from bridge.cli.quarantine import view
from bridge.mime.digests import MAX_WORK, Digests
from bridge.mime.mail_text import html_of, read
from bridge.mime.part_list import PartList, list_parts
from bridge.mime.structure import Bounds, doubts, walk
from tests.long_cases import few
from tests.processor_time import fair_cpu_s

MIB = 1024 * 1024
CONTENT = bytes(range(256)) * 40
ENCODED = {
    "7bit": b"x" * 5000,
    "base64": base64.encodebytes(CONTENT).replace(b"\n", b"\r\n"),
    "quoted-printable": b"=41=42=\r\nx\r\n" * 200,
    "x-uuencode": b"begin 644 a\r\n#86)C\r\nM\r\n`\r\nend\r\n",
    "x-unknown": b"\r\n" * 20,
}


def with_part(encoding: str, content: bytes) -> bytes:
    fields = f"Content-Type: application/zip; name=a.zip\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n"
    return b"Subject: x\r\n" + fields.encode() + content


@pytest.mark.parametrize("encoding", ENCODED)
def test_the_hash_is_that_of_the_decoded_content(encoding: str) -> None:
    """Whatever the encoding; also on both lists of parts."""
    from bridge.mime.encodings import decode

    mail = with_part(encoding, ENCODED[encoding])
    content = decode(ENCODED[encoding], encoding)[0]
    (part,) = walk(mail, Bounds())
    assert Digests(mail).of(part) == (len(content), hashlib.sha256(content).hexdigest())
    (attachment,) = read(mail).attachments
    (facts,) = list_parts(mail).parts
    assert attachment.sha256 == facts.sha256 == hashlib.sha256(content).hexdigest()
    assert not facts.is_container and not read(mail).problem and not list_parts(mail).problem


def test_a_part_beyond_the_bound_has_no_hash_and_a_small_one_after_it_has() -> None:
    """Its size is that of its encoded content."""
    parts = b"".join(b"--b\r\nContent-Type: application/zip\r\n\r\n" + b"x" * size + b"\r\n" for size in (50, 200, 60))
    mail = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + parts + b"--b--\r\n"
    digests = Digests(mail, 150)
    found = [digests.of(part) for part in walk(mail, Bounds()) if part.depth]
    assert [size for size, _ in found] == [50, 200, 60]
    assert [bool(digest) for _, digest in found] == [True, False, True]
    assert "not computed" in digests.problem and digests.left_out == 1


def test_a_mail_of_tiny_lines_is_shown_without_its_hash() -> None:
    """To show a held mail of uuencoded lines of one byte took 1.6 GB and 17 s; the console has 512 MB."""
    mail = with_part("x-uuencode", b"!\r\n" * (MAX_WORK // 64 + 1))
    reading, parts = read(mail), list_parts(mail)
    (attachment,) = reading.attachments
    assert attachment.to_dict()["sha256"] is None and attachment.size == 3 * (MAX_WORK // 64 + 1)
    assert "not computed" in reading.problem and "not computed" in parts.problem
    shown = list(view.content(reading))
    assert "sha256 not computed" in shown[0] and "not computed" in shown[1]
    (facts,) = parts.parts
    assert not facts.sha256 and not facts.is_container


def test_messages_within_messages_are_hashed_only_so_often() -> None:
    """The same bytes were decoded and hashed at each of thirty depths."""
    inner = b"Content-Type: message/rfc822\r\n\r\n" * 28 + b"Content-Type: text/plain\r\n\r\n" + b"x" * 8 * MIB
    mail = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n" + inner + b"\r\n--b--\r\n"
    reading = read(mail)
    assert len(reading.attachments) == 28 and "not computed" in reading.problem
    assert len([part for part in reading.attachments if part.sha256]) == MAX_WORK // (8 * MIB) - 1


def test_the_largest_mail_in_base64_has_its_hash() -> None:
    """50 MiB in lines as mail programs write them."""
    line = base64.b64encode(b"x" * 57) + b"\r\n"
    mail = with_part("base64", line * (49 * MIB // len(line)))
    (attachment,) = read(mail).attachments
    assert attachment.sha256 and attachment.size == 57 * (49 * MIB // len(line))


def test_a_mail_of_many_named_parts_took_seconds_for_each_walk() -> None:
    """Its page walked it three times, and looked each time for every name that some program may show: 12 s."""
    odd = b'filename*0*=utf-8\'\'a%20; filename*1="=?utf-8?q?x?="; filename="' + b"\\(" * 600 + b'"; name="'
    part = b"--q\r\nContent-Disposition: attachment; " + odd + b'a\\"' * 300 + b'"\r\n\r\nx\r\n'
    mail = b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + part * 1900 + b"--q--\r\n"
    parts = PartList()
    assert fair_cpu_s(lambda: read(mail, parts)) < 3
    assert parts.parts[1].name == read(mail).attachments[0].name == "(" * 600
    assert parts == list_parts(mail)


@pytest.mark.parametrize("field", few([b"Content-Type: text/x" + b";a=b" * 60_000, b"a:\r\n" * 1990], 1))
def test_the_header_sections_of_all_parts_had_no_bound(field: bytes) -> None:
    """Each part has one. A mail of 50 MiB of parameters took half a minute, also before it was accepted."""
    mail = b"Content-Type: multipart/mixed; boundary=q\r\n\r\n" + (b"--q\r\n" + field + b"\r\n\r\nx\r\n") * 700
    mail = mail[: 50 * MIB]
    assert fair_cpu_s(lambda: doubts(mail, Bounds())) < 6
    assert "exceeds a limit (header)" in read(mail).problem


def test_the_html_of_a_mail_is_found_with_its_text() -> None:
    """A page needs both."""
    html = b"--q\r\nContent-Type: text/html\r\n\r\n"
    attached = b"--q\r\nContent-Type: message/rfc822\r\n\r\nContent-Type: text/html\r\n\r\n<p>inner\r\n"
    start = b"Content-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n\r\nhello\r\n"
    two, both = html + b"<p>a\r\n" + html + b"<p>b\r\n", attached + html + b"<p>c\r\n"
    for middle in (b"", html + b" \r\n", two, attached, both):
        mail = start + middle + b"--q--\r\n"
        assert read(mail).html == html_of(mail)
    assert read(mail).html == "<p>c" and read(mail).lines == ["hello"]
