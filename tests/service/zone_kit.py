"""A DNS server on loopback, whose zone tests write, and a key whose signatures it has the public part of."""

from __future__ import annotations

import base64
import re
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.service.service_kit import CONFIG

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
)
DER = KEY.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
PUBLIC = base64.b64encode(DER).decode()
BROKEN = re.compile(r"broken\.|6[67]\.2\.0\.192\.")  # so the clients 192.0.2.66 and .67 have no names
SLOW_S = 0.15

Zone = dict[tuple[str, str], list[str]]


def txt(text: str) -> list[str]:
    return [" ".join(f'"{text[at : at + 200]}"' for at in range(0, len(text), 200))]


@contextmanager
def zone_server(zone: Zone) -> Iterator[int]:
    """Its port. Names with `silent.` get no answer, those with `broken.` a failure, those with `slow.` a late one."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, sock = self.request
            query = dns.message.from_wire(data)
            answer = dns.message.make_response(query)
            answer.flags |= dns.flags.RA
            question = query.question[0]
            kind = question.rdtype.name
            name = question.name.to_text().lower()
            if "silent." in name:
                return
            if BROKEN.search(name):
                answer.set_rcode(dns.rcode.SERVFAIL)
            elif (name, kind) in zone:
                answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, *zone[name, kind]))
            elif not any(known == name for known, _ in zone):
                answer.set_rcode(dns.rcode.NXDOMAIN)
            if "slow." in name:
                threading.Timer(SLOW_S, sock.sendto, (answer.to_wire(), self.client_address)).start()
            else:
                sock.sendto(answer.to_wire(), self.client_address)

    with socketserver.UDPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def with_dns(port: int, more: str = "", other: str = "") -> str:
    """The configuration of a service that asks this server."""
    settings = f"dns: true, timeout: 5s, nameservers: ['127.0.0.1:{port}']{more}"
    return CONFIG + f"analyzers: {{authentication: {{{settings}}}{other}}}\n"


def auth_tags(answer) -> set[str]:
    return {tag for tag in answer.json["tags"] if tag.startswith(("auth:", "failed:"))}
