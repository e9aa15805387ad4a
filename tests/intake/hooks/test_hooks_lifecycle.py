"""MTA Hooks: TLS, trust, limits, reload, stop, workers, and what the operator sees."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trustme

from bridge.config import model
from bridge.testing import RunningBridge, answer, result, until
from tests.hostile.hostile_kit import Hanging, bridge_process
from tests.intake.hooks.hooks_kit import MAIL, TOKEN, MailServer, facts, hooks_bridge


def _metrics(bridge: RunningBridge) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{bridge.admin_port}/metrics", timeout=60) as page:
        return str(page.read().decode())


def _write_certificate(authority: trustme.CA, directory: Path, name: str) -> None:
    leaf = authority.issue_cert("127.0.0.1", common_name=name)
    leaf.private_key_pem.write_to_path(directory / "key.pem")
    (directory / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))


def test_tls_and_a_renewed_certificate(tmp_path: Path) -> None:
    """HTTPS from the first byte; a reload changes the certificate and the token; plain HTTP is not answered."""
    authority = trustme.CA()
    _write_certificate(authority, tmp_path, "first")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    with hooks_bridge(tmp_path, tls=tls) as bridge:

        def connected() -> MailServer:
            server = MailServer(bridge.port)
            server.http = http.client.HTTPSConnection("127.0.0.1", bridge.port, timeout=60, context=context)
            return server

        def subject(server: MailServer) -> Any:
            return dict(pair for (pair,) in server.http.sock.getpeercert()["subject"])["commonName"]  # type: ignore[union-attr]

        with connected() as server:
            assert server.action(facts())[0] == "accept" and subject(server) == "first"
            _write_certificate(authority, tmp_path, "second")
            (tmp_path / "hooks-token").write_text("another-token")
            conf = bridge.daemon.config
            bridge.background.run(bridge.daemon.reload(lambda: conf))
            assert server.ask(facts())[0] == 401
        with connected() as server:
            server.token = "another-token"
            assert server.action(facts())[0] == "accept" and subject(server) == "second"
        with socket.create_connection(("127.0.0.1", bridge.port), 10) as sock:
            sock.sendall(b"GET /.well-known/mta-hooks HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"HTTP" not in sock.recv(4096)
        plain = model.Config.model_validate({**conf.model_dump(), "listeners": [
            {**conf.listeners[0].model_dump(), "tls": None}]})  # fmt: skip
        bridge.background.run(bridge.daemon.reload(lambda: plain))
        assert "tls: cannot be changed by a reload" in bridge.daemon.reloads.problem


def test_trust_limits_and_counts(tmp_path: Path) -> None:
    """Strangers are disconnected, a client over its limit reads 503, and metrics, status and history know all of it."""
    config = {"limits": {"max_connections_per_client": 2}}
    with hooks_bridge(tmp_path, config, trusted_clients=["127.0.0.1"]) as bridge:
        bridge.scanner.reply = answer(200, result("bounce"))
        with MailServer(bridge.port) as first, MailServer(bridge.port, "wrong-token") as second:
            assert first.action(facts())[0] == "reject"
            assert second.register()[0] == 401
            with MailServer(bridge.port) as third:
                assert third.send("GET", "/.well-known/mta-hooks") == (
                    503, {"error": {"code": "SATURATED", "message": "too many connections"}},
                )  # fmt: skip
            with socket.create_connection(("127.0.0.1", bridge.port), 10, ("127.0.0.9", 0)) as stranger:
                stranger.sendall(b"GET /.well-known/mta-hooks HTTP/1.1\r\nHost: x\r\n\r\n")
                try:
                    assert stranger.recv(100) == b""
                except ConnectionResetError:
                    pass
            page = _metrics(bridge)
            for line in (
                'scanbridge_connections_refused_total{listener="test",reason="client_limit"} 1',
                'scanbridge_connections_refused_total{listener="test",reason="token"} 1',
                'scanbridge_connections_refused_total{listener="test",reason="untrusted"} 1',
                'scanbridge_connections{listener="test"} 2',
            ):
                assert line in page, line
            with urllib.request.urlopen(f"http://127.0.0.1:{bridge.admin_port}/status", timeout=60) as status:
                assert json.load(status)["listeners"][0]["protocol"] == "mta-hooks"


def test_a_client_that_sends_too_much_is_deferred(tmp_path: Path) -> None:
    """At DATA, because a mail server need not ask at MAIL; the client is the mail server's."""
    config = {"limits": {"max_mails_per_client_per_minute": 1}}
    with hooks_bridge(tmp_path, config) as bridge, MailServer(bridge.port) as server:
        assert server.action(facts(None, "mail"))[0] == "accept"
        assert server.action(facts())[0] == "accept"
        assert server.action(facts()) == ("reject", (451, "4.7.1"))
        assert server.action(facts(client={"ip": "192.0.2.2", "port": 25, "ehlo": "other.example"}))[0] == "accept"
        assert bridge.daemon.metrics.limits_hit.values["test", "max_mails_per_client_per_minute"] == 1


def test_stop_finishes_mail_in_processing(tmp_path: Path) -> None:
    """The mail in the scanner is answered, an idle connection is closed, and no new one is accepted."""
    with hooks_bridge(tmp_path) as bridge, MailServer(bridge.port) as idle, MailServer(bridge.port) as busy:
        idle.register()
        busy.register()
        hanging = Hanging()
        bridge.scanner.reply = hanging
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(busy.action(facts())))
        thread.start()
        assert bridge.scanner.arrived.acquire(timeout=60)
        stopping = asyncio.run_coroutine_threadsafe(bridge.daemon.stop(10.0), bridge.background.loop)
        assert idle.http.sock.recv(1) == b""  # type: ignore[union-attr]
        bridge.background.loop.call_soon_threadsafe(hanging.release.set)
        thread.join(60)
        assert answers == [("accept", None)]
        stopping.result(60)


def test_workers_share_registrations(tmp_path: Path) -> None:
    """Whichever worker a request reaches knows the registration, and that it has ended; so does the next start."""
    (tmp_path / "hooks-token").write_text(TOKEN)
    options: dict[str, Any] = {"protocol": "mta-hooks", "hooks": {"token_file": "hooks-token"}}
    registration = ""
    for _ in range(2):
        with bridge_process(tmp_path, {"workers": 2}, is_program=False, **options) as process:
            for _ in range(6):
                with MailServer(process.port) as server:
                    server.registration = registration or (server.register() and server.registration)
                    registration = server.registration
                    assert server.action(facts())[0] == "accept"
    with bridge_process(tmp_path, {"workers": 2}, is_program=False, **options) as process:
        with MailServer(process.port) as server:
            assert server.send("DELETE", f"/mta-hooks/registrations/{registration}")[0] == 200
        for _ in range(6):
            with MailServer(process.port) as server:
                server.registration = registration
                assert server.ask(facts())[0] == 410
        assert TOKEN not in process.log.read_text()


def test_the_log_names_client_and_queue(tmp_path: Path, caplog: Any) -> None:
    """One line for each mail, as with every other protocol."""
    with hooks_bridge(tmp_path) as bridge, MailServer(bridge.port) as server, caplog.at_level("INFO"):
        assert server.action(facts(tls={"version": "TLSv1.3", "cipher": "x y"}, auth={"login": "me"}))[0] == "accept"
        until(lambda: "client=192.0.2.1" in caplog.text, "the line of the mail")
        (line,) = [record.getMessage() for record in caplog.records if "client=192.0.2.1" in record.getMessage()]
        assert "helo=far.example" in line and "from=<a@example.com>" in line and "ident=Q1 login=me tls=TLSv1.3" in line
        assert bridge.scanner.submissions[-1].email == MAIL


def _is_closed(sock: socket.socket) -> bool:
    """By the other side, which has sent nothing."""
    sock.settimeout(30)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_clients_that_do_not_begin_their_handshake_are_counted(tmp_path: Path) -> None:
    """Before its handshake, a connection was neither counted nor refused: strangers could take all descriptors."""
    authority = trustme.CA()
    _write_certificate(authority, tmp_path, "first")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    with hooks_bridge(tmp_path, {"limits": {"max_connections": 10}}, tls=tls) as bridge, ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(("127.0.0.1", bridge.port), 30))

        silent = [connect() for _ in range(10)]
        assert all(_is_closed(connect()) for _ in range(20))
        for sock in silent:
            sock.close()

        def answers() -> bool:
            http_ = http.client.HTTPSConnection("127.0.0.1", bridge.port, timeout=30, context=context)
            try:
                http_.request("GET", "/.well-known/mta-hooks")
                return http_.getresponse().status == 200
            except OSError:  # the others are not forgotten yet
                return False
            finally:
                http_.close()

        until(answers, "room for a mail server")


def test_an_untrusted_client_has_no_handshake(tmp_path: Path) -> None:
    _write_certificate(trustme.CA(), tmp_path, "first")
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    with (
        hooks_bridge(tmp_path, tls=tls, trusted_clients=["192.0.2.1"]) as bridge,
        socket.create_connection(("127.0.0.1", bridge.port), 30) as sock,
    ):
        assert _is_closed(sock)


def test_a_deadline_of_one_second_left_no_time_for_the_scan(tmp_path: Path) -> None:
    """A whole second was reserved for the reply: a listener without a next hop deferred all mail."""
    with hooks_bridge(tmp_path, deadline="1s") as bridge, MailServer(bridge.port) as server:
        assert server.action(facts())[0] == "accept"
