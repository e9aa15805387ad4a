"""A mail rebuilt from milter events."""

from __future__ import annotations

import pytest

from bridge.errors import ProtocolError
from bridge.intake.milter import protocol
from bridge.intake.milter.client_info import ClientInfo
from bridge.intake.milter.mail import MAX_STRIPPED, TOO_MANY_RECIPIENTS, Limits, Mail
from bridge.intake.one_tenant import RecipientGroups
from bridge.mail.message import Spool

LIMITS = Limits(max_message_size=1000, max_recipients=3, prefix=b"x-scan-")


def new_mail(params=(), room=10_000, limits=LIMITS):
    return Mail("a@example.org", params, Spool(room), limits)


def content(mail):
    return b"".join(mail.message.chunks())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"Subject", b" hello", b"Subject: hello\r\n"),
        (b"Subject", b"tight", b"Subject:tight\r\n"),
        (b"Subject", b"  two", b"Subject:  two\r\n"),
        (b"Subject", b"\ttab", b"Subject:\ttab\r\n"),
        (b"Subject", b"", b"Subject:\r\n"),
        (b"X-Folded", b" a\n\tb\n c", b"X-Folded: a\r\n\tb\r\n c\r\n"),
        (b"X-Folded", b" a\r\n\tb", b"X-Folded: a\r\n\tb\r\n"),
        (b"Subject", b" gr\xfc\xdfe \xe2\x82\xac", b"Subject: gr\xfc\xdfe \xe2\x82\xac\r\n"),
        (b"subJECT", b" case", b"subJECT: case\r\n"),
    ],
)
def test_odd_headers_are_kept(name, value, expected):
    """A field keeps what the sender wrote: spaces, folding, case and 8-bit bytes."""
    mail = new_mail()
    mail.add_fields([name + b"\0" + value + b"\0"])
    mail.end_headers()
    assert content(mail) == expected + b"\r\n"


def test_header_without_leading_space_gets_one():
    """We add the space after the colon for a mail server that cannot send it."""
    mail = Mail("", (), Spool(1000), LIMITS, leading_space=False)
    mail.add_fields([b"Subject\0hello\0"])
    mail.add_body(b"body\r\n")
    assert content(mail) == b"Subject: hello\r\n\r\nbody\r\n"


@pytest.mark.parametrize("data", [b"", b"Subject", b"Subject\0", b"Subject\0x", b"\0x\0"])
def test_header_without_name_or_end_is_refused(data):
    """A truncated field ends the connection."""
    with pytest.raises(ProtocolError):
        new_mail().add_fields([data])


def test_body_follows_one_blank_line_with_or_without_end_of_headers():
    """The blank line is written once, even if the mail server sends no end of headers."""
    for announced in (True, False):
        mail = new_mail()
        mail.add_fields([b"A\0 b\0"])
        if announced:
            mail.end_headers()
        mail.add_body(b"x")
        mail.add_recipient(b"<b@c>\0")
        mail.end(b"y")
        assert content(mail) == b"A: b\r\n\r\nxy"
        assert mail.refusal is None


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_mail_over_the_size_limit_is_refused_and_not_kept(size):
    """One byte too many: 552, and its memory is free again immediately."""
    spool = Spool(10_000)
    mail = Mail("", (), spool, LIMITS)
    mail.add_recipient(b"<b@c>\0")
    mail.end_headers()
    mail.add_body(b"x" * (size - 2))
    mail.end(b"")
    if size <= 1000:
        assert mail.refusal is None
        assert spool.in_use == size
    else:
        assert str(mail.refusal).startswith("552 5.3.4")
        assert spool.in_use == 0


def test_declared_size_over_the_limit_is_refused_at_mail():
    """SIZE= announces it before any content arrives."""
    assert str(new_mail(params=("SIZE=1001",)).refusal).startswith("552 5.3.4")
    for harmless in ("SIZE=1000", "SIZE=", "SIZE=x", "SIZE=" + "9" * 30, "SIZE=\u0664"):
        assert new_mail(params=(harmless,)).refusal is None


def test_full_spool_is_451():
    """All mail in processing shares one limit; without room the answer is: try again later."""
    mail = new_mail(room=100)
    mail.add_fields([b"A\0 b\0"])
    mail.add_body(b"x" * 200)
    mail.add_body(b"more")
    mail.end(b"")
    assert str(mail.refusal).startswith("451 4.3.2")
    assert mail.message._spool.in_use == 0


def test_full_disk_is_452(tmp_path):
    """When the spool's disk is full, the mail is deferred and nothing is left behind."""
    spool = Spool(10_000, memory_per_mail=10, directory=str(tmp_path / "missing"))  # any OSError
    mail = Mail("", (), spool, LIMITS)
    mail.add_body(b"x" * 100)
    assert str(mail.refusal).startswith("452 4.3.1")
    assert spool.in_use == 0


def test_recipients_beyond_the_limit_are_452_and_the_first_ones_stay():
    """The client sends the others in a second mail."""
    mail = new_mail()
    replies = [mail.add_recipient(b"<r%d@example.net>\0" % i) for i in range(5)]
    assert [reply.code if reply else None for reply in replies] == [None, None, None, 452, 452]
    assert mail.envelope.addresses == ("r0@example.net", "r1@example.net", "r2@example.net")


def test_recipients_of_two_tenants_are_two_mails():
    """A mail is scanned for one tenant; the client sends the others' recipients in a second mail."""
    groups = RecipientGroups({"one.example": ("1", 0), "two.example": ("2", 0), "eins.example": ("1", 0)})
    limits = Limits(1000, 10, b"x-scan-", groups)
    mail = new_mail(limits=limits)
    addresses = ["a@one.example", "b@two.example", "c@EINS.example", "d@other.example"]
    replies = [mail.add_recipient(f"<{address}>\0".encode()) for address in addresses]
    assert [reply.code if reply else None for reply in replies] == [None, 452, None, 452]


def test_mail_without_recipient_is_deferred():
    """A mail without an envelope cannot be scanned."""
    mail = new_mail()
    mail.end(b"x")
    assert mail.refusal is not None
    assert mail.refusal.is_temporary


def test_fields_with_our_prefix_are_counted_in_any_case():
    """Fields that only we may write are counted by name, so that they can be removed."""
    mail = new_mail()
    for name in (b"X-Scan-Id", b"x-SCAN-id", b"X-Scan-Verdict", b"X-Scanner", b"Subject"):
        mail.add_fields([name + b"\0 x\0"])
    mail.add_fields([b"Fold\0 a\n x-scan-b: c\0"])
    mail.end_headers()
    assert mail.forged == {b"x-scan-id": [1, 2], b"x-scan-verdict": [1]}


def test_flood_of_forged_fields_is_refused():
    """Thousands of edits would only keep the mail server busy."""
    mail = new_mail(limits=Limits(10**6, 3, b"x-scan-"))
    for number in range(MAX_STRIPPED + 1):
        mail.add_fields([b"X-Scan-%d\0 x\0" % number])
    assert mail.refusal is None
    mail.end_headers()
    assert str(mail.refusal).startswith("550 5.6.0")


def test_long_recipients_filled_the_memory_before_the_content():
    """A thousand ordinary ones with ORCPT fit; the first one always does."""
    mail = new_mail(limits=Limits(1000, 1000, b"x-scan-"))
    address = b"%03d" + b"a" * 90 + b"@example.org"
    for number in range(1000):
        name = address % number
        assert mail.add_recipient(b"<%b>\0NOTIFY=NEVER\0ORCPT=rfc822;%b\0" % (name, name)) is None
    for most in (1, 1000, 2000):
        mail = new_mail(limits=Limits(1000, most, b"x-scan-"))
        long = b"<b@example.org>\0" + b"X=%b\0" % (b"x" * 300) * 200
        taken = [mail.add_recipient(long) for _ in range(20)].count(None)
        assert taken == {1: 1, 1000: 5, 2000: 9}[most]
        assert mail.add_recipient(long) == TOO_MANY_RECIPIENTS and len(mail.recipients) == taken


def macro(event, *words):
    return bytes([event]) + b"".join(word + b"\0" for word in words)


def test_session_carries_queue_id_user_and_tls():
    """The log line has the mail server's queue id, the authenticated user and the cipher."""
    info = ClientInfo()
    info.connect(b"mx.example\x004\x09\xdd203.0.113.9\0")
    info.greet(b"client.example\0")
    info.add_macros(macro(protocol.MAIL, b"{auth_authen}", b"ann", b"{tls_version}", b"TLSv1.3", b"{cipher}", b"AES"))
    info.begin_mail()
    info.add_macros(macro(protocol.END_OF_BODY, b"i", b"4cXyZ"))
    session = info.session("S1", "milter", "127.0.0.1")
    assert (session.client.ident, session.client.login, session.tls) == ("4cXyZ", "ann", "TLSv1.3/AES")
    assert (session.client.address, session.client.port, session.client.name) == ("203.0.113.9", 2525, "mx.example")
    assert session.client.helo == "client.example"


def test_names_of_ciphers_go_into_the_log_plain():
    """The log does not quote them, so characters that need quoting are replaced."""
    info = ClientInfo()
    info.add_macros(macro(protocol.MAIL, b"{tls_version}", b"TLS\x1b[31m v1\nid=1", b"{cipher}", b"\xff" * 100))
    tls = info.session("S1", "milter", "unix").tls
    assert tls is not None
    assert tls.startswith("TLS??31m?v1?id?1/")
    assert len(tls) < 100


def test_host_name_the_mail_server_could_not_verify_is_left_out():
    """A forged reverse name is not used."""
    info = ClientInfo()
    info.add_macros(macro(protocol.CONNECT, b"{client_resolve}", b"FORGED"))
    info.connect(b"bank.example\x004\x09\xdd203.0.113.9\0")
    assert info.session("S1", "milter", "unix").client.name is None


def test_macros_of_one_mail_do_not_reach_the_next():
    """A new MAIL forgets the queue id of the previous mail, even without an ABORT between them."""
    info = ClientInfo()
    info.add_macros(macro(protocol.CONNECT, b"{client_resolve}", b"FORGED"))
    info.connect(b"bank.example\x004\x09\xdd203.0.113.9\0")
    info.add_macros(macro(protocol.MAIL, b"i", b"FIRST", b"{auth_authen}", b"ann"))
    info.begin_mail()
    info.add_macros(macro(protocol.END_OF_BODY, b"i", b"FIRST"))
    info.begin_mail()
    client = info.session("S1", "milter", "unix").client
    assert client.ident is None
    assert client.login is None
    assert client.name is None  # the client's own macros stay
