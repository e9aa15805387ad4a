"""STARTTLS to the next hop: none, opportunistic, required."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from bridge.daemon import certificate_expiry
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.relay import client_replies
from bridge.relay.relay import SmtpRelay
from tests.relay.scripted_hop import EXTENSIONS, HEAD, ScriptedHop, make_tx, soon

OFFERED = (*EXTENSIONS, "STARTTLS")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def outcome(hop: ScriptedHop, **settings: object) -> Reply:
    relay = SmtpRelay(hop.settings(**settings))
    try:
        return (await relay.deliver(make_tx(), HEAD, soon())).reply
    except NextHopError as exc:
        return exc.reply
    finally:
        await relay.close()


async def test_required_with_a_good_certificate(authority: trustme.CA) -> None:
    async with ScriptedHop(extensions=OFFERED, tls=server_context(authority)) as hop:
        assert (await outcome(hop, tls="required", tls_context=trusting(authority))).code == 250
        assert hop.connections[0].tls
        assert [c[:8] for c in hop.connections[0].commands][:4] == ["EHLO bri", "STARTTLS", "EHLO bri", "MAIL FRO"]
        assert len(hop.contents) == 1


@pytest.mark.parametrize("tls", ["required", "opportunistic"])
async def test_the_end_of_the_next_hops_certificate_is_known(authority: trustme.CA, tls: str) -> None:
    """Even if it was not verified."""
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=7)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_after=end).configure_cert(context)
    async with ScriptedHop(extensions=OFFERED, tls=context) as hop:
        relay = SmtpRelay(hop.settings(tls=tls, tls_context=trusting(authority)))
        assert relay.pool.certificate is None
        await relay.deliver(make_tx(), HEAD, soon())
        await relay.close()
        assert relay.pool.certificate is not None
        assert certificate_expiry.expiry_of(relay.pool.certificate) == end.timestamp()


async def test_a_large_mail_over_tls(authority: trustme.CA) -> None:
    async with ScriptedHop(extensions=OFFERED, tls=server_context(authority)) as hop:
        relay = SmtpRelay(hop.settings(tls="required", tls_context=trusting(authority)))
        content = b".x" * 499 + b"\r\n"
        for _ in range(2):
            await relay.deliver(make_tx([content * 1000] * 5), HEAD, soon())
        await relay.close()
        assert [c == HEAD + content * 5000 for c in hop.contents] == [True, True]
        assert len(hop.connections) == 1


@pytest.mark.parametrize("case", ["unknown authority", "wrong name", "not offered", "refused"])
async def test_required_but_unavailable(authority: trustme.CA, case: str) -> None:
    """Nothing about the mail is sent to a next hop whose identity is not verified."""
    extensions = EXTENSIONS if case == "not offered" else OFFERED
    name = "other.example" if case == "wrong name" else "127.0.0.1"
    script = {"STARTTLS": "454 4.7.0 Not now"} if case == "refused" else {}
    trust = trusting(trustme.CA() if case == "unknown authority" else authority)
    async with ScriptedHop(dict(script), extensions, tls=server_context(authority, name)) as hop:
        assert await outcome(hop, tls="required", tls_context=trust) == client_replies.UNTRUSTED
        assert len(hop.connections) == 1
        assert not any(c.startswith(("MAIL", "XFORWARD")) for c in hop.connections[0].commands)


async def test_opportunistic_takes_any_certificate(authority: trustme.CA) -> None:
    async with ScriptedHop(extensions=OFFERED, tls=server_context(authority, "other.example")) as hop:
        assert (await outcome(hop, tls="opportunistic")).code == 250
        assert hop.connections[0].tls


@pytest.mark.parametrize("script", [{}, {"STARTTLS": "454 4.7.0 Not now"}])
async def test_opportunistic_goes_on_without(script: dict[str, str]) -> None:
    async with ScriptedHop(dict(script), OFFERED if script else EXTENSIONS) as hop:
        assert (await outcome(hop, tls="opportunistic")).code == 250
        assert len(hop.connections) == 1
        assert len(hop.contents) == 1


async def test_opportunistic_goes_on_in_the_clear_if_the_handshake_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedHop({"STARTTLS": "220 Ready\r\nNot TLS at all"}, OFFERED) as hop:
        hop.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # no certificate: it can only fail
        assert (await outcome(hop, tls="opportunistic")).code == 250
        assert len(hop.connections) == 2
        assert "continuing without TLS" in caplog.text


async def test_none_never_asks() -> None:
    async with ScriptedHop(extensions=OFFERED) as hop:
        assert (await outcome(hop, tls="none")).code == 250
        assert "STARTTLS" not in hop.commands


@pytest.mark.parametrize("injected", [b"250-evil\r\n250 XFORWARD ADDR\r\n", b"250 2.0"])
async def test_replies_injected_after_starttls_are_discarded(authority: trustme.CA, injected: bytes) -> None:
    """Plaintext must not be read as if it had been encrypted."""
    async with ScriptedHop(extensions=OFFERED, tls=server_context(authority), behind_starttls=injected) as hop:
        assert (await outcome(hop, tls="required", tls_context=trusting(authority))).code == 250
        assert not any(c.startswith("XFORWARD") for c in hop.connections[0].commands)


async def test_a_stalled_handshake_ends() -> None:
    async with ScriptedHop(extensions=OFFERED) as hop:

        async def never(conn: object) -> None:
            await hop.heard["QUIT"].wait()

        hop.handshake = never  # type: ignore[method-assign]
        assert await outcome(hop, tls="required", connect_timeout_s=0.3) == client_replies.UNREACHABLE


async def test_an_answer_behind_a_refused_starttls_ends_the_connection() -> None:
    """What came with the refusal was dropped, as it must be before a handshake, and the connection was used."""
    async with ScriptedHop({"STARTTLS": "454 4.7.0 Not now\r\n250 2.0.0 Ok"}, OFFERED) as hop:
        assert await outcome(hop, tls="opportunistic") == client_replies.UNREACHABLE
        assert not any(c.startswith("MAIL") for c in hop.connections[0].commands)
