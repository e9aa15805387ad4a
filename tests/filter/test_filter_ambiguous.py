"""`refuse_ambiguous_mime`: mail with an ambiguous structure is refused before anyone is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.testing import running_bridge

BODY = b"\r\n--b\r\n\r\nx\r\n--b--\r\n"
ORDINARY = b"Subject: x\r\nContent-Type: multipart/mixed; boundary=b\r\n" + BODY
SLOPPY = ORDINARY.removesuffix(b"--b--\r\n")
TWO_BOUNDARIES = b"Subject: x\r\nContent-Type: multipart/mixed; boundary=b; boundary=c\r\n" + BODY
TWO_TYPES = b"Content-Type: text/plain\r\n" + ORDINARY
LARGE = TWO_TYPES + b"\r\n" + b"x" * 70 * 1024 * 5 + b"\r\n"


def test_ambiguous_mail_is_refused_without_a_scan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ordinary and sloppy mail passes; a crafted one is refused, in memory or in the spool, and the log says why."""
    caplog.set_level("INFO", "bridge")
    with running_bridge(tmp_path, refuse_ambiguous_mime=True) as bridge, bridge.client() as client:
        client.open()
        assert client.mail(ORDINARY).startswith(b"250 ")
        assert client.mail(SLOPPY).startswith(b"250 ")
        scanned = len(bridge.scanner.submissions)
        for content in (TWO_BOUNDARIES, TWO_TYPES, LARGE):
            assert client.mail(content).startswith(b"554 5.6.0 The MIME structure of this mail is ambiguous (id=")
        assert len(bridge.scanner.submissions) == scanned == 2
        assert "its structure is ambiguous (boundaries, boundary)" in caplog.text


@pytest.mark.parametrize("listener", [{}, {"refuse_ambiguous_mime": True, "mode": "shadow"}], ids=["default", "shadow"])
def test_ambiguous_mail_is_scanned_by_default(tmp_path: Path, listener: dict[str, object]) -> None:
    """The option is off by default, and has no effect in shadow mode."""
    with running_bridge(tmp_path, **listener) as bridge, bridge.client() as client:
        client.open()
        assert client.mail(TWO_TYPES).startswith(b"250 ")
        assert len(bridge.scanner.submissions) == 1
