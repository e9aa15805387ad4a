"""Schedules, reasons, people, settings and texts, without a process."""

from __future__ import annotations

import gettext
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bridge.api.reason_texts import SENTENCES
from bridge.config.digests import Digests
from bridge.config.model import Config
from bridge.digests.findings import in_words
from bridge.digests.languages import NAMES, language, preferred
from bridge.digests.message import DigestMaker, shown
from bridge.digests.people import People, read_aliases
from bridge.digests.sample import part_of, sample
from bridge.digests.schedule import Clock, is_due
from bridge.digests.settings import DigestSettings
from bridge.digests.signed_links import LinkKeys
from bridge.digests.why_held import Reason, reason_of
from bridge.errors import ConfigError
from bridge.mail.envelope import Envelope
from bridge.quarantine.record import MailRecord
from bridge.runtime import yaml_file
from bridge.user_pages.copies import Copy, may_allow, may_block, may_release
from tools import translations

ZURICH = ZoneInfo("Europe/Zurich")
_PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|\{\d\}")
TENANT = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


@pytest.mark.parametrize(
    ("schedule", "now", "last_at", "oldest_new", "due"),
    [
        ("daily", "2026-11-16 06:59", "2026-11-15 07:00", "2026-11-15 20:00", False),
        ("daily", "2026-11-16 07:00", "2026-11-15 07:00", "2026-11-15 20:00", True),
        ("daily", "2026-11-16 09:00", "2026-11-16 07:00", "2026-11-16 08:00", False),
        ("daily", "2026-11-16 09:00", "2026-11-10 07:00", "2026-11-16 08:00", False),  # new since this morning
        ("daily", "2026-11-16 09:00", "2026-11-10 07:00", "2026-11-16 06:00", True),
        ("daily", "2026-03-29 07:00", "2026-03-28 07:00", "2026-03-28 20:00", True),  # the clocks change
        ("daily", "2026-10-25 06:59", "2026-10-24 07:00", "2026-10-24 20:00", False),
        ("weekly", "2026-11-15 23:00", "2026-11-09 07:00", "2026-11-10 07:00", False),  # a Sunday
        ("weekly", "2026-11-16 07:01", "2026-11-09 07:00", "2026-11-10 07:00", True),  # a Monday
        ("weekly", "2026-11-17 07:01", "2026-11-16 07:01", "2026-11-10 07:00", False),
        ("hourly", "2026-11-16 09:59", "2026-11-16 09:01", "2026-11-16 09:30", False),
        ("hourly", "2026-11-16 10:00", "2026-11-16 09:01", "2026-11-16 09:30", True),
        ("immediate", "2026-11-16 10:00", "2026-11-16 09:58", "2026-11-16 09:59", True),
        ("never", "2026-11-16 10:00", "2026-01-01 00:00", "2026-01-01 00:00", False),
    ],
)
def test_when_a_digest_is_due(schedule: str, now: str, last_at: str, oldest_new: str, due: bool) -> None:
    clock = Clock("07:00", "monday", "Europe/Zurich")
    assert is_due(schedule, clock, now=at(now), last_at=at(last_at), oldest_new=at(oldest_new)) is due


def test_immediate_is_at_most_once_a_minute() -> None:
    now = at("2026-11-16 10:00")
    assert not is_due("immediate", Clock(), now=now, last_at=now - 59, oldest_new=now)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"verdict": "spam", "tags": ["spam:gtube"]}, Reason.SPAM),
        ({"verdict": "spam", "tags": ["spam:bulk", "malware:eicar"]}, Reason.MALWARE),
        ({"verdict": "clean", "tags": ["ClamAV:Win.Trojan"]}, Reason.MALWARE),
        ({"verdict": "Malware", "tags": []}, Reason.MALWARE),
        ({"verdict": "spam", "tags": ["spam:bulk", "mime:executable"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "incomplete"]}, Reason.OTHER),
        ({"verdict": "suspicious", "tags": ["rspamd:add-header", "pdf:launch"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "office:dde"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "attachment:builds-file"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "icap:blocked"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "auth:dmarc-reject"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "auth:dmarc-temperror"]}, Reason.OTHER),
        ({"verdict": "suspicious", "tags": ["auth:dmarc-temperror"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["spam:bulk", "auth:spf-fail", "sender:unaligned"]}, Reason.SPAM),
        ({"verdict": "phishing", "tags": ["spam:bulk"]}, Reason.PHISHING),
        ({"verdict": "blocked", "tags": ["list:blocked-senders", "spam:bulk"]}, Reason.BLOCKED),
        ({"verdict": "", "tags": ["rspamd:reject"]}, Reason.SPAM),
        ({"verdict": "", "tags": ["auth:spf-pass"]}, Reason.OTHER),
        ({"verdict": None, "tags": None}, Reason.OTHER),
        ({"verdict": "something new", "tags": ["x:y"]}, Reason.OTHER),
        ({"verdict": "spam", "tags": ["clamav:ok", "VIRUS:none", "icap:clean", "no-virus", "virus-none"]}, Reason.SPAM),
    ],
)
def test_the_most_serious_reason_counts(facts: dict[str, object], reason: Reason) -> None:
    assert reason_of(MailRecord("1", datetime.now(UTC), facts=facts)) is reason


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("malware:Worm.X-ok", Reason.MALWARE),
        ("malware:none", Reason.MALWARE),
        ("malware:no-virus-found-inside.exe", Reason.MALWARE),
        ("clamav:Win.Trojan-clean", Reason.MALWARE),
        ("phishing:not-spam", Reason.PHISHING),
        ("limit:archive-none", Reason.OTHER),
        ("mime:executable-clean", Reason.OTHER),
    ],
)
def test_a_dangerous_tag_that_ends_like_a_harmless_one_did_not_count(tag: str, reason: Reason) -> None:
    """So users could release the mail themselves, as spam."""
    facts = {"verdict": "spam", "tags": ["spam:bulk", tag]}
    assert reason_of(MailRecord("1", datetime.now(UTC), facts=facts)) is reason


def test_a_damaged_record_is_not_released_by_users() -> None:
    assert reason_of(MailRecord("1", datetime.now(UTC), facts={"verdict": "spam"}, is_damaged=True)) is Reason.OTHER


def test_whose_address_it_is(tmp_path: Path) -> None:
    file = tmp_path / "aliases"
    file.write_text(
        "# ours\ninfo@a.example jane@a.example\nsales@a.example info@a.example\n"
        "@jane.example jane@a.example\n@old.example @a.example\nout@a.example stranger@elsewhere.example\n"
        "loop1@a.example loop2@a.example\nloop2@a.example loop1@a.example\n"
    )
    people = People(["a.example", "Jane.Example.", "old.example"], ["list@a.example", "@robots.example"], file, "+")
    for recipient, person in {
        "Jane@A.Example": "jane@a.example",
        "info@a.example": "jane@a.example",
        "sales@a.example": "jane@a.example",
        "anything@jane.example": "jane@a.example",
        "jim@old.example": "jim@a.example",
        "info@old.example": "jane@a.example",
        "jane+shop@a.example": "jane@a.example",
        "+x@a.example": "+x@a.example",
        "list@a.example": None,
        "list@old.example": None,
        "out@a.example": None,  # it leads to a stranger
        "x@elsewhere.example": None,
        "x@robots.example": None,
        "x%elsewhere.example@a.example": None,
        "postmaster": None,
        "": None,
    }.items():
        assert people.person_of(recipient) == person, recipient
    assert people.person_of("loop1@a.example") in ("loop1@a.example", "loop2@a.example")


def test_without_a_delimiter_an_extension_is_another_mailbox() -> None:
    assert People(["a.example"]).person_of("jane+shop@a.example") == "jane+shop@a.example"


def test_an_extension_in_quotes_was_cut_within_them(tmp_path: Path) -> None:
    """The digest was sent to an address whose quotes do not end."""
    file = tmp_path / "aliases"
    file.write_text("")
    address = '"jane+a b"@a.example'
    assert People(["a.example"], [], file, "+").person_of(address) == address


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one@a.example\n", 1),
        ("\nnobody jane@a.example\n", 2),
        ("x@a.example @b.example\n", 1),
        ("x@a.example y@a.example\nx@a.example z@a.example\n", 2),
    ],
)
def test_a_mistake_in_the_aliases_names_its_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"line {line}"):
        read_aliases(text)


def test_malware_is_never_released_by_users_and_tenants_override_single_keys() -> None:
    conf = Digests.model_validate(
        {
            "schedule": "daily", "from": "q@a.example", "users": {"spam": "request", "delete": False},
            "tenants": [{"uid": TENANT, "schedule": "weekly", "language": "de", "users": {"spam": "release"}}],
        }
    )  # fmt: skip
    settings = DigestSettings(conf, Path(), {"a.example": TENANT}, "mx.example")
    own, other = settings.of("x@a.example"), settings.of("x@b.example")
    assert (own.schedule, own.language, own.may(Reason.SPAM), own.users.delete) == ("weekly", "de", "release", False)
    assert (other.schedule, other.language, other.may(Reason.SPAM)) == ("daily", "en", "request")
    assert own.may(Reason.MALWARE) == other.may(Reason.MALWARE) == "request"
    with pytest.raises(ValueError, match="malware"):
        Digests.model_validate({"users": {"malware": "release"}})


@pytest.mark.parametrize("order", [("x@a.example", "x@b.example"), ("x@b.example", "x@a.example")])
def test_of_a_person_in_two_tenants_both_must_allow_it(order: tuple[str, ...]) -> None:
    """The rights of the address that happened to come first were those of all."""
    may_all = {"spam": "release", "delete": True, "preview": True, "block_senders": True}
    may_nothing = {"spam": "nothing", "delete": False, "preview": False, "block_senders": False}
    tenants = [{"uid": TENANT, "users": may_all}, {"uid": OTHER, "users": may_nothing}]
    conf = Digests.model_validate({"from": "q@a.example", "tenants": tenants})
    allow_by = {TENANT: "users", OTHER: "nobody"}
    by_domain = {"a.example": TENANT, "b.example": OTHER}
    settings = DigestSettings(conf, Path(), by_domain, "mx.example", lambda tenant: allow_by[tenant or TENANT])
    mail = MailRecord("1", datetime.now(UTC), Envelope("s@c.example"), facts={"verdict": "spam"})
    both = Copy(mail, order, "x", tuple(map(settings.of, order)))
    assert not both.may_read and not both.may_delete
    assert (may_release(both), may_block(both), may_allow(both)) == ("nothing", "nothing", "nothing")
    one = Copy(mail, ("x@a.example",), "x", (settings.of("x@a.example"),))
    assert one.may_read and one.may_delete
    assert (may_release(one), may_block(one), may_allow(one)) == ("release", "allow", "allow")


@pytest.mark.parametrize(
    ("digests", "problem"),
    [
        ({"schedule": "daily"}, "digests.from"),
        ({"schedule": "daily", "from": "q@a.example", "domains": []}, "digests.domains"),
        ({"schedule": "sometimes"}, "immediate"),
        ({"schedule": "daily", "from": "no address"}, "expected an address"),
        ({"schedule": "daily", "from": "a@b.example\r\nBcc: x@y.example"}, "expected an address"),
        ({"time_zone": "Mars/Olympus"}, "expected a time zone"),
        ({"tenants": [{"uid": TENANT}]}, "is not listed in tenants"),
        ({"page": {"address": "0.0.0.0:9084"}}, "https://"),
        ({"at": "25:00"}, "at"),
        ({"languages": ["it"]}, "en, de, fr or es"),
    ],
)
def test_mistakes_in_the_configuration_are_named(tmp_path: Path, digests: dict[str, object], problem: str) -> None:
    data = {
        "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "127.0.0.1:10026"},
        "digests": digests,
    }
    with pytest.raises(ConfigError) as failed:
        yaml_file.load(tmp_path / "bridge.yml", Config, yaml_file.dump(data))
    assert problem in str(failed.value)


@pytest.mark.parametrize(
    "hostile",
    ["http://evil.example/x", "www.evil.example", "evil.example", "mail me at a@evil.example", "ftp://e.example:80/"],
)
def test_no_program_makes_a_link_of_a_subject(hostile: str) -> None:
    for pattern in ("://", "w.e", "l.e", "@e", "e.e"):
        assert pattern not in shown(hostile, 100)


def test_what_is_shown_is_short_and_has_no_control_characters() -> None:
    assert len(shown("x" * 1000, 100)) == 100
    assert "\u202e" not in shown("abc\u202egpj.exe", 100)
    assert "\n" not in shown("a\r\nBcc: x", 100)


def test_every_text_is_translated_into_every_language() -> None:
    wanted = translations.texts()
    assert len(wanted) > 100
    assert {po.parent.parent.name for po in translations.po_files()} == set(NAMES) - {"en"}
    for po in translations.po_files():
        found = translations.translated(po)
        assert wanted - set(found) == set(), po
        assert set(found) - wanted == {""}, f"{po}: no longer used"
        assert [text for text, said in found.items() if not all(said)] == []


def test_compiled_translations_are_those_of_the_sources() -> None:
    """`make translations` was not forgotten."""
    for po in translations.po_files():
        with po.with_suffix(".mo").open("rb") as file:
            compiled = gettext.GNUTranslations(file)
        for text, said in translations.translated(po).items():
            if text:
                one, *many = said
                assert compiled.ngettext(text, text, 1) == one if many else compiled.gettext(text) == one, text


def test_placeholders_are_the_same_in_every_language() -> None:
    for po in translations.po_files():
        for text, said in translations.translated(po).items():
            for each in said if text and "%Y" not in text else ():
                assert sorted(_PLACEHOLDER.findall(each)) == sorted(_PLACEHOLDER.findall(text)), text


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        ("en", "claims to be PayPal, sent from example.biz", "claims to be PayPal, sent from example.biz"),
        ("de", "claims to be PayPal, sent from example.biz", "gibt sich als PayPal aus, gesendet von example.biz"),
        ("fr", "hides 300 characters of text", "cache 300 caractères de texte"),
        ("es", "a QR code leads to evil.example", "un código QR lleva a evil.example"),
        (
            "es",
            "shows X as the sender, but was sent from an unknown domain",
            "muestra X como remitente, enviado desde un dominio desconocido",
        ),
        ("de", "claims to be A, sent from b.c, sent from d.e", "gibt sich als A, sent from b.c aus, gesendet von d.e"),
        ("de", "claims to be {0} {x} %s, sent from {1}", "gibt sich als {0} {x} %s aus, gesendet von {1}"),
        ("de", "a sentence of another scanner {0}", "a sentence of another scanner {0}"),
    ],
)
def test_findings_are_in_the_language_of_the_reader(code: str, reason: str, said: str) -> None:
    assert in_words([reason], language(code)) == [said]


@pytest.mark.parametrize("code", list(NAMES))
def test_every_sentence_of_the_service_is_recognised(code: str) -> None:
    """Whatever it was found in. A value that repeats the sentence may be divided elsewhere, but is shown as a whole."""
    for sentence in SENTENCES.values():
        translated = language(code).say(sentence)
        for value in ("a.example", "", "x" * 300):
            assert in_words([sentence.format(value, value)], language(code)) == [translated.format(value, value)]
        (said,) = in_words([sentence.format(sentence, sentence)], language(code))
        assert sorted(said) == sorted(translated.format(sentence, sentence))
    assert len(in_words(["the sender's address is malformed"] * 10, language(code))) == 3


def test_the_browser_s_language_is_chosen_among_those_offered() -> None:
    offered = ["en", "de", "fr"]
    assert preferred("fr-CH, fr;q=0.9, en;q=0.8", offered) == "fr"
    assert preferred("it, de;q=0.5, en;q=0.4", offered) == "de"
    assert preferred("", offered) == preferred("it", offered) == preferred(";q=x,,", offered) == "en"
    assert language("xx").code == "en"


def test_nobody_signs_in_with_a_link_of_a_sample(tmp_path: Path) -> None:
    """Everyone who can open the preview in the console sees it, and the address in it may exist."""
    keys = LinkKeys(tmp_path / "keys")
    keys.make()
    config = Digests.model_validate({"from": "q@example.org", "domains": ["example.org"]})
    text = part_of(sample(DigestMaker(DigestSettings(config, tmp_path, {}, "host.example"), keys)), "plain")
    found = re.findall(r"/[lu]/(\S+)", text)
    assert len(found) == 11 and all(token.endswith("-sample") for token in found)


@pytest.mark.parametrize("odd", ["=?utf-8?q?a=0d=0ab?=", "=?utf-8?q?=41?=", '"a\u2028b"', "\u202ea"])
def test_an_address_that_no_field_can_have_made_a_traceback(tmp_path: Path, odd: str) -> None:
    """Anyone could type one on the sign-in page; an encoded word became another address."""
    keys = LinkKeys(tmp_path / "keys")
    keys.make()
    config = Digests.model_validate({"from": "q@example.org", "domains": ["example.org"]})
    settings, address = DigestSettings(config, tmp_path, {}, "host.example"), f"{odd}@example.org"
    values = {"code": "12345678", "person": "x", "minutes": 15}
    assert People(["example.org"]).person_of(address) == address
    note = DigestMaker(settings, keys).note(address, settings.of(address), language("en"), "code.txt", 0.0, **values)
    head = note.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert b"To: undisclosed-recipients:;" in head and b"b?=" not in b"".join(head)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("fr; q=0.5, de ; q=0.9", "de"),
        ("de;q=0, en;q=0.1", "en"),
        ("de;q=nan, fr;q=inf", "en"),
        ("fr, de", "fr"),
        ("*;q=0.1", "en"),
        ("DE-at", "de"),
    ],
)
def test_the_weights_of_languages_are_read_as_browsers_write_them(header: str, chosen: str) -> None:
    assert preferred(header, ["en", "de", "fr"]) == chosen


@pytest.mark.parametrize("schedule", ["immediate", "hourly", "daily", "weekly"])
def test_a_clock_that_is_set_back_keeps_nobody_waiting(schedule: str) -> None:
    """The last digest was sent, and the mail held, while the clock was a year ahead."""
    now, ahead = at("2026-11-16 10:00"), at("2027-11-16 10:00")
    assert is_due(schedule, Clock(), now=now, last_at=ahead, oldest_new=at("2026-11-01 10:00"))
    assert is_due(schedule, Clock(), now=now, last_at=0.0, oldest_new=ahead)


def test_the_hour_that_comes_twice_has_one_turn() -> None:
    """On 25 October, 02:30 comes twice; the second time is not another turn."""
    clock, first = Clock("02:30", "monday", "Europe/Zurich"), datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()
    for minutes in range(0, 600, 10):
        assert clock.last_turn("daily", first + 60 * minutes) == first, minutes


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ nothing.at.all }}"]
)
def test_whatever_a_template_raises_names_its_file(tmp_path: Path, template: str) -> None:
    (tmp_path / "digest.txt").write_text(template)
    config = Digests.model_validate({"from": "q@example.org", "domains": ["example.org"], "templates": "."})
    keys = LinkKeys(tmp_path / "keys")
    keys.make()
    with pytest.raises(ConfigError, match=r"digests\.templates: digest\.txt in "):
        sample(DigestMaker(DigestSettings(config, tmp_path, {}, "host.example"), keys))
