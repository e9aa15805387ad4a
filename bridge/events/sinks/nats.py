"""NATS: each event is published at `SUBJECT.TYPE`, for example `scanbridge.mail.decided`.

An event counts as delivered when the server has confirmed it: by the answer to a PING that follows it, or with
`jetstream` by the acknowledgement of the stream that stores it. The header `Nats-Msg-Id` contains the event's id, by
which a stream recognises an event that is sent twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.errors import Error, MaxPayloadError
from nats.js.errors import Error as StreamError

from bridge.events.outbox import Entry
from bridge.events.sinks.sink import NotDelivered, Results
from bridge.runtime.nats_client import NatsClient
from bridge.runtime.reason import reason

_ID = "Nats-Msg-Id"


@dataclass(frozen=True, slots=True)
class NatsSettings:
    servers: tuple[str, ...]
    subject: str
    jetstream: bool
    timeout_s: float
    tls: ssl.SSLContext | None = None
    credentials: Path | None = None  # a .creds file, which the library reads
    token: str | None = field(default=None, repr=False)


class NatsSink:
    batch = 100

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._noted = ""  # the last error that the library reported while it went on trying

    async def deliver(self, entries: Sequence[Entry]) -> Results:
        """A stream confirms each event, a plain server all of them together."""
        is_stream, results = self._settings.jetstream, dict[int, NotDelivered | None]()
        try:
            async with asyncio.timeout(self._settings.timeout_s) as limit:
                client = await self._connected()
                for entry in entries:
                    if error := await (self._to_stream if is_stream else self._publish)(client, entry):
                        results[entry.seq] = error
                        break
                    results[entry.seq] = None
                    if is_stream:
                        limit.reschedule(asyncio.get_running_loop().time() + self._settings.timeout_s)
                if not is_stream:
                    await client.flush(max(1, round(self._settings.timeout_s)))
        except TimeoutError:
            problem = f"not confirmed within {self._settings.timeout_s:g} s"
            return await self._failed(entries, results, f"{problem}: {self._noted}" if self._noted else problem)
        except (Error, OSError, ssl.SSLError, ValueError) as exc:
            return await self._failed(entries, results, reason(exc) or type(exc).__name__)
        return results

    @property
    def _servers(self) -> str:
        return f"NATS at {', '.join(self._settings.servers)}"

    async def _failed(self, entries: Sequence[Entry], results: Results, problem: str) -> Results:
        await self.close()
        confirmed = results if self._settings.jetstream else {}
        return {**confirmed, entries[len(confirmed)].seq: NotDelivered(f"{self._servers}: {problem}")}

    async def _publish(self, client: Client, entry: Entry) -> NotDelivered | None:
        try:
            await client.publish(f"{self._settings.subject}.{entry.type}", entry.body, headers={_ID: entry.id})
        except MaxPayloadError:
            return NotDelivered("NATS: the event is larger than the server accepts", blames_event=True)
        return None

    async def _to_stream(self, client: Client, entry: Entry) -> NotDelivered | None:
        stream = client.jetstream(timeout=self._settings.timeout_s)
        try:
            await stream.publish(f"{self._settings.subject}.{entry.type}", entry.body, headers={_ID: entry.id})
        except MaxPayloadError:
            return NotDelivered("NATS: the event is larger than the server accepts", blames_event=True)
        except StreamError as exc:
            return NotDelivered(f"NATS: no stream stores {self._settings.subject}.{entry.type}: {exc}")
        return None

    async def _connected(self) -> Client:
        if self._client is not None and self._client.is_connected:
            return self._client
        await self.close()
        self._noted = ""
        settings = self._settings
        options: dict[str, Any] = {"tls": settings.tls} if settings.tls is not None else {}
        if settings.credentials is not None:
            options["user_credentials"] = str(settings.credentials)
        if settings.token is not None:
            options["token"] = settings.token
        self._client = NatsClient()  # stored before it is connected, so that `close` finds it after a failure
        await self._client.connect(
            list(settings.servers),
            name="scanbridge",
            allow_reconnect=False,  # we try again ourselves, with the events that were not confirmed
            connect_timeout=max(1, round(settings.timeout_s)),
            error_cb=self._note,
            **options,
        )
        return self._client

    async def _note(self, error: Exception) -> None:
        """An error that cannot be ignored is also raised where the event is published."""
        self._noted = reason(error) or type(error).__name__

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
