"""`scanbridge console`: run the web console, make sign-in links, manage its local users."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.config_option import config_option, fail_config
from bridge.cli.console.libraries import need_libraries
from bridge.cli.parameters import Tenant
from bridge.cli.single_values import Group
from bridge.cli.terminal import ask_secret, say, say_cells, say_lines
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.early_signals import EarlySignals

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.console.database import ConsoleStore
    from bridge.console.sources import Sources
    from bridge.runtime.http_server import HttpServer

DEMO_USER = "demo"  # of the embedded default; it has no password
_DEMO_LINK_S = 3600.0
ROLES = ("viewer", "releaser", "admin")


@click.group(cls=Group, invoke_without_command=True)
@config_option
@click.option("--demo", is_flag=True, help="Use the embedded default, even if there is a configuration file.")
@click.pass_context
def console(context: click.Context, path: Path | None, demo: bool) -> None:
    """Run the web console. Open it in a browser, at `console.address`, to see what happens to mail."""
    context.obj = None if demo else path
    if context.invoked_subcommand is None:
        run_console(context.obj)


@console.command()
@click.argument("name")
@config_option
@click.pass_obj
def link(given: Path | None, path: Path | None, name: str) -> None:
    """Print a link that signs in a local user without a password. It works once and expires after 15 minutes."""
    with _open(path or given) as (conf, store):
        from bridge.console.sessions import SignInLinks
        from bridge.console.users import Users

        if Users(store).find(name) is None:
            raise click.ClickException(f"there is no user {name}; `scanbridge console user list` shows all users")
        say(enter_url(conf, SignInLinks(store).make(name)))


@console.group()
def user() -> None:
    """Manage the console's local users."""


@user.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the user may do.")
@click.option(
    "--tenant",
    "tenants",
    type=Tenant(),
    multiple=True,
    metavar="UUID",
    help="Limit the user to this tenant; repeatable.",
)
@config_option
@click.pass_obj
def add(given: Path | None, path: Path | None, name: str, role: str, tenants: tuple[str, ...]) -> None:
    """Add a user. Prompts for the password, or reads it from standard input."""
    limited = frozenset(tenants) or None
    with _open(path or given) as (_, store):
        from bridge.console.roles import Role
        from bridge.console.users import Users

        if Users(store).find(name) is not None:
            raise click.ClickException(f"user {name} already exists")
        Users(store).add(name, ask_secret("Password"), Role.named(role), limited)
    say(f"{name} can now sign in as {role}", err=True)


@user.command("list")
@config_option
@click.pass_obj
def list_users(given: Path | None, path: Path | None) -> None:
    """List the users: name, role, tenants, and when they last signed in."""
    with _open(path or given) as (_, store):
        from bridge.console.render import show_exact
        from bridge.console.users import Users

        found = Users(store).listed()
    for each in found:
        tenants = "all tenants" if each.person.tenants is None else ",".join(sorted(each.person.tenants))
        seen = f"last signed in {show_exact(each.seen_at)}" if each.seen_at else "never signed in"
        say_cells(each.person.name, str(each.person.role), tenants, seen)
    if not found:
        say(f"no users; add one with `{_command_to_add(path or given)}`", err=True)


@user.command()
@click.argument("name")
@config_option
@click.pass_obj
def remove(given: Path | None, path: Path | None, name: str) -> None:
    """Remove a user and end their sessions."""
    with _open(path or given) as (_, store):
        from bridge.console.users import Users

        Users(store).remove(name)
    say(f"{name} was removed; all of this user's sessions were ended", err=True)


@user.command()
@click.argument("name")
@config_option
@click.pass_obj
def password(given: Path | None, path: Path | None, name: str) -> None:
    """Change a user's password and end their sessions. Prompts for the password, or reads it from standard input."""
    with _open(path or given) as (_, store):
        from bridge.console.users import Users

        if Users(store).find(name) is None:
            raise click.ClickException(f"there is no user {name}; `scanbridge console user list` shows all users")
        Users(store).set_password(name, ask_secret("Password"))
    say(f"the password of {name} was changed; all of this user's sessions were ended", err=True)


def _command_to_add(path: Path | None) -> str:
    with_file = f" -c {shlex.quote(str(path))}" if path else ""
    return f"scanbridge console{with_file} user add NAME --role admin"


def enter_url(conf: Config, token: str) -> str:
    """The address of a sign-in link."""
    assert conf.console is not None
    return f"{conf.console.base}/enter/{token}"


def run_console(path: Path | None, *, beside: bool = False) -> None:
    """`beside` (started by the embedded default): prints a sign-in link, and exits when standard input is closed."""
    early = EarlySignals()
    need_libraries("the console needs")
    from bridge.cli.console import wiring

    conf = wiring.configured(path)
    assert conf.console is not None
    import asyncio

    import uvloop

    from bridge.console import process
    from bridge.daemon.sockets import Sockets
    from bridge.daemon.systemd import feed_watchdog, notify, show_stack_on_abort
    from bridge.observe.log_writer import set_up_plain_log
    from bridge.runtime.build import log_start

    sources = wiring.sources(conf, path)
    set_up_plain_log(sources.redaction, is_throttled=True)
    log_start("scanbridge console")
    show_stack_on_abort()
    address = conf.console.address

    def on_ready(server: HttpServer) -> None:
        for bound in server.addresses:
            say(f"console at {conf.console.public_url or f'http://{bound}' if not bound.path else bound}")  # type: ignore[union-attr]
        if beside:
            _say_link(conf, sources)
        notify("READY=1")

    async def run() -> None:
        feeding = asyncio.create_task(feed_watchdog())
        await process.run(sources, Sockets().open("console.address", address), on_ready, early, ends_with_input=beside)
        feeding.cancel()

    try:
        if not beside and not sources.users.listed() and conf.console.oidc is None:
            say(f"no user can sign in yet: add one with `{_command_to_add(path)}`", err=True)
        uvloop.run(run())
    except ConfigError as exc:
        fail_config(exc)
    except BridgeError as exc:
        say_lines(f"scanbridge console: {exc}", err=True)
        sys.exit(1)


def _say_link(conf: Config, sources: Sources) -> None:
    """A link for the person who started the embedded default. It is not written to the journal, which is kept."""
    from bridge.console.roles import Role

    try:
        if sources.users.find(DEMO_USER) is None:
            sources.users.add(DEMO_USER, None, Role.ADMIN)
        token = "" if os.environ.get("JOURNAL_STREAM") else sources.links.make(DEMO_USER, _DEMO_LINK_S)
    except BridgeError as exc:  # such as a full disk: the console is needed all the more, to show why mail is refused
        say_lines(f"scanbridge console: no sign-in link can be created: {exc}", err=True)
        token = ""
    if token:
        say(f"sign in (once, within an hour) with {enter_url(conf, token)}")
    else:
        say(f"sign in with a link from `scanbridge console link {DEMO_USER}`")


@contextmanager
def _open(path: Path | None) -> Iterator[tuple[Config, ConsoleStore]]:
    """What is imported inside it may need the libraries that it looks for."""
    need_libraries("the console needs")
    from bridge.cli.console import wiring

    conf = wiring.configured(path)
    try:
        store = wiring.store(conf, path)
    except ConfigError as exc:
        fail_config(exc)
    try:
        yield conf, store
    except BridgeError as exc:
        raise click.ClickException(str(exc)) from exc
    finally:
        store.close()
