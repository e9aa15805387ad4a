"""`log.addresses`: with `domain` or `hashed`, no line of the log contains an address."""

from __future__ import annotations

import json
import logging
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import ScanUnavailable
from bridge.events.event import EventType, Release, of_mail, released
from bridge.filter.outcome import Outcome, Record
from bridge.history.rows import row_of
from bridge.mail.action import Action
from bridge.mail.address import LoggedAddress
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.list_match import ListAction, ListMatch
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction
from bridge.observe import log_format, mail_log
from bridge.observe.log_throttle import LogThrottle
from bridge.observe.redaction import Mode, Redaction
from bridge.testing import TOKEN, SmtpClient, free_port, until
from tests.daemon.process_kit import running, scanbridge
from tests.processor_time import fair_cpu_s

KEY = b"k" * 32
NAME = re.compile(r"~[0-9a-f]{16}")
REDACTIONS = {"domain": Redaction("domain"), "hashed": Redaction("hashed", KEY)}


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
def test_an_address_is_replaced_by_its_domain_or_a_hash(address: str, domain: str) -> None:
    assert Redaction().address(address) == address
    assert REDACTIONS["domain"].address(address) == domain
    assert NAME.fullmatch(REDACTIONS["hashed"].address(address)) or not address


def test_a_hash_depends_on_the_address_and_the_key() -> None:
    """Letter case does not matter; another installation has other hashes."""
    name = REDACTIONS["hashed"].address("a@example.org")
    assert REDACTIONS["hashed"].address("A@Example.org") == name != REDACTIONS["hashed"].address("b@example.org")
    assert Redaction("hashed", b"another").address("a@example.org") != name


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("550 5.1.1 <b@example.org>: rejected", "550 5.1.1 <*@example.org>: rejected"),
        (f"<{'x' * 5000}@example.org>", "<*@example.org>"),
        ("to b@example.org, c@example.net;", "to *@example.org, *@example.net;"),
        ('"b c"@example.org and (d@[192.0.2.1])', "*@example.org and (*@[192.0.2.1])"),
        ("postgresql://user@host/name is away", "postgresql://user@host/name is away"),
        ("a@[192.0.2.1 and b@[c@[d]", "*@[192.0.2.1 and *@[*@[d]"),
        ("nobody", "nobody"),
        ("@", "@"),
    ],
)  # fmt: skip
def test_addresses_are_found_in_any_text(text: str, redacted: str) -> None:
    assert REDACTIONS["domain"].text(text) == redacted
    assert Redaction().text(text) == text


def record(address: str) -> Record:
    """A mail with this address in every field that can contain one."""
    client = Client("192.0.2.1", helo="mail.example.org", ident=address, login=address)
    envelope = Envelope(address, (Recipient(address), Recipient(address)))
    tx = Transaction("ID1", Session("S1", "mx", "127.0.0.1", client), envelope, Message(Spool(10)), 0.0, 1.0)
    replies = (Reply(250, "2.0.0", "Ok"), Reply(550, "5.1.1", f"<{address}>: unknown"))
    result = AnalysisResult(Decision.DELIVER, ggrid=address, verdict=f"from {address}", tags=(address,))
    outcome = Outcome(Action.RELAY, replies[1], result, replies=replies)
    listed = ListMatch("blocked", address, ListAction.REFUSED)
    found = Record(tx, 9, None, outcome, ScanUnavailable(f"of {address}"), message_id=f"<{address}>", listed=listed)
    found.next_id, found.subject = address, f"for {address}".encode()
    return found


def _texts(found: object) -> Iterator[str]:
    """Every text in it, however deep."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, Mapping):
        yield from _texts(list(found.items()))
    elif isinstance(found, Iterable):
        for one in found:
            yield from _texts(one)


LOCAL = st.text("abcxyz0189!#$%&'*+-/=?^_`{|}~.", min_size=6, max_size=40).filter(
    lambda text: not text.startswith("//")
)


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("mode", REDACTIONS)
@given(local=LOCAL)
def test_no_field_of_a_mails_line_contains_an_address(mode: str, as_json: bool, local: str) -> None:
    lines: list[str] = []
    secret = f"Q{local}Q"
    mail_log.MailLog(lines.append, as_json, REDACTIONS[mode]).decided(record(f"{secret}@example.org"))
    assert secret not in lines[0] and json.dumps(secret)[1:-1] not in lines[0]
    assert lines[0].count("example.org") == 1 or mode == "domain"  # the HELO is kept


@pytest.mark.parametrize("mode", REDACTIONS)
@given(local=LOCAL)
def test_no_event_and_no_row_of_the_history_contains_an_address(mode: str, local: str) -> None:
    """What the log hides is hidden wherever a mail is described."""
    secret = f"Q{local}Q"
    mail = record(f"{secret}@example.org")
    events = [event.data for event in of_mail(mail, EventType, REDACTIONS[mode], 0.0)]
    rows = row_of(mail, 0.0, "", REDACTIONS[mode])
    assert events and secret not in "".join(_texts(events))
    assert secret not in "".join(_texts(rows))


@pytest.mark.parametrize("form", [log_format.KeyValueFormatter, log_format.JsonFormatter])
def test_no_other_line_contains_an_address(form: type[log_format.KeyValueFormatter]) -> None:
    """Neither the message nor the traceback."""
    try:
        raise ValueError("of secret@example.org")
    except ValueError:
        line = logging.LogRecord("x", logging.ERROR, "x", 1, "%s failed", ("secret@example.org",), sys.exc_info())
    assert "secret" in form().format(line)
    shown = form(REDACTIONS["domain"]).format(line)
    assert "secret" not in shown and shown.count("*@example.org") == 3  # the traceback includes the source line


@pytest.mark.parametrize("mode", ["domain", "hashed"])
def test_the_log_of_a_daemon_contains_no_address(tmp_path: Path, mode: Mode) -> None:
    """Two workers, delivered mail, a next hop that repeats the address, and a stop."""
    log: dict[str, Any] = {"addresses": mode, "level": "debug"}
    with running(tmp_path, log=log, workers=2) as (bridge, _, next_hop):
        assert bridge.send(b"Message-ID: <secret.1@client.example>\r\n\r\nx\r\n").startswith("250 ")
        next_hop.replies[b"RCPT"] = b"550 5.1.1 <b@example.org>: unknown"
        assert "<b@example.org>" in bridge.send(), "the reply to the client is not redacted"
        delivered, refused = sorted(bridge.mail_lines(2), key=lambda line: "unknown" in line)
        (name,) = re.findall(r" to=<(\S+)> ", delivered)
        assert f" to=<{name}> " in refused and f'reply="550 5.1.1 <{name}>: unknown' in refused
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


@pytest.mark.parametrize("mode", REDACTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "a@[" * 300_000,
        '""@[' * 300_000,
        "(" * 500_000 + ")" * 500_000 + "@b c",
        '\\"' * 500_000 + "@x",
        '"\\' * 500_000,
        "a@b " * 250_000,
    ],
)
def test_one_long_field_kept_the_event_loop_from_all_other_mail(mode: str, text: str) -> None:
    """A Message-ID of 1 MiB took 1.7 seconds, and quotes after backslashes took quadratic time."""
    hidden: list[str] = []

    def hide() -> None:
        hidden[:] = [REDACTIONS[mode].address(text), REDACTIONS[mode].text(text)]

    assert fair_cpu_s(hide) < 0.5
    assert "a@b" not in " ".join(hidden)


@pytest.mark.parametrize("mode", REDACTIONS)
@pytest.mark.parametrize("local", ["postmaster", '"post master"', "jürgen"])
def test_an_address_without_a_domain_was_shown_where_a_next_hop_repeated_it(mode: str, local: str) -> None:
    """In a reply or an error, only the addresses of the mail itself are known to be some."""
    client = Client("192.0.2.1", login=local)
    tx = Transaction(
        "ID1", Session("S1", "mx", "p", client), Envelope(local, (Recipient(local), Recipient("b@x.example"))),
        Message(Spool(10)), 0.0, 1.0,
    )  # fmt: skip
    replies = (Reply(550, "5.1.1", f"<{local}>: unknown"), Reply(550, "5.1.1", "<html>"))
    found = Record(tx, 9, None, Outcome(Action.RELAY, replies[0], None, replies=replies), ScanUnavailable(f"<{local}>"))
    lines: list[str] = []
    mail_log.MailLog(lines.append, False, REDACTIONS[mode]).decided(found)
    release = Release("ID1", local, (local,), "ann", f"250 to <{local}>")
    said = [
        *lines,
        *_texts([event.data for event in of_mail(found, EventType, REDACTIONS[mode], 0.0)]),
        *_texts(row_of(found, 0.0, "", REDACTIONS[mode])),
        *_texts(released(release, REDACTIONS[mode], 0.0).data),
    ]
    assert local not in "".join(said) and json.dumps(local)[1:-1] not in "".join(said)
    assert "<html>" in lines[0] and "<html>" in "".join(said)


@pytest.mark.parametrize("form", [log_format.KeyValueFormatter, log_format.JsonFormatter])
@pytest.mark.parametrize("mode", REDACTIONS)
def test_an_address_without_a_domain_was_shown_in_a_line_that_stands_for_others(
    mode: str, form: type[log_format.KeyValueFormatter]
) -> None:
    limit = LogThrottle()
    lines = []
    for number in range(30):
        line = logging.LogRecord("x", logging.INFO, "x", 1, "%d%%: <%s>", (number, LoggedAddress("anna")), None)
        lines += [form(REDACTIONS[mode]).format(line)] if limit.filter(line) else []
        assert form().format(line).count("<anna>") == 1
    limit._kinds["x", 1].tokens = 1.0
    (last,) = limit.summaries()
    lines.append(form(REDACTIONS[mode]).format(last))
    assert "anna" not in "".join(lines) and "29%: <" in lines[-1] and "> (and 9 more like it)" in lines[-1]


def test_lines_about_refusals_showed_addresses_without_a_domain(tmp_path: Path) -> None:
    """A recipient that is one too many, and a client that is not trusted."""
    one, other = free_port(), free_port()
    listeners = [
        {"name": "one", "address": f"127.0.0.1:{one}"},
        {"name": "other", "address": f"127.0.0.1:{other}", "trusted_clients": ["192.0.2.1"]},
    ]
    sections = {"log": {"addresses": "hashed"}, "limits": {"max_recipients": 1}, "listeners": listeners}
    with running(tmp_path, **sections) as (bridge, _, _):
        with SmtpClient(one) as client:
            client.open()
            client.say(b"MAIL FROM:<anna>", b"RCPT TO:<b@x.example>")
            assert client.say(b"RCPT TO:<anna>")[0].startswith(b"452")
        with SmtpClient(other) as client:
            client.open()
            assert client.say(b"MAIL FROM:<anna>")[0].startswith(b"550")
        until(lambda: "untrusted, mail from <~" in bridge.log and "recipient <~" in bridge.log, "the lines")
        assert "anna" not in bridge.log


def test_a_long_text_is_cut_between_words_so_that_no_half_address_is_shown() -> None:
    text = "x" * 65_530 + " john.doe@example.org and more"
    assert "john" not in REDACTIONS["hashed"].text(text)
    assert REDACTIONS["domain"].text('said \\"john doe"@example.org') == "said \\*@example.org"


def test_only_the_recipients_that_a_line_names_are_redacted() -> None:
    """A thousand of them took seconds, although the line names twenty."""
    envelope = Envelope("a@client.example", tuple(Recipient("(" * 900 + ")" * 900 + f"u{n}@b c") for n in range(1000)))
    tx = Transaction("1", Session("s", "l", "p"), envelope, Message(Spool(1 << 20)), 0.0, 1.0)
    record = Record(tx, 1, outcome=Outcome(Action.TEMPFAIL, Reply(451, "4.0.0", "x")))
    assert fair_cpu_s(lambda: mail_log._fields(record, REDACTIONS["hashed"])) < 0.5
    fields = mail_log._fields(record, REDACTIONS["hashed"])
    assert (fields["nrcpt"], fields["to"].count("<~"), fields["to"][-4:]) == (1000, 20, ",...")
