"""How workers and API nodes identify themselves to a real NATS server: `.creds` files and mutual TLS."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import nkeys
import trustme

from tests.nats_kit import nats_server
from tests.rewriting import rewrite
from tests.service.cluster_kit import PASSWORD, nats_with_accounts, worker
from tests.service.service_kit import CONFIG, command, mail, service, wait_for

GREEN, RED = {"messageQueueStatus": "GREEN"}, {"messageQueueStatus": "RED"}


def _configuration(nats: str) -> str:
    return CONFIG.replace("core: {}", f"core: {{nats: {{{nats}, max_size: 1MiB}}}}")


def _scans(directory: Path, text: str) -> None:
    with worker(directory, text), service(directory, text) as front:
        wait_for(lambda: front.status().json == GREEN)
        assert front.submit(mail()).json["decision"] == "deliver"


class _Key:
    """An identity in NATS' own format, as `nsc` makes them."""

    def __init__(self, kind: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), kind)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def sign(self, subject: str, name: str, claims: dict[str, Any]) -> str:
        """A JWT about `subject`."""
        body = {"iss": self.public, "sub": subject, "name": name, "iat": int(time.time()), "nats": claims}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_base64(json.dumps(part).encode()) for part in (head, body))
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _deployment(directory: Path) -> str:
    """Server options for an operator with one account; leaves `nats.creds` of a user, and `other.creds` of no one."""
    operator, account, system = (
        _Key(kind) for kind in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT)
    )
    unlimited = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    ours = {"type": "account", "version": 2, "limits": {**unlimited, **storage}}
    jwts = {
        account.public: operator.sign(account.public, "ours", ours),
        system.public: operator.sign(system.public, "SYS", {**ours, "limits": unlimited}),
    }
    for name, issuer in (("nats", account), ("other", _Key(nkeys.PREFIX_BYTE_ACCOUNT))):
        user = _Key(nkeys.PREFIX_BYTE_USER)
        limits = {"subs": -1, "data": -1, "payload": -1}
        jwt = issuer.sign(user.public, "scanbridge", {"type": "user", "version": 2, **limits})
        (directory / f"{name}.creds").write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
    preload = "\n".join(f'{public}: "{jwt}"' for public, jwt in jwts.items())
    authority = operator.sign(operator.public, "operator", {"type": "operator", "version": 2})
    return (
        f'operator: "{authority}"\nsystem_account: {system.public}\nresolver: MEMORY\n'
        f'resolver_preload: {{\n{preload}\n}}\njetstream {{store_dir: "{directory}/store"}}\n'
    )


def test_a_credentials_file_of_an_account_is_enough(tmp_path):
    """Mail is scanned with it; the credentials of another operator's account are refused, and the check says so."""
    (tmp_path / "nats.conf").write_text(_deployment(tmp_path))
    with nats_server(tmp_path, "-c", str(tmp_path / "nats.conf")) as server:
        _scans(tmp_path, _configuration(f'servers: ["{server.url}"], credentials_file: nats.creds'))
        (tmp_path / "service.yml").write_text(
            _configuration(f'servers: ["{server.url}"], credentials_file: other.creds')
        )
        said = command(tmp_path, "check", "-c", "service.yml")
        assert said.returncode == 1
        assert "uthorization" in said.stdout + said.stderr


def test_mutual_tls_needs_our_certificate(tmp_path):
    """A server that demands a client's certificate gets it; without one, the check says what is missing."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    ours = authority.issue_cert("scanbridge.example.org")
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    (tmp_path / "nats.conf").write_text(
        f'tls {{cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.pem", ca_file: "{tmp_path}/ca.pem", '
        f'verify: true}}\njetstream {{store_dir: "{tmp_path}/store"}}\n'
    )
    with nats_server(tmp_path, "-c", str(tmp_path / "nats.conf")) as server:
        url = server.url.replace("nats:", "tls:")
        common = f'servers: ["{url}"], ca_file: {tmp_path}/ca.pem'
        _scans(tmp_path, _configuration(f"{common}, client_cert_file: cert.pem, client_key_file: key.pem"))
        (tmp_path / "service.yml").write_text(_configuration(common))
        said = command(tmp_path, "check", "-c", "service.yml")
        assert said.returncode == 1
        assert "the server requires a certificate: set client_cert_file and client_key_file" in said.stdout


def test_a_changed_password_was_used_only_after_a_reload(tmp_path):
    """NATS then ended the connections of all API nodes and workers, and all mail was deferred."""
    with nats_with_accounts(tmp_path) as nats:
        plain = nats.config("rotated", tmp_path)
        with service(tmp_path, plain) as front, worker(tmp_path, plain):
            wait_for(lambda: front.status().json == GREEN)
            settings = tmp_path / "nats.conf"
            rewrite(settings, settings.read_text().replace(PASSWORD, "another-password"))
            os.kill(nats.server.pid, signal.SIGHUP)
            wait_for(lambda: front.status().json == RED)
            rewrite(tmp_path / "password", "another-password")
            wait_for(lambda: front.status().json == GREEN)
            assert front.submit(mail()).json["decision"] == "deliver"
