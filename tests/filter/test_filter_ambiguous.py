"""`refuse_ambiguous_mime`: mail with an ambiguous structure is refused before anyone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.mime import encodings
from bridge.mime.structure import Bounds, doubts
from bridge.testing import answer, result, running_bridge
from tests.filter.smtp_kit import counted, mail_lines
from tests.processor_time import fair_cpu_s

BODY = b"\r\n--b\r\n\r\nx\r\n--b--\r\n"
ORDINARY = b"Subject: x\r\nContent-Type: multipart/mixed; boundary=b\r\n" + BODY
SLOPPY = ORDINARY.removesuffix(b"--b--\r\n")
TWO_BOUNDARIES = b"Subject: x\r\nContent-Type: multipart/mixed; boundary=b; boundary=c\r\n" + BODY
TWO_TYPES = b"Content-Type: text/plain\r\n" + ORDINARY
LARGE = TWO_TYPES + b"\r\n" + b"x" * 70 * 1024 * 5 + b"\r\n"


def test_ambiguous_mail_is_refused_without_a_scan(tmp_path: Path) -> None:
    """Ordinary and sloppy mail passes; a crafted one is refused, in memory or in the spool, and its line says why."""
    with running_bridge(tmp_path, refuse_ambiguous_mime=True) as bridge, bridge.client() as client:
        client.open()
        with mail_lines() as lines:
            assert client.mail(ORDINARY).startswith(b"250 ")
            assert client.mail(SLOPPY).startswith(b"250 ")
            scanned = len(bridge.scanner.submissions)
            for content in (TWO_BOUNDARIES, TWO_TYPES, LARGE):
                assert client.mail(content).startswith(b"554 5.6.0 The MIME structure of this mail is ambiguous (id=")
            assert len(bridge.scanner.submissions) == scanned == 2
        types, boundaries = "mime:ambiguous:duplicate-type", "mime:ambiguous:boundaries, mime:ambiguous:boundary"
        assert [line.get("why") for line in lines] == [None, None, boundaries, types, types]
        assert [line.get("error") for line in lines] == [None, None, *["ambiguous"] * 3]
        assert {line["rule"] for line in lines[2:]} == {"listeners.test.refuse_ambiguous_mime"}
        assert counted(bridge, "ambiguous_mails_total", listener="test", reason="duplicate-type") == 2
        assert counted(bridge, "failures_total", reason="ambiguous") == 3


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"X: y\r\n" * 2000 + TWO_TYPES, id="fields"),
        pytest.param(b"X: %b\r\n" % (b"y" * 256 * 1024) + TWO_TYPES, id="header"),
        pytest.param(ORDINARY.removesuffix(b"--b--\r\n") + b"--b\r\n\r\n" * 2000 + TWO_TYPES, id="parts"),
        pytest.param(b"Content-Type: message/rfc822\r\n\r\n" * 31 + TWO_TYPES, id="depth"),
    ],
)
def test_what_a_limit_hides_was_not_refused(tmp_path: Path, content: bytes) -> None:
    """A structure that is not read to its end may contain anything: 2,001 fields let crafted mail pass."""
    with (
        running_bridge(tmp_path, refuse_ambiguous_mime=True) as bridge,
        bridge.client() as client,
        mail_lines() as lines,
    ):
        client.open()
        assert client.mail(content).startswith(b"554 5.6.0 ")
        assert lines[-1]["why"] == "mime:ambiguous:unread" and not bridge.scanner.submissions
        assert counted(bridge, "ambiguous_mails_total", listener="test", reason="unread") == 1


def test_the_fourth_disposition_was_not_read() -> None:
    """Fields that differ are ordinary, so a crafted one was hidden behind three others."""
    others = b"".join(b"Content-Disposition: attachment; filename=%d\r\n" % number for number in range(3))
    crafted = b"Content-Disposition: attachment; filename*0=a; filename*0=b\r\n"
    assert "name-pieces" in doubts(others + crafted + b"\r\nx\r\n", Bounds())


def test_ambiguous_mail_is_scanned_by_default(tmp_path: Path) -> None:
    with running_bridge(tmp_path) as bridge, bridge.client() as client, mail_lines() as lines:
        client.open()
        assert client.mail(TWO_TYPES).startswith(b"250 ")
        assert len(bridge.scanner.submissions) == 1 and "why" not in lines[-1]


@pytest.mark.parametrize("code", [200, 500], ids=["decision", "no decision"])
def test_shadow_mode_did_not_show_that_ambiguous_mail_would_be_refused(tmp_path: Path, code: int) -> None:
    """The mail is scanned and relayed; its line says that it would be refused, and why."""
    with (
        running_bridge(tmp_path, refuse_ambiguous_mime=True, mode="shadow") as bridge,
        bridge.client() as client,
        mail_lines() as lines,
    ):
        client.open()
        assert client.mail(ORDINARY).startswith(b"250 ") and lines[-1]["would"] == "relay"
        bridge.scanner.reply = answer(code, result("deliver") if code == 200 else b"")
        scanned = len(bridge.scanner.submissions)
        assert client.mail(TWO_TYPES).startswith(b"250 ") and len(bridge.scanner.submissions) > scanned
        assert (lines[-1]["action"], lines[-1]["would"]) == ("relay", "reject")
        assert lines[-1]["rule"] == "listeners.test.refuse_ambiguous_mime"
        assert counted(bridge, "ambiguous_mails_total", listener="test", reason="duplicate-type") == 1
        why = lines[-1]["why"]
        assert why.startswith("mime:ambiguous:duplicate-type") and ("; " in why) == (code == 500)


def test_names_of_files_stopped_the_event_loop_for_seconds() -> None:
    """Names make no mail ambiguous, but all of them were read, in every way: 2 s for a mail of 64 KB."""
    head = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    parts = b"".join(b'--b\r\nContent-Type: a/b; name="%d%%2525\'5=?q?%%41(%%28).x"\r\n\r\n' % i for i in range(1000))
    content = head + parts + b"--b--\r\n"
    assert fair_cpu_s(lambda: doubts(content, Bounds())) < 0.5
    assert "duplicate-type" in doubts(content.replace(b"--b\r\n", b"--b\r\nContent-Type: c/d\r\n", 1), Bounds())


def test_a_preamble_with_the_word_begin_took_minutes() -> None:
    """Each of its lines was compared with those of uuencode: 80 s for a mail of 50 MB, and hundreds of megabytes."""
    text = b"we begin here\r\n" + b"ab\r\n" * 1_000_000
    content = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + text + b"--b\r\n\r\nx\r\n--b--\r\n"
    assert fair_cpu_s(lambda: doubts(content, Bounds())) < 1
    assert fair_cpu_s(lambda: encodings.has_uu_data(text, 0, len(text))) < 1
    assert encodings.has_uu_data(b"we begin here\r\n#86)C\r\n#86)C\r\n", 0, 30)
    assert encodings.has_uu_data(b"begin here\r\n" + b"ab cd\r\n" * 1000 + b"#86)C\r\n#86)C\r\n", 0, 7_100)
