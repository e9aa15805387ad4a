"""pymilter (libmilter, a thread for each connection) as a bridge: python pymilter.py PORT SCANNER"""

from __future__ import annotations

import http.client
import json
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import Milter  # type: ignore[import-not-found]

_HOST = urlsplit(sys.argv[2])
_BOUNDARY = "peer-of-the-benchmark"
_local = threading.local()


def submit(envelope: dict[str, Any], mail: bytes) -> str:
    parameters = json.dumps({"borderMtaData": envelope})
    body = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
        f'{parameters}\r\n--{_BOUNDARY}\r\nContent-Disposition: form-data; name="email"; filename="mail.eml"\r\n'
        "Content-Type: message/rfc822\r\n\r\n"
    ).encode() + mail + f"\r\n--{_BOUNDARY}--\r\n".encode()  # fmt: skip
    if not hasattr(_local, "connection"):
        _local.connection = http.client.HTTPConnection(_HOST.hostname or "", _HOST.port)
    headers = {
        "Authorization": "Bearer 0123456789abcdef",
        "Content-Type": f"multipart/form-data; boundary={_BOUNDARY}",
    }
    _local.connection.request("POST", "/v1/messageQueue/submitEmail", body, headers)
    return str(json.loads(_local.connection.getresponse().read())["decision"])


class Bridge(Milter.Base):  # type: ignore[misc]
    def connect(self, name: str, family: int, address: Any) -> int:
        self.address = address[0] if address else None
        return int(Milter.CONTINUE)

    def envfrom(self, sender: str, *params: str) -> int:
        self.sender, self.recipients, self.parts = sender.strip("<>"), [], []  # type: ignore[var-annotated]
        return int(Milter.CONTINUE)

    def envrcpt(self, recipient: str, *params: str) -> int:
        self.recipients.append(recipient.strip("<>"))
        return int(Milter.CONTINUE)

    def header(self, name: str, value: str) -> int:
        self.parts.append(f"{name}: {value}\r\n".encode("utf-8", "surrogateescape"))
        return int(Milter.CONTINUE)

    def eoh(self) -> int:
        self.parts.append(b"\r\n")
        return int(Milter.CONTINUE)

    def body(self, chunk: bytes) -> int:
        self.parts.append(chunk)
        return int(Milter.CONTINUE)

    def eom(self) -> int:
        envelope = {"envelopeFrom": self.sender, "envelopeRecipients": self.recipients, "remoteAddress": self.address}
        try:
            decision = submit(envelope, b"".join(self.parts))
        except (OSError, ValueError, KeyError):
            return int(Milter.TEMPFAIL)
        return int({"deliver": Milter.CONTINUE, "bounce": Milter.REJECT}.get(decision, Milter.TEMPFAIL))


if __name__ == "__main__":
    Milter.factory = Bridge
    Milter.runmilter("bridge", f"inet:{sys.argv[1]}@127.0.0.1", 120)
