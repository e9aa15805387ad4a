"""TLS to the service: verified before a single byte of the request is sent."""

from __future__ import annotations

import datetime
import logging
import ssl
from pathlib import Path

import pytest
import trustme

from bridge.api.scanning import Decision
from bridge.config import model
from bridge.daemon import certificate_expiry, named_files
from bridge.errors import ConfigError, ScanUnavailable
from tests.scanner.fault_server import TOKEN, FaultServer, faults, scanner_of, submit

DAY = datetime.timedelta(days=1)
NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(issuer: trustme.CA, name: str = "127.0.0.1", **validity: datetime.datetime) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuer.issue_cert(name, **validity).configure_cert(context)
    return context


def client_tls(directory: Path, authority: trustme.CA, **keys: str) -> ssl.SSLContext:
    """As the daemon creates it from the configuration."""
    authority.cert_pem.write_to_path(directory / "ca.pem")
    settings = {"urls": ["https://127.0.0.1:1"], "token_file": "token", "ca_file": "ca.pem", **keys}
    return named_files.scanner_tls(model.Scanner.model_validate(settings), directory)


async def try_once(tls: ssl.SSLContext, ours: ssl.SSLContext) -> FaultServer:
    async with faults(tls=tls) as server, scanner_of(server, tls=ours) as scanner:
        assert (await submit(scanner)).decision is Decision.DELIVER
        return server


async def refused(tls: ssl.SSLContext, ours: ssl.SSLContext, why: str) -> FaultServer:
    async with faults(tls=tls) as server, scanner_of(server, tls=ours) as scanner:
        with pytest.raises(ScanUnavailable, match=why):
            await submit(scanner)
        return server


async def test_the_end_of_the_scanners_certificate_is_known(authority: trustme.CA, tmp_path: Path) -> None:
    """For the metrics, from the last connection."""
    end = (NOW + 7 * DAY).replace(microsecond=0)
    ours, theirs = client_tls(tmp_path, authority), server_tls(authority, not_after=end)
    async with faults(tls=theirs) as server, scanner_of(server, tls=ours) as scanner:
        await submit(scanner)
        certificate = scanner.hosts[0].certificate
    assert certificate is not None and certificate_expiry.expiry_of(certificate) == end.timestamp()


async def test_a_verified_scanner_gets_the_mail(authority: trustme.CA, tmp_path: Path) -> None:
    """With its own CA and the right name."""
    server = await try_once(server_tls(authority), client_tls(tmp_path, authority))
    assert server.requests[0].fields["authorization"] == f"Bearer {TOKEN}"


async def test_a_scanner_that_cannot_be_verified_never_sees_the_token(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Expired, for another name, or signed by another CA: not one byte of the request is sent."""
    ours = client_tls(tmp_path, authority)
    cases = {
        "expired": server_tls(authority, not_before=NOW - 9 * DAY, not_after=NOW - 2 * DAY),
        "mismatch": server_tls(authority, "scan.example.org"),
        "self-signed": server_tls(trustme.CA()),
    }
    with caplog.at_level(logging.DEBUG, "bridge"):
        for tls in cases.values():
            server = await refused(tls, ours, "its certificate is not valid")
            assert server.bytes_seen == 0 and not server.requests
    assert TOKEN not in caplog.text


async def test_the_system_does_not_trust_a_private_authority(authority: trustme.CA) -> None:
    """Without ca_file the system's certificates decide."""
    settings = model.Scanner.model_validate({"urls": ["https://127.0.0.1:1"], "token_file": "token"})
    server = await refused(server_tls(authority), named_files.scanner_tls(settings, Path()), "not valid")
    assert server.bytes_seen == 0


async def test_plain_http_on_a_tls_port_is_no_decision(authority: trustme.CA, tmp_path: Path) -> None:
    """A server that speaks no TLS gets nothing."""
    async with faults() as server:
        server.scheme = "https"
        async with scanner_of(server, tls=client_tls(tmp_path, authority), connect_timeout_s=0.2) as scanner:
            with pytest.raises(ScanUnavailable):
                await submit(scanner)
            assert not server.requests


def demanding(authority: trustme.CA) -> ssl.SSLContext:
    """A server that requires a client certificate."""
    context = server_tls(authority)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_client_certificate_is_shown(authority: trustme.CA, tmp_path: Path) -> None:
    """Mutual TLS, with the files the configuration names."""
    ours = authority.issue_cert("bridge.example")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    tls = client_tls(tmp_path, authority, client_cert_file="cert.pem", client_key_file="key.pem")
    assert (await try_once(demanding(authority), tls)).requests


async def test_a_missing_client_certificate_is_no_decision(authority: trustme.CA, tmp_path: Path) -> None:
    """The server closes the connection; the mail is deferred."""
    server = await refused(demanding(authority), client_tls(tmp_path, authority), "127.0.0.1")
    assert not server.requests


@pytest.mark.parametrize("broken", ["ca_file", "client_cert_file"])
def test_unusable_files_are_configuration_errors(authority: trustme.CA, tmp_path: Path, broken: str) -> None:
    """Reported at start with the name of the key, not at the first mail."""
    (tmp_path / "junk.pem").write_text("not a certificate\n")
    keys = {"ca_file": "junk.pem"} if broken == "ca_file" else {}
    if broken == "client_cert_file":
        keys = {"client_cert_file": "junk.pem", "client_key_file": "junk.pem"}
    with pytest.raises(ConfigError, match=f"scanner.{broken}"):
        client_tls(tmp_path, authority, **keys)
