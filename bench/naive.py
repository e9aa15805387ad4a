"""A simple implementation: aiosmtpd, an HTTP client, a handler. The peer of the overload benchmark.

    python bench/naive.py PORT http://127.0.0.1:9081

httpx's own limits and timeouts are lifted, so that they do not affect the result. There is no limit on mail in
processing: every mail is accepted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from aiosmtpd.smtp import SMTP

_REPLIES = {"deliver": "250 OK", "drop": "250 OK", "quarantine": "250 OK", "bounce": "550 5.7.1 Rejected"}


class Handler:
    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/messageQueue/submitEmail"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(limits=limits, timeout=120, trust_env=False)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        envelope_data = {"envelopeFrom": envelope.mail_from, "envelopeRecipients": envelope.rcpt_tos}
        parameters = json.dumps({"borderMtaData": {**envelope_data, "remoteAddress": session.peer[0]}})
        try:
            answer = await self._client.post(
                self._url,
                files={
                    "parameters": (None, parameters, "application/json"),
                    "email": ("mail.eml", envelope.content, "message/rfc822"),
                },
            )
            return _REPLIES[answer.json()["decision"]]
        except (httpx.HTTPError, ValueError, KeyError):
            return "451 4.3.0 Try again later"


async def main() -> None:
    loop = asyncio.get_running_loop()
    handler = Handler(sys.argv[2])
    server = await loop.create_server(
        lambda: SMTP(handler, hostname="naive.example", loop=loop), "127.0.0.1", int(sys.argv[1]), backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
