"""For `scanbridge service check`: is NATS there, may we use it, and who else does? Creates nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from nats.aio.msg import Msg
from nats.js.errors import APIError

from bridge.runtime.nats_client import NatsClient
from bridge.service.cluster.link import CONNECT_S, NATS_ERRORS, REQUEST_S, connect_reason, options
from bridge.service.cluster.members import SIGN_INTERVAL_S
from bridge.service.cluster.wire import Malformed, Names, WorkerSign
from bridge.service.nats_settings import Nats

_LISTEN_S = SIGN_INTERVAL_S * 3


@dataclass(slots=True)
class Found:
    """What one server says."""

    server: str
    problem: str = ""
    is_cluster: bool = False
    workers: dict[str, WorkerSign] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)  # workers with another database


async def probe(settings: Nats, database: str) -> list[Found]:
    """Every server. Raises ConfigError if a file cannot be used."""
    given = options(settings)
    names = Names.of(settings.name, database)
    return list(await asyncio.gather(*(_ask(server, given, names, settings) for server in settings.servers)))


async def _ask(server: str, given: dict[str, object], names: Names, settings: Nats) -> Found:
    found = Found(server)
    client = NatsClient()
    try:
        async with asyncio.timeout(CONNECT_S * 2):
            await client.connect([server], name="scanbridge check", **given)
        found.is_cluster = bool(client._server_info.get("cluster"))
        await _listen(client, names, found)
        async with asyncio.timeout(REQUEST_S):
            await client.jetstream(timeout=REQUEST_S).account_info()
    except APIError as exc:
        found.problem = f"JetStream cannot be used: {exc.description or 'it is not enabled for this account'}"
    except NATS_ERRORS as exc:
        found.problem = connect_reason(exc, client, settings)
    finally:
        await client.close()
    return found


async def _listen(client: NatsClient, names: Names, found: Found) -> None:
    async def note(message: Msg) -> None:
        try:
            sign = WorkerSign.from_bytes(message.data)
        except Malformed:
            return
        if message.subject == names.workers:
            found.workers[sign.id] = sign
        else:
            found.strangers.add(sign.id)

    await client.subscribe(f"{names.prefix}.workers.*", cb=note)
    await asyncio.sleep(_LISTEN_S)
