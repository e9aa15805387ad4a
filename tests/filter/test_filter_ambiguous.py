"""`refuse_ambiguous_mime`: mail with an ambiguous structure is refused before anyone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.testing import answer, result, running_bridge
from tests.filter.smtp_kit import counted, mail_lines

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
