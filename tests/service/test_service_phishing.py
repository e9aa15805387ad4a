"""Phishing: which signals a mail gives, what they count for, and how the service explains it."""

from __future__ import annotations

import base64
import io
import json
import os
import time
from email.message import EmailMessage
from pathlib import Path

import pytest

from bridge.api.scanning import Decision
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.content.optional_formats import formats_of
from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.explanation import explain
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.phishing_judgement import load_model
from bridge.service.analyzer_settings import Analyzers, Mime, Phishing
from bridge.service.decision_settings import Decisions
from bridge.service.detection import brands, domains, model, page, reasons
from bridge.service.detection.phishing import Search
from bridge.service.settings import ServiceConfig
from tests.daemon.process_kit import scanbridge
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.service_kit import CONFIG, service

SEARCH = Limits(phishing=Search())


def letter(html: str = "", text: str = "", attach: tuple[str, str, str] | None = None, **fields: str) -> bytes:
    """A mail; `attach` is a type, a name and a content."""
    mail = EmailMessage()
    given = {"From": "Jo <jo@sender.example.org>", "To": "ann@example.net", "Subject": "Minutes", **fields}
    for name, value in given.items():
        mail[name.replace("_", "-")] = value
    mail["Date"] = "Mon, 16 Nov 2026 09:00:00 +0000"
    mail["Message-ID"] = "<1@example.org>"
    mail.set_content(text or "Hello Ann, see you on Monday.\n")
    if html:
        mail.add_alternative(html, subtype="html")
    if attach:
        kind, name, content = attach
        mail.add_attachment(
            content.encode(), maintype=kind.partition("/")[0], subtype=kind.partition("/")[2], filename=name
        )
    return mail.as_bytes().replace(b"\n", b"\r\n")


def signals_of(content: bytes, envelope_from: str = "") -> dict[str, str]:
    found = inspect(content, Limits(phishing=Search(), envelope_from=envelope_from))
    assert found.phishing is not None and "failed:phishing" not in found.tags
    return found.phishing.signals


@pytest.mark.parametrize(
    ("expected", "content"),
    [
        ("impersonation:display-name", letter(From="PayPal Service <info@shop.example.biz>")),
        ("impersonation:display-name", letter(From="=?utf-8?q?P=D0=B0yPal?= <info@shop.example.biz>")),
        ("impersonation:display-name", letter(From="C o i n b a s e <info@shop.example.biz>")),
        ("impersonation:domain", letter(From="Service <info@paypal-verify.example.biz>")),
        ("impersonation:domain", letter(From="Service <info@paypa1-verify.com>")),
        ("impersonation:subject", letter(Subject="Your Netflix account")),
        ("impersonation:local-part", letter(From="<netflix@sender.example.org>")),
        ("impersonation:name-is-domain", letter(From='"netflix.com" <a@sender.example.org>')),
        (
            "impersonation:name-is-domain",
            letter().replace(b"From: Jo <", b"From: =?utf-8?b?bmV0ZmxpeC5?jb20=?= <"),
        ),
        ("sender:freemail-reply", letter(Reply_To="jo@gmail.com")),
        ("sender:freemail-role", letter(From="Security Team <jo81@gmail.com>")),
        ("sender:impossible-domain", letter(From="Jo <jo@mailer>")),
        ("sender:impossible-domain", letter(From="Jo <jo@host.notatld>")),
        ("sender:random-domain", letter(From="Jo <jo@qtbmpxeikvoxw.com>")),
        ("header:needless-encoding", letter().replace(b"Subject: Minutes", b"Subject: =?utf-8?B?SW52b2ljZQ==?=")),
        ("header:raw-8bit", letter().replace(b"Subject: Minutes", "Subject: Grüße".encode())),
        ("header:lookalike-letters", letter(Subject="Your p\u0430ssword")),
        ("url:lookalike", letter('<a href="https://paypal.com.login.example.biz/x">go</a>')),
        ("url:lookalike", letter('<a href="https://xn--pypal-4ve.com/x">go</a>')),
        ("url:shows-other-host", letter('<a href="https://evil.example.biz/">https://www.paypal.com/login</a>')),
        ("url:shortener", letter('<a href="https://bit.ly/abc">go</a>')),
        ("url:free-hosting", letter('<a href="https://my-bank.web.app/">go</a>')),
        ("url:random-host", letter('<a href="https://qtbmpxeikvoxw.com/">go</a>')),
        ("url:recipient", letter('<a href="https://evil.example.biz/#ann@example.net">go</a>')),
        ("url:redirect", letter('<a href="https://a.example.com/r?u=https://evil.example.biz/">go</a>')),
        ("url:not-the-brand", letter('<a href="https://x.example.biz">go</a>', From="PayPal <a@example.biz>")),
        ("url:mailto-only", letter('<a href="mailto:claim@example.biz">claim</a>')),
        ("html:hidden-text", letter(f'<p>Hi</p><div style="display:none">{"words of a book " * 30}</div>')),
        ("html:picture-link", letter('<a href="https://evil.example.biz/"><img src="cid:1"></a>')),
        ("html:password-field", letter('<form action="https://e.example.biz"><input type="password"></form>')),
        ("html:split-words", letter("<p>ver\u200bify pass\u200bword acc\u200bount</p>")),
        ("html:letters-as-numbers", letter("<p>" + "".join(f"&#{ord(c)};" for c in "verifyyourpasswordnow") + "</p>")),
        ("attachment:page", letter(attach=("text/html", "invoice.html", "<p>x</p>"))),
        (
            "attachment:credential-form",
            letter(attach=("text/html", "login.htm", '<form action="//e.example"><input type="password"></form>')),
        ),
        ("text:credentials", letter(text="Please verify your account.")),
    ],
)
def test_a_signal_is_found(expected: str, content: bytes) -> None:
    """Each signal has a mail that gives it."""
    assert expected in signals_of(content)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "\u13e2ay\u13e2al",
            "\ua4d1ayPal",
            "P\u0251\u01b4P\u0251l",
            "Micros\u0585ft",
        ),  # Cherokee, Lisu, Latin, Armenian
        *(
            "\U0001f17f\U0001f170\U0001f188\U0001f17f\U0001f170\U0001f17b",
            "\U0001f1f5\U0001f1e6\U0001f1fe\U0001f1f5\U0001f1e6\U0001f1f1",
        ),
        *("Pay\u3164Pal", "Pay\u2800Pal", "Pay\U000e0020Pal", "Pay\u206fPal", "\u202elaPyaP\u202c"),
        *("Paypa1", "Micr0s0ft Support", "Rnicrosoft", "Pay.Pal", "Face-Book"),
    ],
)
def test_a_brand_that_only_looks_like_it_was_missed(name: str) -> None:
    """Capital letters of Cherokee never counted, because they were compared with small ones."""
    encoded = base64.b64encode(name.encode()).decode()
    assert "impersonation:display-name" in signals_of(letter(From=f"=?utf-8?b?{encoded}?= <info@shop.example.biz>"))


@pytest.mark.parametrize("name", ["Ann Modern", "Corn & Sons 24", "A1 Post", "office@365 x1", "5. Newsletter", "Navvy"])
def test_an_ordinary_name_with_digits_or_such_letters_is_no_brand(name: str) -> None:
    assert not brands.claimed(name)


@pytest.mark.parametrize(
    "content",
    [
        letter(),
        letter(From="PayPal <service@paypal.de>", Subject="Your PayPal receipt"),
        letter('<a href="https://live.com/x">sign in</a>', From="Microsoft <a@accountprotection.microsoft.com>"),
        letter('<td style="font-size:0px"><div style="font-size:13px">' + "Text that is shown. " * 30 + "</div></td>"),
        letter('<a href="https://www.sender.example.org/">www.sender.example.org</a>'),
        letter(From="Chase Miller <chase.miller@example.org>"),
        letter(Subject="=?utf-8?B?R3LDvMOfZQ==?="),
    ],
)
def test_an_ordinary_mail_gives_no_tag(content: bytes) -> None:
    """Brands that write themselves, MJML's tables and encoded umlauts are no signals."""
    suspicious = {
        tag for tag in inspect(content, SEARCH).tags if tag.split(":")[0] in ("impersonation", "sender", "html", "url")
    }
    assert not suspicious


def test_an_italian_invoice_was_said_to_have_a_form() -> None:
    """The names of its elements begin with the same word."""
    invoice = "<p:Fattura><FormatoTrasmissione>FPR12</FormatoTrasmissione><form:a/></p:Fattura>"
    form = invoice.replace("<form:a/>", "<form\n action='https://a.example'>")
    found = [signals_of(letter(attach=("text/html", "invoice.html", content))) for content in (invoice, form)]
    assert ["attachment:form" in signals for signals in found] == [False, True]


@pytest.mark.parametrize("domain", ["dc01.local", "mail.lan", "hq.corp", "mx.internal", "printer.home.arpa"])
def test_a_name_of_an_internal_network_was_called_impossible(domain: str) -> None:
    assert "sender:impossible-domain" not in signals_of(letter(From=f"Jo <jo@{domain}>"))


PHISHING = letter(
    "<p>Dear customer, your account has been suspended. Verify your account within 24 hours.</p>"
    '<a href="https://paypal.com.verify-account.example.top/login">https://www.paypal.com/signin</a>',
    From='"PayPal Security" <service@mail.qtbmpxeikvoxw.top>',
    Subject="Urgent: your PayPal account has been limited",
)


def test_phishing_is_quarantined_and_never_bounced(tmp_path: Path) -> None:
    """With the defaults, over HTTP."""
    with service(tmp_path) as running:
        answer = running.submit(PHISHING).json
        assert (answer["decision"], answer["verdict"]) == ("quarantine", "phishing")
        assert {"phishing:likely", "impersonation:display-name", "url:shows-other-host"} <= set(answer["tags"])


def test_the_models_points_do_not_count_for_rules_that_bounce_or_drop() -> None:
    """Other findings of 15 points bounce a mail; with the model they are quarantined at most."""
    table = DecisionTable(Decisions())
    assert table.decide(set(), 14.0, model_points=12.0).decision is Decision.QUARANTINE
    assert table.decide(set(), 15.0).decision is Decision.BOUNCE
    assert table.decide(set(), 0.0, model_points=7.9).decision is Decision.DELIVER


def test_ordinary_mail_is_delivered() -> None:
    """With the default profile."""
    assert explain(letter(), ServiceConfig()).decision == "deliver"


def with_phishing(**settings: object) -> ServiceConfig:
    return ServiceConfig(analyzers=Analyzers(phishing=Phishing(**settings)))


def test_profiles_are_ordered() -> None:
    """The same mail gets more points in a stricter profile, up to the maximum."""
    margin = 0.5
    shipped = model.load(model.SHIPPED)
    assert shipped.thresholds["cautious"] > shipped.thresholds["balanced"] > shipped.thresholds["strict"]
    points = [shipped.points(margin, name) for name in ("cautious", "balanced", "strict")]
    assert points == sorted(points)
    assert shipped.points(1e9, "strict") == model.MAX_POINTS < 15


def test_a_signal_can_be_switched_off() -> None:
    """`analyzers.phishing.ignore`."""
    found = explain(PHISHING, with_phishing(ignore=["impersonation:display-name"]))
    assert "impersonation:display-name" not in found.tags
    assert found.model is not None
    assert "impersonation:display-name" not in {one.name for one in found.model.contributions}


def test_the_model_can_be_switched_off() -> None:
    """Then there are tags, but no points."""
    found = explain(PHISHING, with_phishing(use_model=False))
    assert found.model is None and "phishing:likely" not in found.tags and "url:shows-other-host" in found.tags


def test_the_whole_analyzer_can_be_switched_off() -> None:
    """`analyzers: {phishing: null}`"""
    found = explain(PHISHING, ServiceConfig(analyzers=Analyzers(phishing=None)))
    assert not any(tag.startswith(("impersonation:", "sender:", "phishing:")) for tag in found.tags)


def test_contributions_add_up_to_the_margin() -> None:
    """What `explain` prints is all there is."""
    answer = explain(PHISHING, ServiceConfig()).model
    assert answer is not None
    named = sum(one.weight for one in answer.contributions if not one.name.startswith(("context:", "word:")))
    assert answer.bias + named + answer.context + answer.words == pytest.approx(answer.margin, abs=0.02)


def test_context_and_words_are_bounded() -> None:
    """A sender can write any words and claim to be a mailing list; this takes only so much away."""
    friendly = " ".join(f"wrote the patch committee meeting thread {number}" for number in range(300))
    padded = letter(
        '<p>Verify your account.</p><a href="https://paypal.com.evil.example.top/">https://www.paypal.com</a>'
        + f"<p>{friendly}</p>",
        From='"PayPal" <service@qtbmpxeikvoxw.top>',
        List_Id="<patches.example.org>",
        In_Reply_To="<1@example.org>",
    )
    answer = explain(padded, ServiceConfig()).model
    assert answer is not None and answer.context >= -model.MAX_CONTEXT and answer.words >= -model.MAX_WORDS


def test_reasons_are_sentences() -> None:
    """With the names of the brand and of the hosts."""
    why = explain(PHISHING, ServiceConfig()).reasons
    assert why[0] == "claims to be PayPal, sent from mail.qtbmpxeikvoxw.top"
    assert any(
        line.startswith("the link shown as ") and line.endswith("leads to paypal.com.verify-account.example.top")
        for line in why
    )


def test_every_sentence_can_be_written() -> None:
    """Whatever the signal was found in."""
    for tag in reasons.SENTENCES:
        assert reasons.sentences({tag: ""}, {tag: 1.0}) and reasons.sentences({tag: "{0}|{1}"}, {tag: 1.0})


def test_explain_prints_every_contribution(tmp_path: Path) -> None:
    """`scanbridge service explain FILE`"""
    file = tmp_path / "mail.eml"
    file.write_bytes(PHISHING)
    printed = scanbridge("service", "explain", str(file), cwd=tmp_path)
    assert printed.returncode == 0
    assert "decision: quarantine, verdict: phishing" in printed.stdout
    assert "claims to be PayPal" in printed.stdout and "impersonation:display-name" in printed.stdout
    data = json.loads(scanbridge("service", "explain", str(file), "--json", cwd=tmp_path).stdout)
    assert data["model"]["contributions"] and data["tags"]["phishing:likely"] == 0


@pytest.mark.parametrize("content", ["", "{}", '{"words": {"data": "AA=="}}', "\udcff", '{"words": 1}'])
def test_a_broken_model_is_a_configuration_error(tmp_path: Path, content: str) -> None:
    """The service says which file it is, instead of judging mail with half a model."""
    file = tmp_path / "model.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(model.BadModel, match=r"model\.json"):
        model.load(file)


def test_a_reload_uses_a_model_that_was_trained_again(tmp_path: Path) -> None:
    """Models are read once, but not longer than the file stays the same."""
    file = tmp_path / "model.json"
    value = json.loads(model.SHIPPED.read_text())
    file.write_text(json.dumps(value))
    settings = Phishing(model_file=str(file))
    first = load_model(settings).bias
    file.write_text(json.dumps({**value, "bias": first - 1}))
    os.utime(file, ns=(1, 1))
    assert load_model(settings).bias == first - 1


def test_a_missing_model_stops_the_start(tmp_path: Path) -> None:
    """With exit code 78 and the name of the file."""
    (tmp_path / "service.yml").write_text(CONFIG + "analyzers: {phishing: {model_file: nope.json}}\n")
    started = scanbridge("service", "-c", str(tmp_path / "service.yml"), cwd=tmp_path)
    assert started.returncode == 78 and "nope.json" in started.stderr
    checked = scanbridge("service", "check", "-c", str(tmp_path / "service.yml"), cwd=tmp_path)
    assert checked.returncode == 1 and "nope.json" in checked.stdout


def test_what_a_process_finds_arrives_whole() -> None:
    """A large mail is inspected in another process."""
    found = inspect(PHISHING, SEARCH)
    again = Inspection.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.phishing is not None and found.phishing is not None
    assert (again.phishing.margin, again.phishing.signals) == (found.phishing.margin, found.phishing.signals)
    assert Limits.from_dict(json.loads(json.dumps(SEARCH.to_dict()))) == SEARCH


def test_the_text_of_an_attached_mail_is_not_this_mails_text() -> None:
    """Somebody who reports phishing to the postmaster is no phisher."""
    report = EmailMessage()
    report["From"], report["To"], report["Subject"] = "Jo <jo@sender.example.org>", "abuse@example.net", "Please look"
    report.set_content("See attached.")
    inner = EmailMessage()
    inner["From"], inner["Subject"] = "PayPal <a@evil.example.top>", "Urgent"
    inner.set_content("<p>Verify your account</p><form><input type=password></form>", subtype="html")
    report.add_attachment(inner)
    assert not {"html:password-field", "text:credentials"} & signals_of(report.as_bytes()).keys()


HOSTILE = [
    "<a " * 20_000,
    "<!--" * 15_000,
    "<a href=" * 8000,
    '<div style="display:none">' * 2400,
    "&#97;" * 12_000,
    "<style" * 10_000,
    "<!-->" * 24_000,
    "<style></style>" * 8000,
    "<p <!--" * 16_000,
    "<v:a " * 24_000,
    "<math href=" * 10_000,
    ":none display:none" * 3500,
    '<p style="font-size:0">' * 2700,
    "http://" * 9000,
    "a@" * 30_000,
    "\u200b" * 20_000,
    '<a href="' + "x" * 60_000,
    "<form/action=xxx" * 8000,
    "<form/action=https://&#97;%41" * 4000,
]


def test_links_within_each_other_were_kept_to_the_end_of_the_page() -> None:
    """A page of 1 MB took 288 MB. Each address is read to the end of its tag at most, unless its host goes on."""
    for text in ("<form/action=xxx" * 60_000, ("<form/action=" + "x" * 4090) * 256):
        assert sum(map(len, page.read(text).other_links)) < 4_000_000


@pytest.mark.parametrize("unit", HOSTILE, ids=lambda unit: unit[:12])
def test_a_hostile_page_is_read_in_linear_time(unit: str) -> None:
    """Twice the page takes about twice the time."""

    def seconds(text: str) -> float:
        started = time.process_time()
        page.read(text)
        return time.process_time() - started

    half, whole = min(seconds(unit[: len(unit) // 2]) for _ in range(3)), min(seconds(unit) for _ in range(3))
    assert whole < max(4 * half, 0.05)


@pytest.mark.parametrize(
    "name", [" " * 5000, '"' * 5000, "(" * 5000, "a,<" * 2000, "=?utf-8?B?" * 500, "\u0430" * 5000]
)
def test_a_hostile_sender_is_read_quickly(name: str) -> None:
    """A field of any length is looked at within bounds."""
    content = b"From: " + name.encode() + b" <a@b.example>\r\nSubject: " + name.encode() + b"\r\n\r\nx\r\n"
    assert fair_cpu_s(lambda: inspect(content, SEARCH)) < 1.0


def test_the_event_loop_still_refuses_what_takes_long() -> None:
    """The search for phishing comes last, so that a mail for a process is not searched twice."""
    with pytest.raises(NeedsProcess):
        inspect(letter("&a" * 20_000), Limits(archives=False, phishing=Search()))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.b.example.co.uk", "example.co.uk"),
        ("www.example.com", "example.com"),
        ("example.com", "example.com"),
        ("x", "x"),
    ],
)
def test_registered_domains(host: str, expected: str) -> None:
    """Without the public suffix list: the country codes' own second levels are known."""
    assert domains.registered(host) == expected


@pytest.mark.parametrize(
    "label", ["sbcglobal", "schwarzkopf", "strengthsfinder", "newsletter", "hubspotlinks", "deutschetelekom"]
)
def test_names_that_are_not_random(label: str) -> None:
    """Long or foreign is not random."""
    assert not domains.looks_random(label)


def test_a_brand_owns_its_domains() -> None:
    """Under any country's code, but not under every top-level domain."""
    assert brands.owns("paypal", "mail.paypal.co.uk") and not brands.owns("paypal", "paypal.top")
    assert brands.are_related("x.com", "twitter.com") and not brands.are_related("x.com", "paypal.com")


def test_the_answer_says_why_in_words(tmp_path: Path) -> None:
    """The claimed brand and the real domain are named; mail that is not suspicious has no reasons at all."""
    bad = letter(
        '<p>Verify your account</p><a href="https://evil.example.top/x">https://www.paypal.com/signin</a>',
        From="PayPal Security <service@mail.qtbmpxeikvoxw.top>",
        Subject="Urgent: your PayPal account has been limited",
    )
    with service(tmp_path) as running:
        found = running.submit(bad).json
        assert found["reasons"][0] == "claims to be PayPal, sent from mail.qtbmpxeikvoxw.top"
        assert "the link shown as paypal.com leads to evil.example.top" in found["reasons"]
        assert "reasons" not in running.submit(letter()).json


def qr_code(link: str) -> bytes:
    zxingcpp = library("zxingcpp", "pictures")
    image = library("PIL.Image", "pictures")
    out = io.BytesIO()
    image.fromarray(zxingcpp.create_barcode(link, zxingcpp.BarcodeFormat.QRCode).to_image(scale=4)).save(out, "PNG")
    return out.getvalue()


def with_picture(picture: bytes) -> bytes:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "PayPal <info@shop.example.org>", "ann@example.net", "Your account"
    mail["Date"], mail["Message-ID"] = "Mon, 16 Nov 2026 09:00:00 +0000", "<1@shop.example.org>"
    mail.set_content("Scan the code with your telephone to keep your account.\n")
    mail.add_attachment(picture, maintype="image", subtype="png", filename="code.png")
    return mail.as_bytes().replace(b"\n", b"\r\n")


def test_a_qr_code_is_a_signal_and_its_host_is_judged_like_that_of_a_link() -> None:
    """A code that leads away from the sender counts; one that leads to the sender does not."""
    limits = Limits(phishing=Search(), formats=formats_of(Mime(qr_codes=True)))
    found = inspect(with_picture(qr_code("https://paypal.com.verify.example.top/login")), limits).phishing
    assert found is not None and found.signals["picture:qr-link"] == "paypal.com.verify.example.top"
    assert found.signals["url:lookalike"] == "paypal|paypal.com.verify.example.top"
    assert "url:not-the-brand" in found.signals
    own = inspect(with_picture(qr_code("https://www.example.org/menu")), limits)
    assert own.phishing is not None and "picture:qr-link" not in own.phishing.signals
    assert "picture:qr-link" in own.tags
    assert found.margin is not None and model.model_at("").weights["picture:qr-link"] > 0


@pytest.mark.parametrize(
    "before",
    [
        "<p>Harmless words about the weather.</p>" * 5000,
        '<a href="https://shop.example.org/1">Shop</a>' * 400,
        "<!-- comment -->" * 12_000,
    ],
    ids=["text", "links", "comments"],
)
def test_padding_does_not_blind_the_search(before: str) -> None:
    """Links after 200 KB of padding are found, and what was not read counts against the mail."""
    link = '<a href="https://paypal.com.verify.example.top/login">https://www.paypal.com/</a>'
    plain, padded = (
        signals_of(letter(f"<html><body>{text}{link}</body></html>", From="PayPal <a@shop.example.org>"))
        for text in ("", before)
    )
    if len(before) > page.MAX_PAGE:
        assert padded["url:lookalike"] == plain["url:lookalike"]
    assert "html:cut" in padded and "html:cut" not in plain
    assert model.model_at("").weights["html:cut"] > 0


LURE = """<p>Dear customer, your account has been suspended. Verify your account now.</p>
<a href="https://paypal.com.verify.example.top/login">https://www.paypal.com/</a>"""


def several(*pages: str, kind: str = "mixed", disposition: str = "", name: str = "") -> bytes:
    """Pages in one mail; the last one may have a name, and the others a disposition."""
    fields = f"From: PayPal <a@shop.example.org>\nTo: ann@example.net\nSubject: x\nContent-Type: multipart/{kind}"
    parts = ""
    for number, text in enumerate(pages, 1):
        is_last = number == len(pages)
        how = (f"inline; filename={name}" if name else "") if is_last else disposition
        line = f"Content-Disposition: {how}\n" if how else ""
        parts += f"--x\nContent-Type: text/html\n{line}\n{text}\n"
    return f"{fields}; boundary=x\n\n{parts}--x--\n".replace("\n", "\r\n").encode()


@pytest.mark.parametrize("disposition", ["", "attachment"])
@pytest.mark.parametrize("kind", ["mixed", "alternative"])
def test_harmless_pages_hid_the_page_that_is_shown(kind: str, disposition: str) -> None:
    """Four pages were read. Mail programs show the last alternative, and do not show an attachment without a name."""
    expected = {"url:lookalike", "text:credentials", "url:shows-other-host"}
    assert expected <= signals_of(several(LURE)).keys()
    harmless = [f"<p>Minutes of meeting {number}: {'we met and talked. ' * 40}</p>" for number in range(20)]
    found = signals_of(several(*harmless, LURE, kind=kind, disposition=disposition))
    assert expected <= found.keys()
    assert "html:cut" not in found


def test_a_page_beyond_the_bound_is_not_read_but_counts() -> None:
    """Harmless pages before the real one do not hide that there is another."""
    assert "html:cut" in signals_of(several(*(f"<p>more {number}</p>" for number in range(50))))
    long = f"<p>{60_000 * 'x '}</p>"  # one of these is read completely
    assert "html:cut" in signals_of(several(*(f"{number}{long}" for number in range(14))))


def test_a_page_with_a_name_was_taken_for_a_file_although_it_is_shown() -> None:
    """Its links and its text gave no signals. Programs show an inline part whether or not it has a name."""
    found = signals_of(several(LURE, name="a.html"))
    assert {"url:lookalike", "text:credentials", "url:shows-other-host"} <= found.keys()
    attached = letter("<p>Hello</p>", attach=("text/html", "a.html", LURE))
    assert "url:lookalike" not in signals_of(attached)


@pytest.mark.parametrize(
    "before",
    [
        "<!-->",
        "<!--->",
        "<!--x--!>",
        "<titles>",
        "<styled>",
        "<style><!--</style>",
        "<title><!--</title>",
        "<title><style></title>",
        '<p title="<!--">',
        "<p title='<style>'>",
        "<style>x</styled></style>",
    ],
)
def test_a_text_after_what_looks_like_a_comment_was_not_read(before: str) -> None:
    """Browsers show it, and the text of the plain part counted instead."""
    assert "text:credentials" in signals_of(letter(f"{before}{LURE}", text="Minutes of the meeting"))


SHAPES = [
    '<v:roundrect href="{}" style="height:40px"><center>https://www.paypal.com/</center></v:roundrect>',
    '<html xmlns:x="urn:schemas-microsoft-com:vml"><!--[if mso]><x:rect\nhref={}>Open</x:rect><![endif]-->',
    '<h:a xmlns:h="http://www.w3.org/1999/xhtml" href="{}">Open</h:a>',
    '<p xmlns:svg="http://www.w3.org/2000/svg"><svg:a xlink:href="{}">Open</svg:a>',
    '<math><mrow class="a>b" href="{}"><mtext>Open</mtext></mrow></math>',
    '<math href="{}"><mi>Open</mi></math>',
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_link_that_is_no_anchor_gave_no_signals(shape: str) -> None:
    """Outlook follows the links of shapes, Firefox and Thunderbird those of formulas."""
    found = signals_of(letter(shape.format("https://paypal.com.verify.example.top/login")))
    assert "url:lookalike" in found
    link = "https://www.example.org/a"
    both = f'<a href="{link}">Open</a>'
    assert page.read(shape.format(link) + both).other_links == []


@pytest.mark.parametrize(
    "before", ["<!-- > ->", "<!--", "<!-- <style>", "<style>-->", "<title><p>", "<script></scripts>"]
)
def test_a_text_that_is_not_shown_is_not_read(before: str) -> None:
    assert "text:credentials" not in signals_of(letter(f"<p>Hello</p>{before}{LURE}"))


LURE_TEXT = "Your account has been suspended. Verify your account: https://paypal.com.verify.example.top:8080/login"
HARMLESS = '<p>Minutes of the meeting</p><a href="https://www.example.org/">Home</a>'


@pytest.mark.parametrize(
    ("kind", "is_text_first", "expected"),
    [("mixed", True, True), ("mixed", False, True), ("alternative", True, False), ("alternative", False, True)],
)
def test_a_harmless_page_hid_the_text_that_is_shown_with_it(kind: str, is_text_first: bool, expected: bool) -> None:
    """Only the text and the links of the page counted. Programs show the text as well, unless it is the first
    alternative."""
    types = {"plain": LURE_TEXT, "html": HARMLESS}
    parts = [f"--x\nContent-Type: text/{name}\n\n{text}\n" for name, text in types.items()]
    body = "".join(parts if is_text_first else reversed(parts))
    head = f"From: PayPal <a@shop.example.org>\nContent-Type: multipart/{kind}; boundary=x\n\n"
    found = signals_of(f"{head}{body}--x--\n".replace("\n", "\r\n").encode())
    assert ({"text:credentials", "url:port"} <= found.keys()) == expected


@pytest.mark.parametrize(
    ("link", "domain", "expected"),
    [
        ("https://paypal.com.verify.example.top/login", "example.top", "url:lookalike"),
        ("https://bit.ly/x", "bit.ly", "url:shortener"),
        ("https://x.web.app/x", "web.app", "url:free-hosting"),
    ],
)
def test_a_signature_that_nobody_had_checked_made_a_link_the_senders_own(link: str, domain: str, expected: str) -> None:
    """So did the envelope. Anybody can write any domain there."""
    page_with_link = f'<p>Hello</p><a href="{link}">Open</a>'
    signed = letter(page_with_link, DKIM_Signature=f"v=1; d={domain}; s=k; bh=x; b=y")
    assert expected in signals_of(signed)
    assert expected in signals_of(letter(page_with_link), envelope_from=f"a@{domain}")
    assert expected not in signals_of(letter(page_with_link, From=f"a@{domain}"))


def test_many_hosts_of_a_signature_are_not_judged_in_the_event_loop() -> None:
    links = "".join(f"<a href=//a{number}.example.top>x</a>" for number in range(60))
    signed = letter(links, DKIM_Signature="v=1; d=example.top; s=k; bh=x; b=y")
    with pytest.raises(NeedsProcess):
        inspect(signed, Limits(archives=False, phishing=Search()))


def test_many_short_pages_take_bounded_time() -> None:
    pages = [f"<p>{number} {'<a href=https://&#97;%41>' * 900}</p>" for number in range(50)]
    assert fair_cpu_s(lambda: inspect(several(*pages), SEARCH)) < 3.0


@pytest.mark.parametrize("number", ["1" * 5000, "x" + "f" * 5000, "0" * 5000 + "65"])
def test_a_number_of_many_digits_does_not_stop_the_search(number: str) -> None:
    """Python refuses to read such a number, so one reference in a page hid all signals of the mail."""
    found = signals_of(letter(f'<p>&#{number};</p><a href="https://bit.ly/x">Log in</a>'))
    assert "url:shortener" in found
