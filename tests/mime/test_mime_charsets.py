"""Charsets and encoded words: the sender names the charset, and no name of his reaches Python's search for codecs."""

from __future__ import annotations

import encodings
from binascii import b2a_base64

import pytest

from bridge.mime.mail_text import html_of, read
from bridge.mime.words import as_text, codec_of, codecs_of, decode_words, subject_text
from bridge.quarantine.record import subject
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s

PYTHON_ONLY = [
    *("rot13", "rot_13", "zip", "zlib", "bz2", "hex", "base64", "uu", "quopri", "mbcs", "oem", "undefined", "charmap"),
]


def mail_of_words(charset: str, count: int, words: int) -> bytes:
    names = " ".join(f"=?{charset.format(number)}?q?aaaaaaaaaa-b9b9b9b9?=" for number in range(words))
    part = f'--b\r\nContent-Disposition: attachment; filename="{names}.txt"\r\n\r\nx\r\n'
    return b"From: a@b\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n" + part.encode() * count + b"--b--\r\n"


@pytest.mark.parametrize("charset", PYTHON_ONLY)
def test_a_codec_of_python_is_no_charset(charset: str) -> None:
    assert codec_of(charset) == "latin_1"
    assert decode_words(f"=?{charset}?q?a=41?=") == "aA"
    assert as_text(b"evil.js", charset) == "evil.js"


def test_unknown_charsets_stayed_in_memory_for_ever() -> None:
    """Python remembers each name that it does not find."""
    before = len(encodings._cache)  # type: ignore[attr-defined]
    inspect(mail_of_words("x-cuts-{}", 3, 50), Limits())
    subject(b"Subject: " + b" ".join(b"=?x-cuts-s%d?q?a?=" % i for i in range(9)) + b"\r\n")
    kinds = (b"plain", b"html") * 25
    parts = b"".join(
        b"--b\r\nContent-Type: text/%b; charset=x-cuts-p%d\r\n\r\n\r\n" % (kind, i) for i, kind in enumerate(kinds)
    )
    read(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + parts)  # of each part, when somebody looked at the mail
    html_of(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + parts)
    unknown = [name for name in encodings._cache if "cuts" in name]  # type: ignore[attr-defined]
    assert unknown == []
    assert len(encodings._cache) < before + 20  # type: ignore[attr-defined]


@pytest.mark.parametrize("charset", ["punycode", "x-unknown-{}", "gb18030", "utf-7", "cp1253"])
def test_names_in_a_chosen_charset_stalled_the_daemon(charset: str) -> None:
    """57 KB of words in `punycode` took a third of a second of the event loop."""
    mail = mail_of_words(charset, 30, 40)
    assert fair_cpu_s(lambda: inspect(mail, Limits())) < 2  # the whole of it, in a process


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        *(
            ("utf-8", "ä"),
            ("ISO-8859-15", "€"),
            ("windows-1251", "я"),
            ("KOI8-R", "я"),
            ("gb2312", "你"),
            ("cp037", "a"),
        ),
        *(("Shift_JIS", "あ"), ("iso-2022-jp", "あ"), ("big5", "你"), ("ks_c_5601-1987", "한"), ("windows-874", "ก")),
        *(("utf-16le", "ä"), ("UTF_16BE", "ä"), ("unicode-1-1-utf-7", "ä")),
    ],
)
def test_charsets_of_real_mail_are_decoded(charset: str, text: str) -> None:
    known = {"windows-874": "cp874", "unicode-1-1-utf-7": "utf-7"}.get(charset, charset)
    assert as_text(text.encode(known), charset) == text


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("=?utf-8?q?a=C3=A9?= =?utf-8?q?b?=", "aéb"),
        ("x =?utf-8?b?ZXZpbC5qcw==?= y", "x evil.js y"),
        ("=?gb2312?b?xOM=?= =?gb2312?b?usM=?=", "你好"),
        ("=?utf-8?q?=E4=BD?= =?utf-8?q?=A0?=", "你"),
        ("=?a?x?b?= =?utf-8*en?Q?evil=2Ejs_?=", "=?a?x?b?= evil.js "),
        ("=?a", "=?a"),
        ("=?a?q?x", "=?a?q?x"),
    ],
)
def test_encoded_words(text: str, decoded: str) -> None:
    assert decode_words(text) == decoded


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"", ""),
        (b" a plain subject \r\n", "a plain subject"),
        (b"two  spaces,\r\n\tfolded", "two spaces, folded"),
        (b"a\0b\x7f", "a b\x7f"),
        (b"x\xa0", "x\ufffd"),
        ("h\u00e4".encode(), "h\u00e4"),
        (b"=?utf-8?q?a=C3=A9?=", "a\u00e9"),
        (b"word " * 100, ("word " * 100)[:200]),
    ],
)
def test_a_plain_subject_is_shown_as_any_other(raw: bytes, shown: str) -> None:
    """Plain subjects are recognised early, because every mail has one."""
    assert subject_text(raw) == shown


OTHER_SETS = [b"\x1b.J\x1bNw", b"\x1b\x1b.J.J\x1bNw", b"\x1b.\x1b.J\x1bNw"]


@pytest.mark.parametrize("escapes", OTHER_SETS)
def test_a_set_of_characters_that_python_does_not_know_stopped_everything(escapes: bytes) -> None:
    """Python's codec raises RuntimeError, whatever it is told to do about errors."""
    assert subject_text(b"=?iso-2022-jp-2?b?" + b2a_base64(escapes + b" evil.js", newline=False) + b"?=").endswith(
        " evil.js"
    )
    text = escapes + b"\r\nhttps://evil.example/x\r\n"
    for charset in (b"iso-2022-jp-2", b"us-ascii"):
        mail = b"From: a@b.example\r\nContent-Type: text/plain; charset=" + charset + b"\r\n\r\n\x1b$B\x1b(B" + text
        assert "evil.example" in inspect(mail, Limits()).hosts


HIDDEN = '<a href="https://evil.example/x">x</a>'
UTF_7 = HIDDEN.replace("https://", "+AGgAdAB0AHAAcwA6AC8ALw-").encode()


@pytest.mark.parametrize(
    "charset",
    [
        *(f"{{}}{end}x" for end in "/:?@=[](),<\\ *"),
        "(x){}",
        "((x) y) {}/z",
        "{}/" + "x" * 300,
        "(" + "x" * 300 + "){}",
        "us-ascii; charset={}/x",
        "us-ascii; charset=(x){}",
    ],
)
@pytest.mark.parametrize(("name", "page"), [("utf-7", UTF_7), ("cp037", HIDDEN.encode("cp037"))])
def test_a_charset_without_quotes_went_on_behind_the_character_that_ends_it(
    charset: str, name: str, page: bytes
) -> None:
    """Dovecot tells every client `utf-7` for `charset=utf-7/x`; the links in such a text were not seen."""
    field = f"Content-Type: text/html; charset={charset.format(name)}\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert "evil.example" in inspect(b"From: a@b\r\n" + field.encode() + b2a_base64(page), Limits()).hosts


def test_a_charset_without_quotes_is_read_whole_and_up_to_its_end() -> None:
    assert codecs_of("unicode/11utf8") == ("utf_8", "utf_16")
    assert codecs_of("ISO_646.irv:1991") == ("utf_8", "latin_1")  # a program that ends it at the colon
    assert codecs_of("utf-7/x") == ("latin_1", "utf_7")
    assert codecs_of("iso-8859-1/x") == ("latin_1",)
    assert as_text(b"+AGE-", "utf-7/x") == "a"
