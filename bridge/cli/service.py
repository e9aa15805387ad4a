"""`scanbridge service`: the scanning service on its own, its tokens and its API keys."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import uvloop

from bridge.cli.common import EXIT_CONFIG
from bridge.cli.terminal import say, say_cells, say_lines
from bridge.daemon import resources
from bridge.daemon.sockets import Sockets
from bridge.daemon.systemd import feed_watchdog, notify, show_stack_on_abort
from bridge.errors import BridgeError, ConfigError
from bridge.observe.log_format import VisibleFormatter
from bridge.service import settings
from bridge.service.analysis.decision import delivered_anyway
from bridge.service.keys import KeyRing
from bridge.service.server import ServiceServer
from bridge.service.store import Store

DEFAULT = Path("service.yml")

log = logging.getLogger("bridge.service")


@click.group(invoke_without_command=True)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Configuration of the service.  [default: service.yml]",
)
@click.pass_context
def service(context: click.Context, path: Path | None) -> None:
    """Run the scanning service on its own."""
    context.obj = path
    if context.invoked_subcommand is None:
        config = _load(path or DEFAULT)
        try:
            uvloop.run(_run(config))
        except ConfigError as exc:
            say_lines(str(exc), err=True)
            sys.exit(EXIT_CONFIG)
        except BridgeError as exc:
            say_lines(f"scanbridge service: {exc}", err=True)
            sys.exit(1)


@service.command()
@click.option("--name", default="bridge", show_default=True, help="Name of the client that will use the token.")
def token(name: str) -> None:
    """Generate a token for staticApiTokens: 32 random bytes as 64 hex digits."""
    say(secrets.token_hex(32))
    say(f"add it to abby.staticApiTokens: {{name: {name}, token: ..., permissions: [scan, status]}}", err=True)


@service.group()
def apikey() -> None:
    """Manage keys of the List API. Without a configuration, those of the embedded service."""


@apikey.command("create")
@click.argument("name")
@click.pass_obj
def create_key(path: Path | None, name: str) -> None:
    """Create a key and print it. It is shown only once."""
    with _keys(path) as keys:
        say(keys.create(name))
    say("save this key now: only its hash is stored", err=True)


@apikey.command("list")
@click.pass_obj
def list_keys(path: Path | None) -> None:
    """List the names of all keys, never the keys themselves."""
    with _keys(path) as keys:
        for key in keys.listed():
            state = f"revoked {key.revoked_at}" if key.revoked_at else "active"
            say_cells(key.name, f"created {key.created_at}", state)


@apikey.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke_key(path: Path | None, name: str) -> None:
    """Revoke a key. A running service refuses it within a second."""
    with _keys(path) as keys:
        keys.revoke(name)
    say(f"{name} revoked", err=True)


@contextmanager
def _keys(path: Path | None) -> Iterator[KeyRing]:
    store = Store(_database(path))
    try:
        store.open()
        yield KeyRing(store)
    except BridgeError as exc:
        say_lines(f"scanbridge service: {exc}", err=True)
        sys.exit(1)
    finally:
        store.close()


def _database(path: Path | None) -> str:
    """The configured one; without a configuration, that of the service embedded in `scanbridge run`."""
    if path is None and not DEFAULT.exists():
        state = resources.state_directory(None)
        if not state.exists():
            say(
                "service.yml not found, and no embedded service yet: use -c FILE, or start `scanbridge run`",
                err=True,
            )
            sys.exit(EXIT_CONFIG)
        say(f"using the keys of the embedded service in {state}", err=True)
        return settings.embedded_database(state)
    return _load(path or DEFAULT).database_url


def _load(path: Path) -> settings.ServiceConfig:
    try:
        return settings.load(path)
    except ConfigError as exc:
        say_lines(str(exc), err=True)
        sys.exit(EXIT_CONFIG)


async def _run(config: settings.ServiceConfig) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    show_stack_on_abort()
    server, sockets = ServiceServer(), Sockets()
    await server.start(config, sockets.open("service", config.listen))
    sockets.warn_of_idle()
    for address in server.addresses:
        place = str(address) if address.path else f"{config.scheme}://{address}"
        say(f"scanning service listening on {place}")
    if not config.listen.is_local and config.tls is None:
        say(
            "other machines can reach the service, and tokens are sent unencrypted: set tls, or use a TLS proxy",
            err=True,
        )
    for token in config.abby.staticApiTokens:
        if len(token.secret) < settings.SHORT_TOKEN:
            say(
                f"the token of {token.name} is too short to be safe: create one with `scanbridge service token`",
                err=True,
            )
    if not config.abby.staticApiTokens:
        say("no token is configured, so every scan is refused: create one with `scanbridge service token`", err=True)
    for tag in delivered_anyway(config.decisions):
        say(
            f"decisions: mail with the tag {tag} is delivered; rules replaces all default rules, "
            f"so add one for {tag}, or set only scores",
            err=True,
        )
    feeding = asyncio.create_task(feed_watchdog())
    notify("READY=1")
    await stop.wait()
    notify("STOPPING=1")
    say("stopping")
    await server.stop()
    feeding.cancel()
