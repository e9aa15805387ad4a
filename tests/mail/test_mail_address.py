"""The domain of an address: the spelling in which tenants, routes, lists and the configuration are compared."""

from __future__ import annotations

import idna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.mail.address import (
    MAX_DOMAIN,
    comparable_address,
    comparable_domain,
    domain_of,
    has_certain_domain,
    split_address,
)
from tests.processor_time import fair_cpu_s

# Spellings of one domain, each with the form in which it is compared.
SPELLINGS = [
    ("example.org", "example.org"),
    ("Example.ORG", "example.org"),
    ("example.org.", "example.org"),
    ("example.org...", "example.org"),
    ("example\u3002org\u3002", "example.org"),
    ("\uff45\uff58\uff41\uff4d\uff50\uff4c\uff45\uff0eorg", "example.org"),  # full-width
    ("exa\u00admple.org", "example.org"),  # a soft hyphen
    ("exa\u200bmple.org", "example.org"),  # zero-width space
    ("exa\u200dmple.org", "example.org"),  # a joiner where there is nothing to join
    ("exa\u200cmple.org", "example.org"),
    ("\u2147xample.org", "example.org"),  # double-struck italic e
    ("example.org\u2026", "example.org"),  # an ellipsis is three dots
    ("b\u00fccher.example", "xn--bcher-kva.example"),
    ("B\u00dcCHER.Example", "xn--bcher-kva.example"),
    ("bu\u0308cher.example", "xn--bcher-kva.example"),  # not composed
    ("BU\u0308CHER.example.", "xn--bcher-kva.example"),
    ("\uff42\u00fc\uff43her\uff61example", "xn--bcher-kva.example"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("XN--BCHER-KVA.Example.", "xn--bcher-kva.example"),
    ("\uff58\uff4e--bcher-kva.example", "xn--bcher-kva.example"),
    ("stra\u00dfe.example", "xn--strae-oqa.example"),
    ("STRA\u1e9eE.example", "xn--strae-oqa.example"),
    ("XN--STRAE-OQA.example", "xn--strae-oqa.example"),
    ("strasse.example", "strasse.example"),  # another domain, since IDNA 2008
    ("\u03b2\u03cc\u03bb\u03bf\u03c2.example", "xn--nxasmm1c.example"),  # a final sigma
    ("\u0928\u0947\u092a\u093e\u0932\u094d\u200d.example", "xn--l2bey1c2bzb0842a.example"),
    ("\u2615.example", "xn--53h.example"),  # no domain of IDNA 2008, but resolvable
    ("xn--53h.example", "xn--53h.example"),
    ("\u0378.B\u00fccher.example", "xn--zva.xn--bcher-kva.example"),  # an unassigned character beside a good label
    ("[192.0.2.1]", "[192.0.2.1]"),
    ("[IPv6:2001:DB8::1]", "[2001:db8::1]"),
    ("[ipv6:2001:0db8:0:0:0:0:0:1]", "[2001:db8::1]"),
    ("[IPv6:::ffff:192.0.2.1]", "[192.0.2.1]"),
    ("[x-tag:WHAT]", "[x-tag:what]"),
    ("[", "["),
    ("[\u00d5].", "[\u00f5]"),
    ("a..b", "a..b"),
    (".example.org", ".example.org"),
    ("-.\u00fc-.", "-.xn----dha"),
    ("", ""),
    ("...", ""),
    ("\u3002", ""),
]


@pytest.mark.parametrize(("written", "compared"), SPELLINGS, ids=lambda text: text.encode("unicode_escape").decode())
def test_each_spelling_of_a_domain_is_compared_in_one(written: str, compared: str) -> None:
    """Letter case, final dots, Unicode form and `xn--` form do not matter; a converted name stays as it is."""
    assert comparable_domain(written) == compared
    assert domain_of(f"user@{written}") == compared
    assert comparable_domain(compared) == compared


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ('"a@b"@example.org', "example.org"),
        ('"a@other.example"', ""),
        ('"a (b"@example.org', "example.org"),
        ("@relay.example,@other.example:user@example.org", "example.org"),
        ("user@example.org(Mr. User)", "example.org"),
        ("user@example.org(me@other.example)", "example.org"),
        ("user@(a (nested) one)example.org", "example.org"),
        ("user@ example . org ", "example.org"),
        ("Some User <user@example.org>", "example.org"),
        ('"other@b.example" <user@example.org> (c)', "example.org"),
        ("user@", ""),
        ("@example.org", "example.org"),
        ("postmaster", ""),
        ("example.org", ""),
        ("", ""),
    ],
)
def test_the_domain_follows_the_last_at_sign_outside_quotes_and_comments(address: str, domain: str) -> None:
    """A local part is not a domain, and a comment hides none."""
    assert domain_of(address) == domain


@pytest.mark.parametrize(
    "address",
    ["user@example.org", "User@Example.ORG.", '"user"@example.org', '"us\\er"@example.org', "@a:user@example.org",
     "user (me)@example.org", "Me <user@example.org>", "user@exa\u00admple.org"],
)  # fmt: skip
def test_an_address_has_one_spelling_too(address: str) -> None:
    """Needless quotes, letter case and a source route make no other address."""
    assert comparable_address(address) == "user@example.org"


@pytest.mark.parametrize("address", ['"a b"@example.org', '"a@b"@example.org', '"a"b@example.org', '""@example.org'])
def test_quotes_that_matter_stay(address: str) -> None:
    assert comparable_address(address) == address


def test_the_address_as_written_can_still_be_split() -> None:
    assert split_address('"a@B"@Example.ORG.') == ('"a@B"', "Example.ORG.")


@given(st.text(max_size=80))
@settings(max_examples=500)
def test_any_text_has_a_stable_form(text: str) -> None:
    """Nothing raises, and comparing twice changes nothing."""
    once = comparable_domain(text)
    assert comparable_domain(once) == once
    domain_of(text), comparable_address(text), domain_of("user@" + text)


@given(st.text(st.characters(min_codepoint=0x61, max_codepoint=0x2FFF), min_size=1, max_size=20))
@settings(max_examples=500)
def test_the_conversion_agrees_with_idna(label: str) -> None:
    """Whatever the `idna` package accepts has the same form here, in either spelling."""
    try:
        expected = idna.encode(label + ".example", uts46=True).decode()
    except idna.IDNAError:
        return
    assert comparable_domain(label + ".example") == expected
    assert comparable_domain(idna.decode(expected)) == expected


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30))
@settings(max_examples=500)
def test_punycode_agrees_with_the_codec(label: str) -> None:
    from bridge.mail.address import _punycode

    if not label.isascii():
        assert _punycode(label, 10_000) == label.encode("punycode").decode()


@pytest.mark.parametrize(
    "domain",
    [
        "\u00fc" * 1_000_000,
        ".\u00fc" * 1000,
        "\u2026\u00fc" * 1000,
        "\u0378\u00fc." * 600,
        "\u0628\u200c" * 1000,
        "\u00ad" * 2000 + "\u00fc",
        "\ufdfa" * 2000,
        ".".join(["".join(map(chr, range(0x4E00, 0x4E37)))] * 36),
        "(" * 2000,
        "(\\" * 1000,
        '"\\' * 1000,
    ],
    ids=range(11),
)
def test_no_domain_takes_long(domain: str) -> None:
    """A few milliseconds for the worst of them, also for a name far longer than any address."""
    assert fair_cpu_s(lambda: domain_of("user@" + domain), attempts=1) < 0.1


def test_a_name_of_more_than_the_limit_is_only_lowered() -> None:
    assert comparable_domain("\u00dc" * (MAX_DOMAIN + 1)) == "\u00fc" * (MAX_DOMAIN + 1)


@pytest.mark.parametrize(
    "ignored", ["\u00ad", "\u200b", "\u200d", "\u2060", "\ufeff", "\ufe0f", "\u3164", "\U000e0100"]
)
def test_ignored_characters_made_a_name_too_long_to_be_compared(ignored: str) -> None:
    """Browsers open the name that is left; no list knew it."""
    for count in (10, 2000, MAX_DOMAIN, 100_000):
        assert comparable_domain(f"Evil{ignored * count}.example") == "evil.example"
        assert domain_of(f"x@ev{ignored * count}il.example") == "evil.example"
    assert fair_cpu_s(lambda: comparable_domain(f"a{ignored}" * 500_000)) < 1


def long_name(number: int) -> str:
    return ".".join(["\u00ad" * 30 + "\u00fc\u00f6\u00e4" * 5 + f"{number:03}"] * 11)


@pytest.mark.parametrize(
    "address",
    [
        "u@" + long_name(1),
        "u@" + "a." * 126 + "abcd",
        "u@" + "\u00ad" * 240 + "victim.example.org",
        "u" * 1000 + "@example.org",
        "(" * 500 + ")" * 500 + "u@example.org",
    ],
)
def test_what_is_too_long_for_a_domain_is_not_certain(address: str) -> None:
    """Such a recipient is refused where domains decide: converting a thousand of them took ten seconds."""
    assert not has_certain_domain(address)
    assert has_certain_domain("u@" + "a." * 126 + "abc") and has_certain_domain("u@" + "\u00fc" * 50 + ".example")


def test_a_thousand_recipients_in_long_domains_are_converted_once() -> None:
    """The tenant, the route and the policy each ask for the domain of each recipient."""
    addresses = [f"u@{long_name(number)}" for number in range(500)]
    addresses += [f"({'(' * 200}{')' * 200})u{number}@(x) b.example" for number in range(500)]
    found = list(map(domain_of, addresses))
    assert list(map(domain_of, addresses)) == found
    assert fair_cpu_s(lambda: list(map(domain_of, addresses)), attempts=3) < 0.1
