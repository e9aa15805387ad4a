"""Links in the forms that browsers accept: the URL standard decides where they lead, not how they look."""

from __future__ import annotations

import base64
import gzip
import io
from contextlib import suppress

import pytest

from bridge.mime.readings import Budget
from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.link_address import Address, mailbox_host, read
from bridge.service.analysis.content.links import Links, NeedsProcess
from bridge.service.analysis.content.pictures import link_of
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.detection import link_targets
from bridge.service.detection.material import Material
from bridge.service.detection.phishing import Search
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import attached, mail
from tests.service.test_service_documents import tags
from tests.service.test_service_phishing import letter, signals_of

HOST = "paypal.com.verify-login.example.top"
SEARCH = Limits(phishing=Search())


def found(page: str, kind: str = "text/html") -> Links:
    links = Links()
    links.scan(page, is_html=kind == "text/html")
    return links


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("https://evil.example/a?b#c", Address("https", "", "evil.example", "", "/a?b#c")),
        ("HTTPS:evil.example", Address("https", "", "evil.example", "", "")),
        ("https:\\\\evil.example\\x", Address("https", "", "evil.example", "", "\\x")),
        ("http:/\\/\\/evil.example:80?x", Address("http", "", "evil.example", "80", "?x")),
        (" \x01\x1fh\tt\ntp\r://ev\til.example", Address("http", "", "evil.example", "", "")),
        ("https://'a(b) <c>\"@x:y@evil.example/@z", Address("https", "'a(b) <c>\"@x:y", "evil.example", "", "/@z")),
        ("https://)@[2001:db8::1]:8443/", Address("https", ")", "[2001:db8::1]", "8443", "/")),
        ("//evil.example/x", Address("", "", "evil.example", "", "/x")),
        ("\\/evil.example/x", Address("", "", "evil.example", "", "/x")),
        ("file://evil.example/x", Address("file", "", "evil.example", "", "/x")),
        ("file://evil.example@80/x", Address("file", "", "evil.example", "", "/x")),
        ("\\\\evil.example@SSL@8443\\x", Address("", "", "evil.example", "", "\\x")),
        ("\\\\evil.example@ssl\\x", Address("", "", "evil.example", "", "\\x")),
        ("\\\\evil.example@8443@SSL\\x", Address("", "", "evil.example", "", "\\x")),
        ("//user@80.example/x", Address("", "user", "80.example", "", "/x")),
        ("file:////evil.example/x", Address("file", "", "evil.example", "", "/x")),
        ("x-vendor+app://evil.example/x", Address("x-vendor+app", "", "evil.example", "", "/x")),
        ("file:///etc/hosts", None),
        ("C:\\\\x", None),
        ("mailto:a@evil.example", None),
        ("javascript:a@evil.example", None),
        ("x-vendor:///x", None),
        ("path/to?a@b", None),
        ("/path", None),
        ("https:", None),
        ("", None),
    ],
)
def test_a_link_is_read_as_the_url_standard_says(link: str, expected: Address | None) -> None:
    assert read(link) == expected


@pytest.mark.parametrize(
    "link",
    ["file://evil.example@80/x", r"\\evil.example@SSL@8443\x", r"\\evil.example@ssl\x", "//evil.example@443/x"],
)
@pytest.mark.parametrize(
    "page", ['<a href="{}">x</a>', "<style>a{{background:url({})}}</style>", "<script>'{}'</script>"]
)
def test_the_server_of_a_webdav_link_was_taken_for_a_user(link: str, page: str) -> None:
    assert "evil.example" in found(page.format(link)).hosts


def test_a_base_completes_a_link_without_a_host() -> None:
    base = read("https://evil.example/a/")
    assert read("login", base) == Address("https", "", "evil.example", "", "login")
    assert read("//other.example", base) == Address("", "", "other.example", "", "")
    assert read("mailto:a@b.example", base) is None


def test_a_mailbox_has_a_host() -> None:
    assert [mailbox_host(link) for link in ("mailto:a@b.example?subject=x@y", "sip:a@b.example", "a@b.example")] == [
        "b.example",
        "b.example",
        "",
    ]


USERS = ["(", ")", "(x)", "'", "'x'", "<b>", "\u2019", "\u3001", " ", "( )", "\u00ab\u00bb", "\x0b", "'\n", "(@)"]


@pytest.mark.parametrize("before", ["https://", "https:", "https:\\\\", "//", " \x01https://", "ftp://"])
@pytest.mark.parametrize("user", USERS)
def test_a_user_that_no_host_begins_with_hid_the_link(before: str, user: str) -> None:
    """`<a href="https://'@evil.example/">` had no host and no tag, and no list could block it."""
    for end in ("/", "", "?x", "\\x", "#"):
        links = found(f'<a href="{before}{user}@evil.example{end}">x</a>')
        assert "evil.example" in links.hosts and "url:userinfo" in links.tags, end


@pytest.mark.parametrize(
    "page",
    [
        "<a href='https://\"@evil.example/'>x</a>",
        "<a href=https://(@evil.example/>x</a>",
        "<a href=https://'@evil.example>x</a>",
        "<a href=https:'@evil.example>x</a>",
        "<a href=\"https://'@evil.example \">x</a>",
        "<a href=' https://(x)@evil.example \x01 '>x</a>",
        "<a href=\"https://a b@evil.example&#32;\">x</a>",
        "<a href=\"https://'@ev\til.example/\">x</a>",
        "<a href=\"https://x'@ev&#10;il.example/\">x</a>",
        '<a href="https://&quot;@evil.example/">x</a>',
        '<a href="https://&#39;@evil.example/">x</a>',
        "<a href=\"\x01https://'a b@evil.example/\">x</a>",
        "<script>location = \"https://'@evil.example\"</script>",
        "<meta http-equiv=refresh content=\"0;url=https://'@evil.example\">",
        '<meta http-equiv=refresh content="0; url = https://( x@evil.example">',
        '<meta http-equiv=refresh content="0;https://( x@evil.example">',
        '<p>see https://(x)@evil.example/</p>',
        '<img src="file:////evil.example/x">',
        '<img src="file:///\\/\\evil.example/x">',
        '<img src="file://///evil.example/x">',
        '<a href="ftp:evil.example">x</a>',
        '<a href="search-ms:query=a&crumb=location:%5C%5Cevil.example%5Cshare&displayname=b">x</a>',
        '<a href="search:query=a&amp;crumb=location%3A%5c%5cevil.example@SSL%5cDavWWWRoot">x</a>',
        '<a href="search-ms:crumb=location:file:%2F%2Fevil.example/share">x</a>',
        '<a href="search-ms:crumb=location:&#37;5C%5Cevil.example%5C">x</a>',
    ],
)  # fmt: skip
def test_these_links_of_pages_were_missed(page: str) -> None:
    assert "evil.example" in found(page).hosts


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<a href="search-ms:query=a&crumb=location:%5C%5Cevil.example%5Cshare">x</a>', True),
        ("<a href=' MS-msdt:/id PCWDiagnostic'>x</a>", True),
        ("<a href=ms-&#97;ppinstaller:?source=https://evil.example/a.msix>x</a>", True),
        ("<script>location.assign('search-ms:crumb=location:\\\\\\\\evil.example')</script>", True),
        ('<meta http-equiv=refresh content="0;url=search-ms:crumb=location:%5C%5Cevil.example">', True),
        ('<p>Links such as "search-ms:" and (ms-msdt:) start programs.</p>', False),
        ('<a href="https://example.org/?about=search-ms">search-ms:</a>', False),
    ],
)
def test_a_link_that_starts_a_program_was_only_seen_in_documents(page: str, expected: bool) -> None:
    """A click, or the page itself, opens a folder of somebody else's machine, or runs a diagnostic tool."""
    assert ("url:starts-program" in found(page).tags) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<a href="sea\trch-\r\nms:query=x">x</a>', True),
        ('<a href="\x01search-ms:query=x">x</a>', True),
        ('<meta http-equiv=refresh content="0;search-ms:query=x">', True),
        ('<a href="search:query=a&crumb=location:%5C%5Cevil.example">x</a>', True),
        ("<a href=shell:startup>x</a>", True),
        ('<a href="file://evil.example/share/report.pdf.exe">x</a>', True),
        (r'<a href="\\evil.example@80\share\report.lnk">x</a>', True),
        (r'<a href="file:///\\evil.example\share\report.rtf!x">x</a>', True),
        ('<a href="file:///c:/windows/system32/cmd.exe">x</a>', True),
        ('<a href="//cdn.example/setup.exe">x</a>', False),
        ('<a href="https://example.org/setup.exe">x</a>', False),
        (r'<a href="file://files/share/setup.exe">x</a> <a href="\\10.0.0.1\share\setup.exe">x</a>', False),
        ('<a href="file://files.example.org/share/report.pdf">x</a>', False),
        ('<a href="https://example.org/?search=search:all">x</a>', False),
    ],
)
def test_such_links_were_seen_in_documents_or_in_one_spelling(page: str, expected: bool) -> None:
    assert ("url:starts-program" in found(page).tags) == expected


@pytest.mark.parametrize("piece", ['="file://a.example/{}', "=\\\\a.example\\{}", "=\t", '"1', "'.;", "(' "])
def test_many_such_links_take_linear_time(piece: str) -> None:
    text = "".join(map(piece.format, range(300_000 // len(piece))))
    assert fair_cpu_s(lambda: scanned(text)) < 2


def scanned(text: str) -> None:
    with suppress(TooMuch):
        Links(charge=Budget(len(text)).take).scan(text, is_html=True)


@pytest.mark.parametrize(
    "text", ["https://(@evil.example/", "a https://'@evil.example/ b", "<https://(x)@evil.example>"]
)
def test_these_links_of_texts_were_missed(text: str) -> None:
    links = found(text, "text/plain")
    assert links.hosts == {"evil.example"} and links.tags == {"url:userinfo"}


@pytest.mark.parametrize(
    "text",
    [
        "<https://evil. example/x>",
        '"https://ev il.example/x"',
        "<URL:http: //evil.example>",
        "<https:// evil.example>",
        "< h t t p s : / / e v i l . e x a m p l e / >",
        "<https://good.example @evil.example>",
        "<ftp:\t//evil.example>",
    ],
)
def test_white_space_in_a_link_that_thunderbird_removes_hid_the_host(text: str) -> None:
    links = found(f"See {text} today", "text/plain")
    assert "evil.example" in links.hosts and not links.tags


@pytest.mark.parametrize("text", ["<https://a.example> and <https://b.example>", '"http" is: "x"', "<http: a b>"])
def test_text_between_links_in_brackets_is_no_link(text: str) -> None:
    assert found(text, "text/plain").hosts <= {"a.example", "b.example"}


@pytest.mark.parametrize("piece", ["<", '"', "< http:", "<http: a> ", "<h t t p s : " + "a" * 1999])
def test_links_in_brackets_take_linear_time(piece: str) -> None:
    def scan() -> None:
        with suppress(TooMuch, NeedsProcess):
            Links(is_inline=True).scan(piece * (1_000_000 // len(piece)), is_html=False)

    assert fair_cpu_s(scan) < 0.5


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
@pytest.mark.parametrize(
    "text",
    [
        "Visit us, https://good.example or write to bob@x.example.",
        "see https: (bob@x.example), http:// (bob@x.example) and //'bob@x.example'",
        "since 2019; https://good.example, bob@x.example",
        '{"url": "https:", "mail": "bob@x.example"} https://good.example',
        "https://good.example (bob@x.example)",
        "https://good.example(bob@x.example)",
        "URL\uff1ahttps://good.example\u3001E-mail\uff1ainfo@x.example",
        "\u300chttps://good.example\u300dinfo@x.example",
        "\u3010https://good.example\u3011info@x.example",
        "https://good.example\uff08\u62c5\u5f53\uff1ainfo@a.example\uff09",
        "https://good.example\uff0cinfo@x.example",
        "https:\uff08\u62c5\u5f53\uff1ainfo@a.example\uff09",
        "[Corp](https://good.example),info@x.example",
        "(https://good.example)info@x.example",
        "(https://good.example)@corp",
        "\u201chttps://good.example\u201d,info@x.example",
        "['https://good.example','info@x.example']",
    ],
)
def test_an_address_near_a_link_is_no_user(text: str, kind: str) -> None:
    links = found(text, kind)
    assert links.hosts <= {"good.example"} and not links.tags


def test_a_document_with_such_a_link() -> None:
    links = Links()
    links.add("https:('@evil.example>,")
    links.add("mailto:a@b.example")
    assert links.hosts >= {"evil.example", "b.example"} and links.tags == {"url:userinfo"}


@pytest.mark.parametrize(
    "address", ["//evil.example/", " https://evil.example/", "https:evil.example", "https://'@evil.example/"]
)
def test_a_link_that_shows_another_host(address: str) -> None:
    """`url:mismatch` was found for `https://` right behind the quote only."""
    assert "url:mismatch" in found(f'<a href="{address}">www.bank.example </a>').tags
    assert "url:mismatch" in found(f'<a data-href=//bank.example href="{address}">www.bank.example </a>').tags
    assert "url:mismatch" not in found(f'<a href="{address}">www.evil.example </a>').tags


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("x-apple-data-detectors://0", "18.11.2026"),
        ("x-apple-data-detectors://evil.example", "18.11.2026"),
        ("file://server/share/report.pdf", "report.pdf"),
        ("file:////server.corp.example/share/report.pdf", "report.pdf"),
        ("ftp://ftp.corp.example/readme.txt", "readme.txt"),
        ("notes://server.corp.example/x", "minutes.nsf"),
        ("webcal://calendar.corp.example/x.ics", "team.ics"),
        ("smb://server.corp.example/x", "www.corp.test"),
        ("tel:+4912345", "0123.45678"),
        ("mailto:info@corp.example", "corp.test"),
    ],
)
def test_a_link_of_another_program_shows_no_host(address: str, shown: str) -> None:
    """It shows a date or the name of a file, which look like a host."""
    for quote in ('"', "'", ""):
        assert "url:mismatch" not in found(f"<a href={quote}{address}{quote}>{shown}</a>").tags


FORMS = {
    "backslashes": '<a href="https:\\\\H/login">x</a>',
    "no slashes": '<a href="https:H/login">x</a>',
    "many slashes": '<a href="https:////H/login">x</a>',
    "no scheme": '<a href="//H/login">x</a>',
    "a backslash behind it": '<a href="https://H\\login">x</a>',
    "a soft hyphen": '<a href="https://\u00adH/login">x</a>',
    "a soft hyphen as a reference": '<a href="https://&shy;H/login">x</a>',
    "thousands of soft hyphens": f'<a href="https://{chr(0xAD) * 3000}H/login">x</a>',
    "thousands of soft hyphens with percent signs": f'<a href="https://{"%C2%AD" * 3000}H/login">x</a>',
    "more slashes than two": '<base href="https://good.example/"><a href="///H/login">x</a>',
    "full-width letters": '<a href="https://\uff50aypal.com.verify-login.example.top/login">x</a>',
    "a user of one quote": '<a href="https://\'@H/login">x</a>',
    "a user without quotes around the value": "<a href=https://'@H/login>x</a>",
    "a port behind a user": '<a href="https://a@b@H:8080/login">x</a>',
    "control characters": '<a href="\x01 https://H/login">x</a>',
    "a line end in the scheme": '<a href="ht\ntps://H/login">x</a>',
    "behind another attribute of that name": '<a data-href="https://a.example" href="https://H/">x</a>',
    "behind a value with that name": '<a title="href=https://a.example" href="https://H/">x</a>',
    "behind many spaces": f'<a href{" " * 20}={" " * 20}"https://H/">x</a>',
    "behind many attributes": f'<a {"x=1 " * 60} href="https://H/">x</a>',
    "behind an odd attribute": '<a = "x" =href="https://a.example" href="https://H/">x</a>',
    "an area": '<map><area shape=rect href="https://H/login"></map>',
    "a form": '<form action="https://H/login"><button>x</button></form>',
    "a button": '<form><button formaction="https://H/login">x</button></form>',
    "a base": '<base target=_blank><base href="https://H/"><a href="login">x</a>',
    "a base and a form": '<base\nhref="https://H/"><form action=login>',
    "a page that goes on": '<meta http-equiv=refresh content="0;url=https://H/">',
    "a page that goes on, in quotes": "<meta content=\"0; URL='https:H/'\" http-equiv='re&#102;resh'>",
    "a page that goes on at once": '<meta http-equiv="refresh" content="0,https://H/">',
    "behind a long text": f'<p>{"word " * 30_000}</p><form action="https://H/login">',
}


@pytest.mark.parametrize("name", FORMS)
def test_the_model_did_not_see_this_link(name: str) -> None:
    """It was delivered, while `https://host/login` was quarantined."""
    signals = signals_of(letter("<p>Please confirm.</p>" + FORMS[name].replace("H", HOST)))
    assert signals.get("url:lookalike", "").partition("|")[0] == "paypal"


@pytest.mark.parametrize("name", FORMS)
def test_lists_know_the_host_of_this_link(name: str) -> None:
    assert HOST in found(FORMS[name].replace("H", HOST)).hosts


@pytest.mark.parametrize(
    "page",
    [
        '<a href="///evil.example/x">x</a>',
        "<a href=////evil.example/x>x</a>",
        '<a href=" \t///evil.example/x">x</a>',
        '<a href="/&#x2f;/evil.example/x">x</a>',
        '<a href="/\n//evil.example/x">x</a>',
        '<img srcset="x 1x,///evil.example/x 2x">',
        '<form action="/////evil.example/login">',
        '<meta http-equiv=refresh content="0;url=///evil.example">',
        "<style>a { background: url(///evil.example/x) }</style>",
    ],
)
def test_more_slashes_than_two_hid_the_host(page: str) -> None:
    """In a page with the address of a site, such as that of a webmail, browsers take them for two."""
    assert found(page).hosts == {"evil.example"}


@pytest.mark.parametrize(
    "page",
    ["<a href='path///evil.example'>", "file:///evil.example", "<script>/// <summary>\n//////\n</script>", "<p>////"],
)
def test_more_slashes_than_two_are_not_always_a_link(page: str) -> None:
    assert not found(page).hosts
    assert not found("see ///evil.example", "text/plain").hosts


def test_a_lookalike_written_in_unicode_was_missed() -> None:
    """Its `xn--` form was quarantined."""
    page = '<a href="https://{}/login">x</a>'
    raw, encoded = (signals_of(letter(page.format(host))) for host in ("p\u0430ypal.com", "xn--pypal-4ve.com"))
    assert raw == encoded and "url:lookalike" in raw


@pytest.mark.parametrize(
    "html", ["<br>", '<a href="https://good.example/">x</a>', '<a href="mailto:a@b.example">x</a>']
)
@pytest.mark.parametrize(
    "link", [f"https://{HOST}/x", f"https:\\\\{HOST}\\x", f"https://'@{HOST}", "http://p\u0430ypal.com"]
)
def test_a_page_beside_a_plain_text_hid_its_links(html: str, link: str) -> None:
    assert "url:lookalike" in signals_of(letter(html, f"Please confirm at {link} today."))


def test_pictures_of_a_page_in_its_plain_text_are_no_links() -> None:
    page = '<a href="https://good.example/">x</a><img src="https://ci3.googleusercontent.com/x">'
    assert "url:lookalike" not in signals_of(letter(page, "Logo [https://ci3.googleusercontent.com/x]"))


@pytest.mark.parametrize("source", ['src="https://{}/x"', "SRC = 'Http://{}:80/x'", "src=https://{}?x"])
def test_a_picture_of_any_page_is_one(source: str) -> None:
    host = "ci3.googleusercontent.com"
    page = f'<a href="https://good.example/">x</a><img {source.format(host)}>'
    assert "url:lookalike" not in signals_of(letter(page, f"Logo [https://{host}/x]"))
    assert "url:lookalike" in signals_of(letter(page, f"Logo [https://{host}/x] https://{HOST}/x"))


def test_other_links_of_a_plain_text_beside_a_page_do_not_count() -> None:
    """The model was trained with the links of the page alone."""
    page = '<a href="https://www.sender.example.org/x">x</a>'
    assert signals_of(letter(page, "see https://bit.ly/x")) == signals_of(letter(page, "see you"))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("see (https://good.example), 'https://b.example/x'", ["good.example", "b.example"]),
        ("https://user@good.example:80/x?u=https://b.example", ["good.example"]),
        ('{"a":"https://good.example","b":"x@b.example"}', ["b.example", "good.example"]),
        ("https://good.example\u8bf7\u67e5\u770b", ["good.example"]),
        ("https://good.example\u3001https://b.example/", ["good.example"]),
        ("http://b\u00fccher.de/ http:// x http:///", ["xn--bcher-kva.de"]),
    ],
)
def test_links_of_a_plain_text(text: str, hosts: list[str]) -> None:
    targets, _ = link_targets.all_of(Material(plain=text))
    assert [target.host for target in targets] == hosts


@pytest.mark.parametrize("text", [f"https:\\\\{HOST}", f"HTTPS:{HOST}", f"https://'@{HOST}/", "http://p\u0430ypal.com"])
def test_a_code_with_such_a_link(text: str) -> None:
    """Cameras open it."""
    material = Material(codes=[link_of(text)])
    assert [link_targets.kind_of(target.host).imitated for target in link_targets.all_of(material)[0]] == ["paypal"]


def test_names_for_the_model_are_converted_in_a_process() -> None:
    """Each takes up to half a millisecond of the event loop; links may be switched off."""
    page = "".join(f'<a href="https://{chr(0xE0 + n) * 20}.example/">x</a>' for n in range(20))
    with pytest.raises(NeedsProcess):
        inspect(letter(page), Limits(phishing=Search(), archives=False, look_at_urls=False))
    text = " ".join(f"https://good.example{chr(0x4E00 + n) * 20}" for n in range(20))
    with pytest.raises(NeedsProcess):
        inspect(letter(text=text), Limits(phishing=Search(), archives=False, look_at_urls=False))
    inspect(letter('<a href="https://b\u00fccher.example/">x</a>'), Limits(phishing=Search(), archives=False))


def test_many_lookalikes_in_a_plain_text_kept_a_process_busy() -> None:
    """Each page was searched for each of them: a megabyte took 17 seconds."""
    text = " ".join(f"https://paypal-{number}.example/x" for number in range(600))
    page = '<a href="https://good.example/">x</a>' + '<img src="https://a.example/x">' * 30_000
    material = Material(plain=text, sources=[page] * 4)
    material.read()
    hosts = [target.host for target in link_targets._in_text(material, material.plain)]
    found: list[tuple[str, str]] = []
    assert fair_cpu_s(lambda: found.extend(link_targets._imitations(hosts, material))) < 1
    assert len(found) == 600


@pytest.mark.parametrize("host", ["paypal-{}.example", "a{0}.b{0}.c{0}.d{0}.e{0}.f{0}.g{0}.example"])
@pytest.mark.parametrize("has_page", [True, False])
def test_many_hosts_are_looked_at_in_a_process(host: str, has_page: bool) -> None:
    """500 of them took up to a second of the event loop."""
    page = '<a href="https://good.example/">x</a>' + '<img src="https://a.example/x">' * 1000 if has_page else ""
    text = "\n".join(f"https://{host.format(number)}/x" for number in range(500))
    limits = Limits(phishing=Search(), archives=False)
    with pytest.raises(NeedsProcess):
        inspect(letter(page, text), limits)
    inspect(letter(page, "\n".join(text.splitlines()[:40])), limits)
    many = "\n".join(f"https://h{number}.sender.example.org/x" for number in range(500))
    inspect(letter(page, many), limits)  # the sender's own


def test_hosts_of_any_length_are_not_remembered() -> None:
    link_targets._place.cache_clear()
    inspect(letter(f'<a href="https://{"a" * 3000}.example/">x</a>'), SEARCH)
    assert link_targets._place.cache_info().currsize == 0


@pytest.mark.parametrize(
    "field",
    ['type="pass&#119;ord"', "TYPE=passwor&#100;", "type='&#x50;assword'", 'type\t\t\t\t\t\t\t\t\t\t\t\t="password"'],
)
@pytest.mark.parametrize("formats", [frozenset(), frozenset({"scripts"})])
def test_a_password_field_was_hidden_by_references(field: str, formats: frozenset[str]) -> None:
    page = f'<html><form action="https://evil.example/x">Email<input name=u><input {field} name=p></form></html>'
    limits = Limits(phishing=None if formats else Search(), formats=formats)
    assert "attachment:credential-form" in inspect(attached(page.encode(), "login.html", "text/html"), limits).tags


@pytest.mark.parametrize("name", ["a.js.Z", "a.js.z", "a.exe.lz4", "a.js.zst", "a.vbs.br", "a.js.lzo"])
def test_a_compressed_program_that_is_not_opened(name: str) -> None:
    """The name says what is in it, as with `a.js.gz`."""
    content = b"\x1f\x9d\x90" + b"WScript.Echo(1);" * 3
    plain = inspect(attached(content, name), Limits()).tags
    assert plain >= {"mime:executable", "mime:unopened-archive"}
    harmless = inspect(
        attached(content, name.replace(".js", ".txt").replace(".exe", ".txt").replace(".vbs", ".txt")), Limits()
    )
    assert "mime:executable" not in harmless.tags


@pytest.mark.parametrize("name", ["a.js.z", "a.js.Z", "a.js.gzip"])
def test_the_name_in_gzip_under_another_suffix(name: str) -> None:
    raw = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
        packed.write(b"WScript.Echo(1)")
    assert "mime:executable" in tags(raw.getvalue(), name)


@pytest.mark.parametrize(
    "extension", ["mobileconfig", "ppkg", "sparseimage", "prf", "pyd", "rbw", "flatpakref", "flatpakrepo"]
)
def test_opening_these_installs_or_mounts_something(extension: str) -> None:
    assert "mime:executable" in tags(b"\x01\x02\xff binary", f"a.{extension}")


@pytest.mark.parametrize("extension", ["aspx", "smi", "cnt"])
def test_opening_these_does_not(extension: str) -> None:
    """Pages of a web server, subtitles, and data of many programs."""
    assert "mime:executable" not in tags(b"\x01\x02\xff binary", f"a.{extension}")


def test_a_bare_domain_is_no_link() -> None:
    """As the documentation says."""
    assert not inspect(mail(b"visit evil.example or evil.example/path now"), Limits()).hosts
    assert inspect(mail(b"visit www.evil.example now"), Limits()).hosts == {"www.evil.example"}


def test_the_same_in_base64() -> None:
    body = base64.encodebytes(b'<a href="https://\'@evil.example/">x</a>').replace(b"\n", b"\r\n")
    content = mail(body, MIME_Version="1.0", Content_Type="text/html", Content_Transfer_Encoding="base64")
    assert inspect(content, Limits()).hosts == {"evil.example"}
