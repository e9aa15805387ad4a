"""A webhook: one POST for each event, signed as Standard Webhooks describes (HMAC-SHA256).

Only a 2xx means that the event was taken. Redirects are not followed: they would send the events to a server that the
operator did not name. 410 means that the receiver no longer accepts events; it is then tried once an hour. Events about
different mails are sent in parallel, those about one mail one after the other.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

from bridge import __version__
from bridge.events.outbox import Entry
from bridge.events.sinks.sink import NotDelivered, Results
from bridge.runtime.no_cookies import no_cookies

_SIDE_BY_SIDE = 8
_GONE_S = 3600.0
_LONGEST_RETRY_AFTER_S = 3600.0
_PREFIX = "whsec_"
_SHORTEST_SECRET, _LONGEST_SECRET = 24, 64  # bytes, as the specification says
_MAX_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    url: str
    secrets: tuple[bytes, ...] = field(repr=False)
    timeout_s: float
    tls: ssl.SSLContext | None = None


def read_secrets(text: str) -> tuple[bytes, ...]:
    """One secret per line, as `whsec_` and base64; each one signs. Raises ValueError, which never quotes a secret."""
    found = []
    for line in text.split():
        try:
            secret = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("a secret must be whsec_ followed by base64") from None
        if not _SHORTEST_SECRET <= len(secret) <= _LONGEST_SECRET:
            size = f"{_SHORTEST_SECRET} to {_LONGEST_SECRET} bytes"
            raise ValueError(f"a secret must be {size} long before base64 encoding")
        found.append(secret)
    if not found:
        raise ValueError("a secret must be whsec_ followed by base64; the file is empty")
    return tuple(found)


def signed(entry: Entry, secrets: Sequence[bytes], now: int) -> dict[str, str]:
    """The three header fields of Standard Webhooks."""
    content = f"{entry.id}.{now}.".encode() + entry.body
    signatures = [base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode() for secret in secrets]
    return {
        "webhook-id": entry.id,
        "webhook-timestamp": str(now),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


class WebhookSink:
    batch = 100  # a slow receiver takes minutes for them

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._host = urlsplit(settings.url).netloc  # the rest of the URL may contain a secret
        self._client: httpx2.AsyncClient | None = None

    async def deliver(self, entries: Sequence[Entry]) -> Results:
        chains: dict[str, list[Entry]] = {}
        for entry in entries:
            chains.setdefault(entry.about or entry.id, []).append(entry)
        results: dict[int, NotDelivered | None] = {}
        gate, has_failed = asyncio.Semaphore(_SIDE_BY_SIDE), asyncio.Event()

        async def send(chain: list[Entry]) -> None:
            async with gate:
                for entry in chain:
                    if has_failed.is_set():
                        return
                    try:
                        await self._post(entry)
                        results[entry.seq] = None
                    except NotDelivered as exc:
                        results[entry.seq] = exc
                        has_failed.set()

        await asyncio.gather(*map(send, chains.values()))
        return results

    async def _post(self, entry: Entry) -> None:
        settings = self._settings
        headers = signed(entry, settings.secrets, int(time.time()))
        headers |= {"content-type": "application/json", "user-agent": f"scanbridge/{__version__}"}
        try:
            async with asyncio.timeout(settings.timeout_s):
                async with self._opened().stream("POST", settings.url, content=entry.body, headers=headers) as answer:
                    await _skip_body(answer)
                    _judge(self._host, answer.status_code, answer.headers)
        except TimeoutError:
            raise NotDelivered(f"{self._host}: no answer within {settings.timeout_s:g} s", blames_event=True) from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
            raise NotDelivered(f"{self._host}: {exc or 'no connection'}") from exc
        except httpx2.HTTPError as exc:  # it was sent, at least in part, and the connection ended
            raise NotDelivered(f"{self._host}: {exc or type(exc).__name__}", blames_event=True) from exc

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                cookies=no_cookies(),
                verify=self._settings.tls if self._settings.tls is not None else True,
                timeout=self._settings.timeout_s,
                follow_redirects=False,
                trust_env=False,
                limits=httpx2.Limits(max_connections=_SIDE_BY_SIDE, keepalive_expiry=15.0),
            )
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _skip_body(answer: httpx2.Response) -> None:
    """If the body is read, the connection can be used again; that is not worth reading a long one."""
    read = 0
    async for chunk in answer.aiter_raw():
        read += len(chunk)
        if read > _MAX_ANSWER:
            return


def _judge(host: str, status: int, headers: Mapping[str, str]) -> None:
    if 200 <= status < 300:
        return
    text = f"{host}: it answered {status}"
    if 300 <= status < 400:
        raise NotDelivered(f"{text}; redirects are not followed: set the url to the final address")
    if status == 410:
        raise NotDelivered(f"{text}: the receiver no longer accepts events; remove the sink", pause_s=_GONE_S)
    pause_s = _retry_after(headers.get("retry-after", "")) if status in (429, 503) else 0.0
    raise NotDelivered(text, blames_event=status not in (401, 403, 404, 429, 502, 503, 504), pause_s=pause_s)


def _retry_after(text: str) -> float:
    return min(float(text), _LONGEST_RETRY_AFTER_S) if text.isascii() and text.isdigit() and len(text) < 10 else 0.0
