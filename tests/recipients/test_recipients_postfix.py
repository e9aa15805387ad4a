"""A real Postfix sends a mail for several recipients over LMTP."""

from __future__ import annotations

import smtplib
from pathlib import Path

from bridge.testing import free_port
from tests.postfix_kit import Postfix
from tests.recipients.recipients_kit import ONE, TWO, arrived, bridge_before, next_hop
from tests.requirements import need

MAIL = b"Subject: x\r\n\r\nhello\r\n"


def send(port: int, *recipients: str) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        assert client.sendmail("", list(recipients), MAIL) == {}


def test_postfix_learns_the_result_for_each_recipient_over_lmtp(tmp_path: Path) -> None:
    """One is delivered, one deferred, one bounced; they belong to three tenants in one transaction."""
    need("postfix", root=True)
    tenants = [
        {"uid": ONE, "recipient_domains": ["one.example"]},
        {"uid": TWO, "recipient_domains": ["two.example"]},
    ]
    with next_hop() as hop, bridge_before(hop, tmp_path, "lmtp", tenants=tenants) as bridge:
        hop.replies[b"RCPT <c@two.example>"] = b"550 5.1.1 No such user"
        hop.replies[b"RCPT <d@example.org>"] = b"450 4.2.1 Try later"
        port = free_port()
        services = f"127.0.0.1:{port} inet n - n - - smtpd\nlmtp unix - - n - - lmtp"
        with Postfix(services, 0, f"default_transport = lmtp:inet:[127.0.0.1]:{bridge.port}\n") as postfix:
            send(port, "b@one.example", "c@two.example", "d@example.org")
            postfix.logged(r"to=<b@one\.example>, .*status=sent \(250 2\.0\.0 Ok: queued as NEXT1\)")
            postfix.logged(r"to=<c@two\.example>, .*status=bounced .*550 5\.1\.1 No such user")
            postfix.logged(r"to=<d@example\.org>, .*status=deferred .*450 4\.2\.1 Try later")
        assert arrived(hop) == [["b"]]
        assert len(bridge.scanner.submissions) == 3
