"""What one small mail costs in the event loop: linear work, a few milliseconds, whatever the mail contains."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest

from bridge.service.analysis import headers
from bridge.service.analysis.content import links
from bridge.service.analysis.content.links import Links, NeedsProcess
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import is_linear
from tests.service.service_kit import mail, service

INLINE = Limits(archives=False)
SIZE = 64_000


def repeated(unit: str, size: int) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def names(length: int, size: int) -> str:
    """Links to names that are not ASCII, each of them different."""
    dice = random.Random(length)
    one = lambda: "".join(chr(dice.randrange(0xE0, 0x17F)) for _ in range(length))  # noqa: E731
    return " ".join(f"http://{one()}.example/" for _ in range(size // (2 * length + 17)))


@pytest.mark.parametrize("length", [5, 10, 30, 60, 100, 300])
def test_a_small_mail_of_international_names_blocked_the_event_loop(length: int) -> None:
    """Only a few such names are converted there; the rest is left to a process."""
    calls = 0

    def count(frame, event, _argument):
        nonlocal calls
        calls += event == "call" and frame.f_code is links.host_of.__code__

    content = mail(names(length, SIZE).encode(), Content_Type="text/plain; charset=utf-8")
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(NeedsProcess):
            inspect(content, INLINE)
    finally:
        sys.setprofile(before)
    assert calls <= links.INLINE_CHARACTERS / 5


def test_a_process_converts_a_limited_number_of_names() -> None:
    """Beyond it the mail is not fully inspected."""
    found = inspect(mail(names(10, 64_000).encode(), Content_Type="text/plain; charset=utf-8"), Limits())
    assert found.limits == {"urls"}


def test_a_newsletter_with_thousands_of_hosts_is_complete() -> None:
    """A list of links is ordinary mail."""
    text = " ".join(f"http://host-{number}.example/" for number in range(4000))
    found = inspect(mail(text.encode(), Content_Type="text/plain; charset=utf-8"), Limits())
    assert not found.limits and len(found.hosts) == 4000


def test_many_short_texts_count_together() -> None:
    """Each had an allowance of its own, so a mail of many parts could block the event loop."""
    part = b"--b\r\nContent-Type: text/html\r\n\r\n" + b"&a" * 1900 + b"\r\n"
    head = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    inspect(head + part * 2 + b"--b--\r\n", INLINE)
    with pytest.raises(NeedsProcess):
        inspect(head + part * 9 + b"--b--\r\n", INLINE)


def test_a_mail_with_a_few_international_names_stays_in_the_event_loop() -> None:
    """They are found there."""
    text = "http://b\u00fccher.example/ https://stra\u00dfe.example http://xn--bcher-kva.example"
    found = inspect(mail(text.encode(), Content_Type="text/plain; charset=utf-8"), INLINE)
    assert found.hosts == {"xn--bcher-kva.example", "xn--strae-oqa.example"}


@pytest.mark.parametrize("unit", ["&", "&a", "&#1", "<a ", "=//a", "www.", "<a href=http://a>a.b ", "&#0"])
def test_a_text_full_of_beginnings_is_left_to_a_process(unit: str) -> None:
    """Each is cheap, thousands of them are not."""
    with pytest.raises(NeedsProcess):
        Links(is_inline=True).scan(repeated(unit, SIZE), is_html=True)
    Links(is_inline=True).scan(repeated(unit, 4000 if len(unit) > 1 else 1900), is_html=True)


def scan_html(text: str) -> None:
    Links(1_000_000).scan(text, is_html=True)


LINEAR: dict[str, tuple[Callable[[str], object], str]] = {
    "zeros of a reference": (lambda text: scan_html("&#" + text), "0"),
    "digits of a reference": (lambda text: scan_html("&#" + text), "9"),
    "hexadecimal digits": (lambda text: scan_html("&#x" + text), "f"),
    "references": (scan_html, "&#65;"),
    "unfinished references": (scan_html, "&a"),
    "names of references": (scan_html, "&" + "a" * 40),
    "anchors": (scan_html, "<a "),
    "anchors with targets": (scan_html, "<a href=http://a.b>c.d </a>"),
    "one long name": (lambda text: scan_html("http://" + text), "\u00e9"),
    "dots": (lambda text: scan_html("http://" + text), "."),
    "backslashes": (scan_html, "\\"),
    "at signs": (scan_html, "@"),
    "references before at signs": (scan_html, "&quot;@"),
    "percent signs": (scan_html, "=//%41%4"),
    "words without an address": (headers.addresses, "a" * 63 + " "),
    "one long word": (lambda text: headers.addresses("@" + text), "a"),
    "at signs of addresses": (headers.addresses, "a@"),
    "brackets": (headers.addresses, "<"),
    "open brackets": (headers.addresses, "<a@b"),
    "display names": (lambda text: headers.check([("from", text + " <a@b>")]), "a@b "),
}


@pytest.mark.parametrize("name", LINEAR)
def test_twice_the_text_takes_at_most_about_twice_the_time(name: str) -> None:
    """A quadratic step would take four times as long for twice the text, and sixteen times for four times."""
    work, unit = LINEAR[name]
    assert is_linear(work, repeated(unit, 40_000), repeated(unit, 160_000))


def test_other_mail_is_answered_while_such_mail_is_inspected(tmp_path) -> None:
    """The service as a whole: hostile mail keeps its processes busy, and ordinary mail passes at once."""
    from concurrent.futures import ThreadPoolExecutor

    content = mail(names(30, SIZE - 2000).encode(), Content_Type="text/plain; charset=utf-8")
    with service(tmp_path) as running, ThreadPoolExecutor(4) as pool:
        running.submit(content)
        hostile = [pool.submit(running.submit, content) for _ in range(4)]
        assert running.submit(mail()).json["decision"] == "deliver"
        assert {answer.result().status for answer in hostile} == {200}
