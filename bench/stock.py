"""A complete simple implementation: stock aiosmtpd, httpx to the scanner, smtplib to the next hop.

    python bench/stock.py PORT SCANNER_URL NEXT_HOP_PORT CERT_FILE KEY_FILE

The peer of `make bench-memory`. It uses the libraries as their manuals show, no more and no less; the timeouts and the
size limit are ours, so that both accept the same mail.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import ssl
import sys
from typing import Any

import httpx2
from aiosmtpd.smtp import SMTP


class Handler:
    def __init__(self, url: str, next_hop: int) -> None:
        self._url, self._next_hop = f"{url}/v1/messageQueue/submitEmail", next_hop
        self._client = httpx2.AsyncClient(timeout=60, trust_env=False)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        border = {"envelopeFrom": envelope.mail_from, "envelopeRecipients": envelope.rcpt_tos}
        files = {
            "parameters": (None, json.dumps({"borderMtaData": border}), "application/json"),
            "email": ("mail.eml", envelope.content, "message/rfc822"),
        }
        try:
            answer = await self._client.post(self._url, files=files)
            if answer.json()["decision"] == "deliver":
                await asyncio.get_running_loop().run_in_executor(None, self._relay, envelope)
        except (httpx2.HTTPError, ValueError, KeyError, OSError, smtplib.SMTPException):
            return "451 4.3.0 Try again later"
        return "250 OK"

    def _relay(self, envelope: Any) -> None:
        with smtplib.SMTP("127.0.0.1", self._next_hop, timeout=60) as hop:
            hop.sendmail(envelope.mail_from, envelope.rcpt_tos, envelope.content)


async def main() -> None:
    port, url, next_hop, cert, key = sys.argv[1:]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    handler, loop = Handler(url, int(next_hop)), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: SMTP(handler, hostname="stock.example", data_size_limit=50 * 2**20, tls_context=tls, loop=loop),
        "127.0.0.1", int(port), backlog=4096,
    )  # fmt: skip
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
