"""Authentication-Results: fields with our name are found in every spelling, those of others stay, ours can be read."""

from __future__ import annotations

import json
import subprocess

import authres
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.mail.authentication_results import OwnResults
from tests.processor_time import fair_cpu_s
from tests.requirements import need, unavailable

OURS = OwnResults("mx.example.org")

OWN = [
    b" mx.example.org; spf=pass",
    b"mx.example.org; none",
    b" MX.Example.ORG; none",
    b"\r\n mx.example.org;\r\n\tspf=pass",
    b"\r\n \r\n\tmx.example.org 1;\r\n spf=pass",
    b" mx.example.org 1; spf=pass",
    b" mx.example.org/1; spf=pass",
    b" mx.example.org (the border) (x) 2 (y); spf=pass",
    b" (comment) mx.example.org; none",
    b" (a (nested \\) one) comment)\r\n (b) mx.example.org; none",
    b' "mx.example.org"; none',
    b' "mx\\.Example.org" 1; none',
    b' (c) "mx.exa\r\n mple.org"; none'.replace(b"\r\n ", b""),
    b" mx.example.org.; none",
    b" mx.example.org",
    "\uff4dx.example.org; none".encode(),  # a full-width letter: the same name (UTS 46)
    b" (unended mx.example.org; spf=pass",
    b' "unended mx.example.org; spf=pass',
    b" =?utf-8?q?mx.example.org?=; spf=pass",
    b' "=?utf-8?q?mx.example.org?="; spf=pass',
    b" mx.=?utf-8?q?example.org?=; spf=pass",
    b" (=?utf-8?q?=29_mx.example.org;_spf=3Dpass;_=28?=) other.example; none",  # decoded first, the comment ends
    b" mx.(c)example.org; none",
    b" mx . example.org (c) 1; none",
    b' "mx".example.org; none',
    b" \\mx.example.org; none",
    b" ; mx.example.org; none",
    b" <mx.example.org>; none",
    b" \x01mx.exam\0ple.org; none",
    b" \xa0mx.example.org\xa0; none",
    " \u00a0mx.example.org\u200b; none".encode(),
    b" " + b"()" * 20 + b" mx.(c)example.org; none",
]
OTHERS = [
    b" other.example; spf=pass smtp.mailfrom=mx.example.org",
    b" (mx.example.org) other.example; spf=pass",
    b" other.example (mx.example.org); spf=pass",
    b" mx.example.organic; none",
    b" amx.example.org; none",
    b' "mx.example.org x"; none',
    b" mx.example.org1; none",
    b" spf=pass (sender) smtp.mailfrom=mx.example.org; none",  # some write no name
    b" other.example;\r\n mx.example.org; none",
    b" (unended other.example; none",
    b"",
    b" \xff\xfe; none",
]


@pytest.mark.parametrize("value", OWN)
def test_our_name_is_found_in_every_spelling(value: bytes) -> None:
    """Comments, folding, letter case, a version number and quotes do not hide a forged field."""
    head = b"To: a\r\nauthentication-RESULTS :" + value + b"\r\nSubject: b\r\n"
    assert OURS.is_own(value)
    assert OURS.remove(head) == b"To: a\r\nSubject: b\r\n"


@pytest.mark.parametrize("value", OTHERS)
def test_fields_of_others_stay(value: bytes) -> None:
    """Also if our name is in a comment or in a result."""
    head = b"To: a\r\nAuthentication-Results:" + value + b"\r\nSubject: b\r\n"
    assert not OURS.is_own(value)
    assert OURS.remove(head) is head


@given(st.lists(st.sampled_from([*OWN, *OTHERS]), max_size=8))
def test_exactly_ours_are_removed(values: list[bytes]) -> None:
    """Every other byte remains, and the numbers that a milter needs agree with what is removed."""
    fields = [b"Authentication-Results:" + value + b"\r\n" for value in values]
    kept = b"".join(field for field, value in zip(fields, values, strict=True) if value not in OWN)
    head = b"".join(fields)
    assert OURS.remove(head) == kept
    assert list(OURS.own_of(head)) == [value in OWN for value in values]


@pytest.mark.parametrize(
    "head",
    [
        b"Authentication-Results: mx.example.org; spf=pass\r\n" * 10_000,
        b"Authentication-Results: (((((((((( other.example; spf=pass\r\n" * 10_000,
        b"Authentication-Results: " + b"(" * 500_000 + b"\r\n",
        b"Authentication-Results: " + b"()" * 250_000 + b"\r\n",
        b"Authentication-Results: " + b"(\\)" * 150_000 + b"\r\n",
        b'Authentication-Results: "' + b"\\a" * 250_000 + b"\r\n",
        b"Authentication-Results:" + b"\r\n x" * 100_000 + b"\r\n",
        b"Authentication-Results:" + b"\r\n \t" * 100_000 + b"mx.example.org\r\n",
        "".join(f"Authentication-Results: \xe4{i}.example.org; none\r\n" for i in range(10_000)).encode(),
    ],
    ids=["own", "open", "deep", "comments", "escaped", "quoted", "folded", "white", "international"],
)
def test_hostile_fields_take_linear_time(head: bytes) -> None:
    """Half a megabyte is looked at in less than a second, which quadratic time would exceed by far."""
    assert fair_cpu_s(lambda: OURS.remove(head)) < 1.0


@pytest.mark.parametrize("rest", [";dmarc=pass", " dmarc=pass", "\xe9", "\r\nX: y", ".a"])
def test_a_client_writes_nothing_into_our_results(rest: str) -> None:
    """A HELO or domain longer than a name was checked as far as a name goes, and written with all the rest."""
    long = "a." * 126 + "aa" + rest
    assert OURS.value(["auth:spf-none"], "", long) == "mx.example.org; spf=none"
    assert OURS.value(["auth:spf-none"], long, "") == "mx.example.org; spf=none"


@pytest.mark.parametrize(
    "name", [b"Authentication-Results\r\n ", b"Authentication-Results\x0b", b"Authentication-Results \t"]
)
def test_no_character_before_the_colon_hides_a_field(name: bytes) -> None:
    """Readers disagree about them: one that skips them would trust the field."""
    assert (
        OURS.remove(b"To: a\r\n" + name + b": mx.example.org; spf=pass\r\nSubject: b\r\n") == b"To: a\r\nSubject: b\r\n"
    )


TAGS = ["auth:spf-pass", "auth:dkim-fail", "auth:dmarc-reject", "url:x", "auth:spf-maybe", "auth:arc-pass"]


def test_results_are_written_from_tags() -> None:
    """A tag with the policy of a mail that fails DMARC says `fail`; what the registry does not know is left out."""
    assert OURS.value(TAGS, "example.com", "h.example") == (
        "mx.example.org; spf=pass smtp.mailfrom=example.com; dmarc=fail (p=reject); dkim=fail"
    )
    assert OURS.value(["auth:spf-none"], "", "h.example") == "mx.example.org; spf=none smtp.helo=h.example"
    assert OURS.value(["auth:spf-none"], "a b", "") == "mx.example.org; spf=none"
    assert OURS.value(["auth:dmarc-pass", "auth:dkim-none"], "", "") == "mx.example.org; dmarc=pass; dkim=none"
    assert OURS.value(["auth:dmarc-temperror"], "", "") == "mx.example.org; dmarc=temperror"
    assert OURS.value([], "example.com", "") == "mx.example.org; none"


@given(st.lists(st.text()), st.text(), st.text())
def test_nothing_from_outside_gets_into_our_field(tags: list[str], domain: str, helo: str) -> None:
    """Whatever the scanner, the sender and HELO say: one line of ASCII in RFC 8601's grammar."""
    value = OURS.value([*tags, *(f"auth:spf-{tag}" for tag in tags), "auth:spf-pass"], domain, helo)
    assert value.isascii() and value.isprintable() and len(value) < 900
    assert authres.AuthenticationResultsHeader.parse_value(value).authserv_id == "mx.example.org"


def test_authres_reads_our_field() -> None:
    """The Python library: name, methods, results and properties."""
    read = authres.AuthenticationResultsHeader.parse_value(OURS.value(TAGS, "example.com", ""))
    found = {one.method: (one.result, one.properties) for one in read.results}
    assert read.authserv_id == "mx.example.org" and set(found) == {"spf", "dkim", "dmarc"}
    assert [found[name][0] for name in ("spf", "dkim", "dmarc")] == ["pass", "fail", "fail"]
    assert [(p.type, p.name, p.value) for p in found["spf"][1]] == [("smtp", "mailfrom", "example.com")]
    assert not authres.AuthenticationResultsHeader.parse_value(OURS.value([], "", "")).results


def test_perl_reads_our_field() -> None:
    """Mail::AuthenticationResults, which Authentication Milter uses."""
    need("perl")
    script = (
        "use Mail::AuthenticationResults::Parser; use JSON::PP;"
        "my $r = Mail::AuthenticationResults::Parser->new->parse($ARGV[0]);"
        "print encode_json({id => $r->value->value, map { ($_->key => $_->value) } @{$r->children}});"
    )
    done = subprocess.run(
        ["perl", "-e", script, OURS.value(TAGS, "example.com", "")], capture_output=True, text=True, timeout=60
    )
    if "Can't locate Mail/" in done.stderr:
        unavailable("Mail::AuthenticationResults not installed (Debian: libmail-authenticationresults-perl)")
    assert json.loads(done.stdout) == {"id": "mx.example.org", "spf": "pass", "dkim": "fail", "dmarc": "fail"}


@pytest.mark.parametrize("value", ["\u4e00\u4e01.a;", "(" * 19, '"a'])
def test_a_header_section_of_short_fields_took_a_second(value: str) -> None:
    """All other mail of the worker waited. Beyond a hundred, odd fields are removed without being read."""
    field = f"Authentication-Results:{value}\r\n".encode()
    head = field * ((1 << 20) // len(field))
    assert fair_cpu_s(lambda: OURS.remove(head)) < 0.5
    other = b"Authentication-Results: other.example; none\r\n"
    assert OURS.remove(field * 100 + other * 9 + field * 9) == field * 100 + other * 9
    assert list(OURS.own_of(other * 101 + field * 101)) == [False] * 201 + [True]


@pytest.mark.parametrize("value", [b" other.example 1; none", b" (x) other.example; none", b" other.example (x); none"])
def test_plain_fields_do_not_count_as_odd(value: bytes) -> None:
    """Comments in the results of other servers are common: such a field is read however many there are."""
    odd = b"Authentication-Results:" + value + b"\r\n"
    plain = b"Authentication-Results: other.example; spf=pass (sender IP is 192.0.2.1)\r\n"
    assert OURS.remove(plain * 300 + odd * 100) == plain * 300 + odd * 100
    assert OURS.remove(plain * 300 + odd * 101 + plain) == plain * 300 + odd * 100 + plain
