"""Who a reader sees as the author of a mail, whatever its From field looks like."""

from __future__ import annotations

import pytest

from bridge.mime.authors import addresses, addresses_in_from, authors, read
from bridge.mime.words import readings_of_words
from tests.processor_time import is_linear

# Mail programs show all of these, and people read bank.example.
FORGED = [
    'ceo@"bank.example"',
    '<"ceo@bank.example">',
    "ceo@=?utf-8?q?bank.example?=",
    "CEO <ceo@=?utf-8?q?bank.example?=>",
    r"CEO <ceo@b\ank.example>",
    "CEO <ceo@bank.example,x@evil.example>",
    "CEO <ceo@bank.example;x@evil.example>",
    "CEO <ceo@bank.example x@evil.example>",
    "CEO <ceo@bank.example@evil.example>",
    'CEO <"ceo@bank.example"@evil.example>',
    "CEO <x@evil.example(ceo@bank.example)>",
    "CEO <@bank.example:x@evil.example>",
    "CEO <ceo@[bank.example]>",
    "ceo@bank.example!",
    "ceo@-.bank.example",
    "<ceo@bank.example\0.evil.example>",
    "CEO <ceo\uff20bank.example>",
    "CEO <ceo\ufe6bbank.example>",
    "CEO \u2039ceo\uff20bank.example\u203a",
    "CEO \u2039ceo@bank.example\u203a",
    "CEO \uff1cceo@bank.example\uff1e",
    "ceo\uff20bank.example, x@evil.example",
    'ceo@"bank.example", x@evil.example',
    "CEO <=?utf-8?q?ceo=40bank.example?=>, x@evil.example",
    "x@evil.example (, ceo@bank.example",
    "=?utf-8?b?Y2VvQGJhbmsuZXhhbXBsZQ==?==?utf-8?q?=00?=@evil.example",
    "ceo\uff20bank.example@evil.example",
    "X <x@evil.example> ceo@=?utf-8?q?bank.example?= (y)",
    'X <x@evil.example> "ceo@bank.example" (y)',
    "X <x@evil.example> (y) (ceo@bank.example",
    "(ceo@bank.example), X <x@evil.example>",
    '"ceo@bank.example", X <x@evil.example>',
    '"(ceo@bank.example)", X <x@evil.example>',
    '"CEO (ceo@bank.example)", x@evil.example',
    '"CEO (x) ceo@bank.example", X <x@evil.example>',
]
# Nobody sees another domain in these.
HONEST = {
    "": [],
    "root": [],
    "root (Cron Daemon)": [],
    "Cron Daemon <root>": [],
    "<root@(none)>": ["root@(none)"],
    "Undisclosed sender:;": [],  # RFC 6854
    "Team: a@shop.example, b@shop.example;": ["a@shop.example", "b@shop.example"],
    '"Doe, Jane" <j@shop.example>': ["j@shop.example"],
    "Doe, Jane <j@shop.example>": ["j@shop.example"],
    "j@shop.example (Jane (at work))": ["j@shop.example"],
    "\"'jane@corp.example' via List\" <list@shop.example>": ["list@shop.example"],
    "jane@corp.example <list@shop.example>": ["list@shop.example"],
    "=?utf-8?q?jane=40corp.example?= <list@shop.example>": ["list@shop.example"],
    "=?utf-8?q?Jane_=3Cj=40shop.example=3E?=": ["j@shop.example"],
    '"j@shop.example"': ["j@shop.example"],
    "\u5c71\u7530\uff20\u6771\u4eac <y@shop.example>": ["y@shop.example"],
    "<mailto:j@shop.example>": ["mailto:j@shop.example"],
    '"jane doe"@shop.example': ['"jane doe"@shop.example'],
    "<o'neil@shop.example>": ["o'neil@shop.example"],
    "j@[192.0.2.1]": ["j@[192.0.2.1]"],
    "<j@[IPv6:2001:db8::1]>": ["j@[IPv6:2001:db8::1]"],
    "scanner@192.0.2.1": ["scanner@192.0.2.1"],
    "Printer <p@M\u00fcller & Co. KG>": ["p@M\u00fcller & Co. KG"],
    "j@b\u00fccher.example": ["j@b\u00fccher.example"],
    "<j@\u0909\u0926\u093e\u0939\u0930\u0923.\u092a\u0930\u0940\u0915\u094d\u0937\u093e>": [
        "j@\u0909\u0926\u093e\u0939\u0930\u0923.\u092a\u0930\u0940\u0915\u094d\u0937\u093e"
    ],
    "j @ shop . example": ["j@shop.example"],
    "j@SHOP.example.": ["j@SHOP.example."],
    "b@!": ["b@!"],
    "J <j@a.example> (x@b.example)": ["j@a.example"],
    "J <j@a.example>(x@b.example) (y@c.example (z)), K <k@a.example>": ["j@a.example", "k@a.example"],
    '"Smith (j@a.example)", Corp <d@c.example>': ["d@c.example"],
}

# To Dovecot, and so to every client that lists mail by IMAP's ENVELOPE, the author of these is ceo@bank.example.
NAMED = [
    "ceo@bank.example <x@evil.example>",
    "ceo@bank.example<x@evil.example>",
    "ceo @ bank . example <x@evil.example>",
    "(x) ceo(y)@((z) y)bank.example <x@evil.example>",
    "ceo@bank.example (CEO) <x@evil.example>",
    "ceo@bank.example via List <x@evil.example>",
    "ceo@bank.example) <x@evil.example>",
    "ceo@bank.example] <x@evil.example>",
    "ceo@bank.example\x01 <x@evil.example>",
    "ceo@bank.example\\ <x@evil.example>",
    'ceo@bank.example" <x@evil.example>',
    "ceo@bank.example: <x@evil.example>",
    "ceo@bank.example <x@evil.example> \\",
    "Team: ceo@bank.example <x@evil.example>;",
    "x, ceo@bank.example <x@evil.example>",
    '"ceo"@bank.example <x@evil.example>',
    "'ceo@bank.example' <x@evil.example>",
]


@pytest.mark.parametrize("value", NAMED)
def test_a_name_without_quotes_was_the_author_of_some_programs(value):
    """By the standard, it is no name. Its domain was not asked, and no list knew it."""
    assert [address.rpartition("@")[2] for address in read(value).named] == ["bank.example"]
    assert any(address.endswith("@bank.example") for address in addresses(value))
    assert len(addresses_in_from(f"From: {value}\r\n".encode())[0]) > 1


@pytest.mark.parametrize(
    "value",
    [
        "john@shop.example <john@SHOP.example.>",
        "info@shop.example <noreply@shop.example>",
        "Hotel @ Booking <x@shop.example>",
        "The team @ corp.example <x@shop.example>",
        "Jane jane@corp.example <x@shop.example>",
        '"jane@corp.example" <x@shop.example>',
        "=?utf-8?q?jane=40corp.example?= <x@shop.example>",
    ],
)
def test_a_name_that_no_program_takes_for_another_domain_is_a_name(value):
    assert read(value).named == read(value).others == []
    assert len(addresses(value)) == 1


@pytest.mark.parametrize("value", FORGED)
def test_a_domain_that_readers_see_was_overlooked(value):
    """The field could not be read, so that neither the domain's policy nor an entry that blocks it counted."""
    assert any(address.endswith("@bank.example") for address in read(value).others)
    assert any(address.endswith("@bank.example") for address in addresses(value))
    assert any(address.endswith("@bank.example") for address in addresses_in_from(f"From: {value}\r\n".encode())[1])


@pytest.mark.parametrize("value", HONEST)
def test_odd_and_honest_fields_are_clear(value):
    """What has to do with names, comments, groups and encodings does not make an author doubtful."""
    assert read(value).others == []
    assert authors(value) == HONEST[value]
    assert addresses_in_from(f"From: {value}\r\n".encode())[1] == []


@pytest.mark.parametrize("blank", ["\u200b", "\u200e", "\u202c", "\u2060", "\ufeff", "\u00ad", "\u3164", "\u2800"])
def test_invisible_characters_hid_the_domain(blank):
    """They are not part of an address: an entry that blocks it did not match."""
    for value in (f"ceo@bank.example{blank}", f"CEO <ceo@ba{blank}nk.example>", f"CEO <c{blank}eo@bank.example>"):
        assert addresses(value) == ["ceo@bank.example"]
        assert read(value).others == []


WORD = "=?utf-8?b?Y2VvQGJhbmsuZXhhbXBsZQ==?="  # ceo@bank.example


@pytest.mark.parametrize(
    "value",
    [
        f"=?utf-8?q?x{WORD}",
        "=?utf-8?q?=?utf-8?b?PGNlb0BiYW5rLmV4YW1wbGU+?=",
        "=?x?q?=?utf-8?q?=3Cceo=40bank.example=3E?=",
        f"=?utf-8?q?a?b {WORD}",
        f"=?utf-8?q?@{WORD} x@",
    ],
)
def test_an_encoded_word_within_another_hid_the_author(value):
    """To some programs, a word ends at the first question mark, so what follows is another; we found no author."""
    found = read(value)
    assert any(address.endswith("@bank.example") for address in found.authors + found.others)
    assert any(address.endswith("@bank.example") for address in addresses(value))


def test_encoded_words_that_do_not_end_take_linear_time():
    assert is_linear(readings_of_words, "=?a?q?x" * 2000 + "?=", "=?a?q?x" * 8000 + "?=")
