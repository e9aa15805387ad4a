"""`log.addresses`: whoever turns it down finds nobody's address in the log, in no line."""

from __future__ import annotations

import json
import logging
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ScanUnavailable
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.list_match import ListAction, ListMatch
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from bridge.observe import log_format, mail_log
from bridge.observe.redaction import Mode, Redaction
from bridge.testing import TOKEN
from tests.daemon.process_kit import running, scanbridge

KEY = b"k" * 32
NAME = re.compile(r"~[0-9a-f]{16}")
VEILS = {"domain": Redaction("domain"), "hashed": Redaction("hashed", KEY)}


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("a@example.org", "*@example.org"),
        ('"a@b c"@example.org', "*@example.org"),
        ("a@[192.0.2.1]", "*@[192.0.2.1]"),
        ("jürgen@bücher.example", "*@bücher.example"),
        ("postmaster", "*"),
        ("", ""),
    ],
)
def test_an_address_is_its_domain_or_a_name(address: str, domain: str) -> None:
    assert Redaction().address(address) == address
    assert VEILS["domain"].address(address) == domain
    assert NAME.fullmatch(VEILS["hashed"].address(address)) or not address


def test_a_name_is_the_same_for_one_address_and_one_key_only() -> None:
    """Upper and lower case are one mailbox; another installation has other names."""
    name = VEILS["hashed"].address("a@example.org")
    assert VEILS["hashed"].address("A@Example.org") == name != VEILS["hashed"].address("b@example.org")
    assert Redaction("hashed", b"another").address("a@example.org") != name


@pytest.mark.parametrize(
    ("text", "veiled"),
    [
        ("550 5.1.1 <b@example.org>: rejected", "550 5.1.1 <*@example.org>: rejected"),
        (f"<{'x' * 5000}@example.org>", "<*@example.org>"),
        ("to b@example.org, c@example.net;", "to *@example.org, *@example.net;"),
        ('"b c"@example.org and (d@[192.0.2.1])', "*@example.org and (*@[192.0.2.1])"),
        ("postgresql://user@host/name is away", "postgresql://user@host/name is away"),
        ("nobody", "nobody"),
        ("@", "@"),
    ],
)  # fmt: skip
def test_addresses_are_found_in_any_text(text: str, veiled: str) -> None:
    assert VEILS["domain"].text(text) == veiled
    assert Redaction().text(text) == text


def record(address: str) -> Record:
    """A mail in which every field that can names this address."""
    client = Client("192.0.2.1", helo="mail.example.org", login=address)
    envelope = Envelope(address, (Recipient(address), Recipient(address)))
    tx = Transaction("ID1", Session("S1", "mx", "127.0.0.1", client), envelope, Message(Spool(10)), 0.0, 1.0)
    replies = (Reply(250, "2.0.0", "Ok"), Reply(550, "5.1.1", f"<{address}>: unknown"))
    outcome = Outcome(Action.RELAY, replies[1], replies=replies)
    listed = ListMatch("blocked", address, ListAction.REFUSED)
    return Record(tx, 9, None, outcome, ScanUnavailable(f"of {address}"), message_id=f"<{address}>", listed=listed)


LOCAL = st.text("abcxyz0189!#$%&'*+-/=?^_`{|}~.", min_size=6, max_size=40).filter(
    lambda text: not text.startswith("//")
)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("mode", VEILS)
@given(local=LOCAL)
def test_no_field_of_a_mails_line_names_anybody(mode: str, as_json: bool, local: str) -> None:
    lines: list[str] = []
    secret = f"Q{local}Q"
    mail_log.MailLog(lines.append, as_json, VEILS[mode]).decided(record(f"{secret}@example.org"))
    assert secret not in lines[0] and json.dumps(secret)[1:-1] not in lines[0]
    assert lines[0].count("example.org") == 1 or mode == "domain"  # the HELO stays


@pytest.mark.parametrize("form", [log_format.KeyValueFormatter, log_format.JsonFormatter])
def test_no_other_line_names_anybody(form: type[log_format.KeyValueFormatter]) -> None:
    """Neither its words nor its traceback."""
    try:
        raise ValueError("of secret@example.org")
    except ValueError:
        line = logging.LogRecord("x", logging.ERROR, "x", 1, "%s failed", ("secret@example.org",), sys.exc_info())
    assert "secret" in form().format(line)
    shown = form(VEILS["domain"]).format(line)
    assert "secret" not in shown and shown.count("*@example.org") == 3  # its source line is in the traceback, too


@pytest.mark.parametrize("mode", ["domain", "hashed"])
def test_a_daemon_names_nobody(tmp_path: Path, mode: Mode) -> None:
    """With two workers, through good mail, a next hop that repeats the address, and a stop."""
    log: dict[str, Any] = {"addresses": mode, "level": "debug"}
    with running(tmp_path, log=log, workers=2) as (bridge, _, next_hop):
        assert bridge.send(b"Message-ID: <secret.1@client.example>\r\n\r\nx\r\n").startswith("250 ")
        next_hop.replies[b"RCPT"] = b"550 5.1.1 <b@example.org>: unknown"
        assert "<b@example.org>" in bridge.send(), "the client may read its own words"
        one, two = sorted(bridge.mail_lines(2), key=lambda line: "unknown" in line)
        (name,) = re.findall(r" to=<(\S+)> ", one)
        assert f" to=<{name}> " in two and f'reply="550 5.1.1 <{name}>: unknown' in two
        shown = scanbridge("config", "address", "b@example.org", "-c", tmp_path / "bridge.yml").stdout.strip()
        assert shown == name
        bridge.signal()
        assert bridge.wait() == 0
        everything = bridge.log + bridge.output
        assert "b@example.org" not in everything and "a@client" not in everything and "secret.1" not in everything
    key = tmp_path / "state" / "log-key"
    assert key.exists() is (mode == "hashed")
    if mode == "hashed":
        assert NAME.fullmatch(name) and stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_text().strip() not in everything + TOKEN
