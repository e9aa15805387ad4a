"""Recipients whose spelling Postfix folds or completes: what it takes for its own domain has that domain's tenant and
entries.

Postfix accepted `v@straße.test` for its domain `strasse.test`, and the mail was scanned and handed on as if it were for
a domain without a tenant.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.lists.personal_store import FILE, PersonalLists
from bridge.runtime.database import Database
from bridge.testing import SmtpClient, free_port, running_bridge, until
from tests.postfix_kit import Postfix

TENANT = "123e4567-e89b-12d3-a456-426614174000"
TENANTS: dict[str, Any] = {"tenants": [{"uid": TENANT, "recipient_domains": ["strasse.test"]}]}
SETTINGS = """\
smtputf8_enable = yes
append_dot_mydomain = yes
mydomain = test
relay_domains = strasse.test
relay_recipient_maps = inline:{ { sales@strasse.test = x } }
smtpd_relay_restrictions = reject_unauth_destination
"""
REFUSED = ["sales@stra\u00dfe.test", "sales@STRA\u1e9eE.test", "sales@strasse", "sales@stra\u00dfe"]
OF_THE_TENANT = ["sales@strasse.test", "\u017fales@strasse.test", "SALES@Strasse.Test.", "sales@stra\u017f\u017fe.test"]


@pytest.mark.parametrize("protects", [False, True], ids=["without the bridge", "with the bridge"])
def test_postfix_took_another_spelling_for_its_own_domain(tmp_path: Path, protects: bool) -> None:
    """Postfix accepts all of them, as far as it is concerned; the bridge refuses those that miss their tenant."""
    with running_bridge(tmp_path, TENANTS) as bridge:
        port = free_port()
        service = f"127.0.0.1:{port} inet n - n - - smtpd"
        if protects:
            service += f" -o smtpd_proxy_filter=127.0.0.1:{bridge.port}"
        with Postfix(service, bridge.next_hop.port, SETTINGS), SmtpClient(port) as client:
            client.open()
            client.say(b"MAIL FROM:<a@client.example> SMTPUTF8")
            refused = [client.say(f"RCPT TO:<{address}>".encode())[0] for address in REFUSED]
            accepted = [client.say(f"RCPT TO:<{address}>".encode())[0] for address in OF_THE_TENANT]
            assert all(reply.startswith(b"553 5.1.3 " if protects else b"250 ") for reply in refused), refused
            assert all(reply.startswith(b"250 ") for reply in accepted), accepted
            if protects:
                assert client.say(b"DATA")[0].startswith(b"354 ")
                assert client.say(b"Subject: x\r\n\r\nx\r\n.")[0].startswith(b"250 ")
                (submission,) = bridge.scanner.submissions
                assert submission.parameters["tenantUid"] == TENANT


COMPLETES = """\
append_dot_mydomain = yes
allow_percent_hack = yes
swap_bangpath = yes
mydomain = example.net
myorigin = mail.example.net
mydestination = mx.example.net
relay_domains = mail.example.net
smtpd_relay_restrictions = reject_unauth_destination
"""
COMPLETED = [
    "anna@mail",
    "anna",
    '"anna@mail.example.net"',
    "anna%mail.example.net@mx.example.net",
    "mail.example.net!anna",
]


@pytest.mark.parametrize("protects", [False, True], ids=["without entries", "with her block"])
def test_a_recipient_that_postfix_completes_missed_her_block(tmp_path: Path, protects: bool) -> None:
    """Postfix accepts all of them for anna@mail.example.net, who had blocked the sender."""
    with running_bridge(tmp_path) as bridge:
        if protects:
            lists = PersonalLists(Database.file(tmp_path / "state" / FILE))
            lists.block("anna@mail.example.net", "news@shop.example")
            until(lambda: len(bridge.daemon.personal.table) == 1, "the entry in memory")
            lists.close()
        port = free_port()
        service = f"127.0.0.1:{port} inet n - n - - smtpd -o smtpd_proxy_filter=127.0.0.1:{bridge.port}"
        with Postfix(service, bridge.next_hop.port, COMPLETES), SmtpClient(port) as client:
            client.open()
            client.say(b"MAIL FROM:<news@shop.example>")
            replies = [client.say(f"RCPT TO:<{address}>".encode())[0] for address in COMPLETED]
            assert all(reply.startswith(b"553 5.1.3 " if protects else b"250 ") for reply in replies), replies
