"""One mail to the next hop and back: the commands, the refusals, the client's reply."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.mail.envelope import Recipient
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction
from bridge.relay import client_replies
from bridge.relay.relay import Delivered, SmtpRelay
from bridge.testing import DEADLINES_S, eventually
from tests.relay.scripted_hop import DROP, EXTENSIONS, HANG, HEAD, ScriptedHop, make_tx, soon

ONE_BY_ONE = tuple(e for e in EXTENSIONS if e != "PIPELINING")
BOTH_WAYS = pytest.mark.parametrize("extensions", [EXTENSIONS, ONE_BY_ONE], ids=["pipelined", "one-by-one"])


async def deliver(hop: ScriptedHop, tx: Transaction | None = None, **settings: object) -> Delivered:
    relay = SmtpRelay(hop.settings(**settings))
    try:
        return await relay.deliver(tx or make_tx(), HEAD, soon())
    finally:
        await relay.close()


async def refused(hop: ScriptedHop, tx: Transaction | None = None, **settings: object) -> Reply:
    with pytest.raises(NextHopError) as caught:
        await deliver(hop, tx, **settings)
    return caught.value.reply


@BOTH_WAYS
async def test_a_mail_goes_on_and_the_next_hops_reply_comes_back(extensions: tuple[str, ...]) -> None:
    async with ScriptedHop(extensions=extensions) as hop:
        done = await deliver(hop, make_tx(b"Subject: x\r\n\r\n.hidden\r\n", ("b@example.org", "c@example.org")))
        reply = Reply(250, "2.0.0", "Ok: queued as 4ABC123")
        assert done == Delivered(reply, "4ABC123", (reply, reply))
        assert hop.commands == [
            "MAIL FROM:<a@example.org> SIZE=37",
            "RCPT TO:<b@example.org>",
            "RCPT TO:<c@example.org>",
            "DATA",
        ]
        assert hop.contents == [HEAD + b"Subject: x\r\n\r\n.hidden\r\n"]


async def test_ehlo_says_our_name() -> None:
    async with ScriptedHop() as hop:
        await deliver(hop)
        assert hop.connections[0].commands[0] == "EHLO bridge.example"


async def test_a_server_that_knows_only_helo() -> None:
    """An old server gets the mail without parameters it could not understand."""
    async with ScriptedHop({"EHLO": "502 5.5.2 What?"}) as hop:
        await deliver(hop, make_tx(params=("RET=FULL",)))
        assert hop.commands[:2] == ["HELO bridge.example", "MAIL FROM:<a@example.org>"]


@pytest.mark.parametrize(
    ("script", "refusal"),
    [
        ({"MAIL": "550 5.7.1 Not from you"}, Reply(550, "5.7.1", "Not from you")),
        ({"MAIL": "452 4.3.1 Full"}, Reply(452, "4.3.1", "Full")),
        ({"RCPT": "550 5.1.1 No such user"}, Reply(550, "5.1.1", "No such user")),
        ({"RCPT": "450 4.2.0 Greylisted"}, Reply(450, "4.2.0", "Greylisted")),
        ({"DATA": "451 4.7.1 Not now"}, Reply(451, "4.7.1", "Not now")),
        ({"DATA": "554 No"}, Reply(554, "", "No")),
        ({"DOT": "554-5.7.1 Spam\r\n554 5.7.1 See our page"}, Reply(554, "5.7.1", "Spam\nSee our page")),
        ({"DOT": "452 4.3.1 Full"}, Reply(452, "4.3.1", "Full")),
        ({"DOT": "421 4.3.2 Going down"}, Reply(451, "4.3.2", "Going down")),
        ({"DOT": "521 5.3.2 Never"}, Reply(451, "4.3.2", "Never")),
        ({"MAIL": "421 4.7.0 Too many"}, Reply(451, "4.7.0", "Too many")),
        ({"RCPT": "421 Too many"}, Reply(451, "", "Too many")),
        ({"DATA": "421 Too many"}, Reply(451, "", "Too many")),
        ({"MAIL": "354 Go on"}, client_replies.OUT_OF_PLACE),
        ({"RCPT": "354 Go on"}, client_replies.OUT_OF_PLACE),
        ({"DATA": "250 Ok"}, client_replies.OUT_OF_PLACE),
        ({"DOT": "354 More"}, client_replies.OUT_OF_PLACE),
        ({"DOT": "250 2.0.0 Ok\r\n550 5.7.1 No"}, client_replies.OUT_OF_PLACE),  # the 250 may be the one too many
    ],
)
@BOTH_WAYS
async def test_the_next_hops_refusal_is_ours(
    script: dict[str, str], refusal: Reply, extensions: tuple[str, ...]
) -> None:
    """At every stage the client receives the next hop's reply, but never one that closes its connection."""
    async with ScriptedHop(dict(script), extensions) as hop:
        assert await refused(hop) == refusal
        assert len(hop.contents) == ("DOT" in script)


@pytest.mark.parametrize(
    ("rcpt", "refusal"),
    [
        (["250 2.1.5 Ok", "550 5.1.1 One", "554 5.1.1 Two"], Reply(550, "5.1.1", "One")),
        (["550 5.1.1 One", "450 4.2.0 Two", "250 2.1.5 Ok"], Reply(450, "4.2.0", "Two")),
        (["450 4.2.0 One", "550 5.1.1 Two", "451 4.2.0 Three"], Reply(450, "4.2.0", "One")),
    ],
)
@BOTH_WAYS
async def test_if_some_recipients_are_refused_nobody_gets_the_mail(
    rcpt: list[str], refusal: Reply, extensions: tuple[str, ...]
) -> None:
    """One reply cannot describe a partial delivery; 4xx wins, so that the client tries again."""
    async with ScriptedHop({"RCPT": list(rcpt)}, extensions) as hop:
        tx = make_tx(recipients=("b@example.org", "c@example.org", "d@example.org"))
        assert await refused(hop, tx) == refusal
        await asyncio.wait_for(hop.connections[0].ended.wait(), 30)
        assert hop.contents == []
        assert hop.connections[0].unfinished == b""
        if extensions is ONE_BY_ONE:
            assert "DATA" not in hop.commands


@BOTH_WAYS
async def test_after_a_refusal_the_connection_serves_the_next_mail(extensions: tuple[str, ...]) -> None:
    async with ScriptedHop(
        {"RCPT": ["550 5.1.1 No", "250 2.1.5 Ok"], "DATA": ["503 5.5.1 No recipients", "354 Go"]}, extensions
    ) as hop:
        if extensions is ONE_BY_ONE:
            hop.script["DATA"] = "354 Go"
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError):
            await relay.deliver(make_tx(), HEAD, soon())
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.close()
        assert len(hop.connections) == 1
        assert [c for c in hop.commands if c == "RSET" or c.startswith("MAIL")] == [
            "MAIL FROM:<a@example.org> SIZE=35",
            "RSET",
            "MAIL FROM:<a@example.org> SIZE=35",
            "MAIL FROM:<a@example.org> SIZE=35",
        ]


async def test_a_refused_rset_is_not_blamed_on_the_next_mail() -> None:
    """Otherwise the 503 to a nested MAIL would bounce the mail."""
    script = {"MAIL": ["450 4.7.1 No", "503 5.5.1 Nested MAIL"], "RCPT": "503 No", "DATA": "503 No"}
    async with ScriptedHop({**script, "RSET": "500 What?"}) as hop:
        relay = SmtpRelay(hop.settings())
        for wanted in (Reply(450, "4.7.1", "No"), client_replies.OUT_OF_PLACE):
            with pytest.raises(NextHopError) as caught:
                await relay.deliver(make_tx(), HEAD, soon())
            assert caught.value.reply == wanted
        await relay.close()


async def test_after_a_bounce_a_next_hop_without_rset_gets_a_new_connection() -> None:
    """The connection was used again, and its next mail deferred because of the RSET before it."""
    async with ScriptedHop({"MAIL": ["550 5.7.1 No", "250 2.1.0 Ok"], "RSET": "502 What?"}, ONE_BY_ONE) as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply == Reply(550, "5.7.1", "No")
        assert (await relay.deliver(make_tx(), HEAD, soon())).reply.is_success
        assert len(hop.connections) == 2 and len(hop.contents) == 1
        await relay.close()


async def test_xforward_comes_before_each_mail_and_its_refusal_does_no_harm() -> None:
    async with ScriptedHop(
        {"XFORWARD": ["250 2.0.0 Ok", "501 5.5.4 Bad NAME"]}, (*EXTENSIONS, "XFORWARD NAME ADDR HELO")
    ) as hop:
        relay = SmtpRelay(hop.settings())
        for number in (1, 2):
            client = Client(address=f"192.0.2.{number}", helo="a b")
            await relay.deliver(make_tx(client=client), HEAD, soon())
        await relay.close()
        assert [c for c in hop.commands if c.startswith("XFORWARD")] == [
            "XFORWARD NAME=[UNAVAILABLE] ADDR=192.0.2.1 HELO=a+20b",
            "XFORWARD NAME=[UNAVAILABLE] ADDR=192.0.2.2 HELO=a+20b",
        ]
        assert len(hop.contents) == 2


async def test_a_mail_that_the_next_hop_cannot_carry_is_not_offered_to_it() -> None:
    async with ScriptedHop(extensions=("PIPELINING",)) as hop:
        reply = await refused(hop, make_tx(sender="ä@example.org", params=("SMTPUTF8",)))
        assert (reply.code, reply.status) == (550, "5.6.7")
        assert hop.commands == []


async def test_a_thousand_recipients_in_one_write() -> None:
    """Replies are read while commands are still being written, so neither side waits for the other."""
    people = tuple(Recipient(f"{'r' * 50}{n}@example.org", ("NOTIFY=NEVER",)) for n in range(1000))
    async with ScriptedHop({"RCPT": "250 2.1.5 " + "Ok" * 250}) as hop:
        await deliver(hop, make_tx(recipients=people))
        assert sum(c.startswith("RCPT") for c in hop.commands) == 1000
        assert hop.commands[-2] == f"RCPT TO:<{'r' * 50}999@example.org> NOTIFY=NEVER"


async def test_twenty_mebibytes_with_leading_dots_arrive_byte_for_byte() -> None:
    """From memory or from the spool file, in whatever chunks."""
    lines = b"".join(b"." * (n % 5) + b"line %d \xe9\r\n" % n for n in range(4000))
    content = lines * (20 * 1024 * 1024 // len(lines) + 1) + b".\r\n..\r\n"
    async with ScriptedHop() as hop:
        odd = [content[i : i + 65521] for i in range(0, len(content), 65521)]
        relay = SmtpRelay(hop.settings())
        await relay.deliver(make_tx(odd), HEAD, soon())
        await relay.deliver(make_tx(odd, memory=1 << 30), HEAD, soon())
        await relay.close()
        assert [c == HEAD + content for c in hop.contents] == [True, True]


@pytest.mark.parametrize(("content", "wire"), [(b"", HEAD + b".\r\n"), (b"\r\nend", HEAD + b"\r\nend\r\n.\r\n")])
async def test_content_without_a_last_line_end(content: bytes, wire: bytes) -> None:
    async with ScriptedHop() as hop:
        await deliver(hop, make_tx(content))
        assert hop.connections[0].contents == [wire]


@pytest.mark.parametrize(
    ("dots", "outcome"),
    [
        (["250 2.1.5 One", "250 2.1.5 Two", "250 2.1.5 Three"], Reply(250, "2.1.5", "One")),
        (["250 2.1.5 One", "550 5.2.2 Full", "452 4.2.2 Full"], Reply(452, "4.2.2", "Full")),
        (["250 2.1.5 One", "550 5.2.2 Two", "554 5.2.2 Three"], Reply(550, "5.2.2", "Two")),
        (["250 2.1.5 One", "550 5.2.2 Two", DROP], client_replies.LOST),
        (["250 2.1.5 One", "450 4.2.2 Two", DROP], Reply(450, "4.2.2", "Two")),
        (["250 2.1.5 One", "421 4.3.2 Down"], Reply(451, "4.3.2", "Down")),
        (["550 5.2.2 One", "354 Two", "250 2.1.5 Three"], client_replies.OUT_OF_PLACE),
    ],
)
async def test_lmtp_answers_for_each_recipient(tmp_path: Path, dots: list[str], outcome: Reply) -> None:
    """One recipient that could get the mail later is enough for a 4xx."""
    async with ScriptedHop({"DOT": list(dots)}, lmtp=True, path=tmp_path / "lmtp") as hop:
        tx = make_tx(recipients=("b@example.org", "c@example.org", "d@example.org"))
        if outcome.is_success:
            assert (await deliver(hop, tx)).reply == outcome
        else:
            assert await refused(hop, tx) == outcome
        assert hop.connections[0].commands[0] == "LHLO bridge.example"
        assert len(hop.contents) == 1


async def test_smtp_over_a_unix_socket(tmp_path: Path) -> None:
    async with ScriptedHop(path=tmp_path / "smtp") as hop:
        assert (await deliver(hop)).reply.is_success


async def test_probe_tells_what_the_next_hop_offers() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        assert await relay.probe() == EXTENSIONS
        assert hop.connections[0].commands == ["EHLO bridge.example", "QUIT"]
        await relay.close()
    with pytest.raises(NextHopError) as caught:
        await relay.probe()
    assert caught.value.reply == client_replies.UNREACHABLE


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        ("SSH-2.0-OpenSSH_9.2", "not SMTP before the mail was sent"),
        (DROP, "connection lost before the mail was sent"),
    ],
)
async def test_a_connection_that_ends_before_mail_is_explained(greeting: str, words: str) -> None:
    """Operators read this text in the log."""
    async with ScriptedHop({"GREETING": greeting}) as hop:
        with pytest.raises(NextHopError, match=words):
            await deliver(hop)


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ({"GREETING": "554 5.3.2 No service"}, client_replies.UNREACHABLE),
        ({"GREETING": "421 4.3.2 Busy"}, client_replies.UNREACHABLE),
        ({"GREETING": DROP}, client_replies.UNREACHABLE),
        ({"GREETING": "SSH-2.0-OpenSSH_9.2"}, client_replies.UNREACHABLE),
        ({"EHLO": "421 4.3.2 Busy"}, client_replies.UNREACHABLE),
        ({"EHLO": "550 5.7.1 No", "HELO": "550 5.7.1 No"}, client_replies.UNREACHABLE),
        ({"MAIL": DROP}, client_replies.LOST),
        ({"RCPT": DROP}, client_replies.LOST),
        ({"DATA": DROP}, client_replies.LOST),
        ({"DOT": DROP}, client_replies.LOST),
        ({"MAIL": "nonsense"}, client_replies.LOST),
        ({"DOT": "nonsense"}, client_replies.LOST),
        ({"DOT": "250-" + "x" * 5000}, client_replies.LOST),
        ({"DOT": ("250-" + "x" * 1000 + "\r\n") * 100 + "250 x"}, client_replies.LOST),
    ],
)
@BOTH_WAYS
async def test_trouble_with_the_next_hop_is_a_451(
    script: dict[str, str], reply: Reply, extensions: tuple[str, ...]
) -> None:
    """Unreachable, lost, or not speaking SMTP: the client is told to try again, without internals."""
    async with ScriptedHop(dict(script), extensions) as hop:
        assert await refused(hop) == reply


@pytest.mark.parametrize("stage", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
async def test_a_silent_next_hop_is_given_up(stage: str) -> None:
    async with ScriptedHop({stage: HANG}) as hop:
        early = stage in ("GREETING", "EHLO")
        wanted = client_replies.UNREACHABLE if early else client_replies.LOST
        assert await refused(hop, connect_timeout_s=0.2 if early else 30.0, timeout_s=0.2) == wanted
        await eventually(lambda: hop.connections and hop.connections[0].ended.is_set(), "the end of the connection")


@pytest.mark.parametrize("stage", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA"])
async def test_the_deadline_ends_every_wait_before_the_dot(stage: str) -> None:
    async with ScriptedHop({stage: HANG}) as hop:
        relay = SmtpRelay(hop.settings())
        for patience_s in DEADLINES_S:
            with pytest.raises(NextHopError) as caught:
                await relay.deliver(make_tx(), HEAD, asyncio.get_running_loop().time() + patience_s)
            assert caught.value.reply == client_replies.LATE
            if hop.connections and (stage == "GREETING" or hop.heard[stage].is_set()):
                break
        await asyncio.wait_for(hop.connections[-1].ended.wait(), 30)
        assert hop.contents == []
        await relay.close()


async def test_after_the_deadline_nothing_is_started() -> None:
    async with ScriptedHop() as hop:
        relay = SmtpRelay(hop.settings())
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, asyncio.get_running_loop().time())
        assert caught.value.reply == client_replies.LATE
        assert hop.connections == []
        await relay.close()


async def test_each_reply_has_its_own_time() -> None:
    """A slow next hop that keeps answering is not silent."""

    async def slowly() -> str:
        await asyncio.sleep(0.3)  # the part of a slow server
        return "250 2.1.5 Ok"

    async with ScriptedHop({"RCPT": slowly}) as hop:
        tx = make_tx(recipients=tuple(f"r{n}@example.org" for n in range(5)))
        assert (await deliver(hop, tx, timeout_s=1.2)).reply.is_success


SMUGGLED = b"MAIL FROM:<ceo@example.org>%bRCPT TO:<b@example.org>%bDATA%bSubject: y%b%bevil%b.%bQUIT%b"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n\n", b"\r\r\n", b"\0\r\n"])
async def test_a_mail_in_which_the_next_hop_may_see_two_is_not_sent(end: bytes) -> None:
    """The SMTP intake refuses such a mail; one that came another way (milter, then the quarantine) stops here."""
    content = b"Subject: x\r\n\r\nhello" + end + b"." + end + SMUGGLED.replace(b"%b", end)
    async with ScriptedHop() as hop:
        assert await refused(hop, make_tx(content)) == client_replies.NOT_CLEAN
        assert await refused(hop, make_tx([content[at : at + 1] for at in range(len(content))], memory=1)) == (
            client_replies.NOT_CLEAN
        )
        assert hop.connections == []
