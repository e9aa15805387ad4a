"""The mail server's side of a conversation with one of our MTA Hooks listeners (draft -01).

Asks at the stages mail, rcpt and data, as our plugin for Haraka does, and notes what its client would receive.
Decides nothing.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from bridge.cli.trace.mail_server import Exchange, Given, in_turns
from bridge.errors import ProtocolError
from bridge.intake.hooks import app
from bridge.intake.hooks.registrations import PROPERTIES, STAGES


async def by_hooks(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], given: Given, token: str
) -> list[Exchange]:
    side = _Hooks(*streams, token)
    await side.register()
    return await in_turns(given, lambda recipients: side.mail(given, recipients))


@dataclass(slots=True)
class _Hooks:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    token: str
    registration: str = ""
    asked: int = 0

    async def register(self) -> None:
        inbound = {"stages": list(STAGES), "properties": list(PROPERTIES)}
        made = await self._post(app.REGISTRATIONS, {"name": "scanbridge trace", "inbound": inbound}, 201)
        self.registration = made["registrationId"]

    async def mail(self, given: Given, recipients: list[str]) -> Exchange:
        exchange = Exchange()
        exchange.mail = await self._ask("mail", given, [])
        if not exchange.mail.startswith("2"):
            return exchange
        for address in recipients:
            exchange.recipients[address] = await self._ask("rcpt", given, [*exchange.accepted, address])
        if exchange.accepted:
            exchange.data = "250"
            exchange.replies = [await self._ask("data", given, exchange.accepted)]
        return exchange

    async def _ask(self, stage: str, given: Given, recipients: list[str]) -> str:
        """What an SMTP client of the mail server would receive."""
        size = {"SIZE": str(len(given.content))}
        facts: dict[str, Any] = {
            "stage": stage,
            "action": "accept",
            "protocol": {"version": "1.0"},
            "envelope": {
                "from": {"address": given.sender or None, "parameters": size},
                "to": [{"address": address, "parameters": {}} for address in recipients],
            },
            "client": {"ip": given.remote_address, "ehlo": given.helo},
            "rawMessage": b64encode(given.content).decode("ascii") if stage == "data" else None,
        }
        answer = await self._post(app.HOOK, facts, 200)
        said = {change["path"]: change["value"] for change in answer["set"]}
        if said["/action"] != "reject":
            return "250"
        response = said["/response"]
        return f"{response['code']} {response.get('enhancedCode', '')} {response['message']}".replace("  ", " ")

    async def _post(self, path: str, facts: dict[str, Any], expected: int) -> Any:
        body = json.dumps(facts).encode("utf-8", "replace")
        self.asked += 1
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
            f"X-MTA-Hooks-Registration: {self.registration}\r\nX-MTA-Hooks-Request-Id: {self.asked}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode("ascii") + body)
        try:
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
            answer = json.loads(await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, StopIteration):
            raise ProtocolError("the listener closed the connection") from None
        if f" {expected} " not in lines[0]:
            raise ProtocolError(f"the listener refused the request: {answer['error']['message']}")
        return answer
