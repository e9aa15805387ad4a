"""All checks that need nothing but the configuration, in the order of the report."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bridge.cli.check import local, remote
from bridge.cli.check.digests import check_console, check_digests
from bridge.cli.check.finding import Finding
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.observe.admin_client import ask

_LATER = "not checked: the embedded service starts with `scanbridge run`"


async def collect(conf: Config) -> list[Finding]:
    return [finding async for finding in _findings(conf)]


async def _findings(conf: Config) -> AsyncIterator[Finding]:
    for text in conf.warnings:
        yield Finding("configuration", warning=text)
    state = ask(conf.admin.address)
    running = state is not None
    yield local.check_state_directory(conf)
    token = local.check_token(conf)
    yield token
    sockets = [*local.check_listeners(conf, state), local.check_admin(conf, state)]
    faulty = {finding.what for finding in sockets if finding.problem}
    shared = [finding for finding in local.check_addresses(conf) if finding.what not in faulty]
    for finding in (*sockets, *shared, *local.check_trust(conf), *local.check_api(conf), *local.check_policies(conf)):
        yield finding
    yield local.check_descriptors(conf, state)
    if conf.embedded_service and not running:
        yield Finding("scanner", detail=_LATER)
    elif not token.problem:
        async for finding in remote.check_scanner(conf, wiring.token(conf)):
            yield finding
    async for finding in remote.check_next_hops(conf):
        yield finding
    async for finding in remote.check_stores(conf):
        yield finding
    if conf.lists is not None and conf.embedded_service and not running:
        yield Finding("lists", detail=_LATER)
    elif conf.lists is not None:
        for finding in await remote.check_lists(conf):
            yield finding
    if conf.tracing is not None:
        yield await remote.check_tracing(conf, conf.tracing.endpoint)
    for finding in (*local.check_event_sinks(conf), *check_console(conf), *check_digests(conf)):
        yield finding
