"""`scanbridge digest`: preview and send digests, serve the pages for users, manage the keys of links."""

from __future__ import annotations

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
from bridge.cli.terminal import say, say_lines
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.early_signals import EarlySignals

if TYPE_CHECKING:
    from bridge.cli.digest.wiring import Digesting
    from bridge.digests.sending import Progress
    from bridge.runtime.http_server import HttpServer

EXIT_LATER = 75


@click.group(cls=Group)
def digest() -> None:
    """Tell users about the mail that is held for them."""


@digest.command()
@click.option(
    "--to", "person", metavar="ADDRESS", help="Show the digest that this person would get now. Default: a sample."
)
@click.option(
    "--language",
    type=click.Choice(("en", "de", "fr", "es")),
    help="Language of the digest. Default: the person's, or the first one configured.",
)
@click.option("--tenant", type=Tenant(), metavar="UUID", help="Show a sample with this tenant's templates and sender.")
@click.option("--html", "as_html", is_flag=True, help="Print only the HTML.")
@click.option("--text", "as_text", is_flag=True, help="Print only the text.")
@config_option
def preview(
    path: Path | None, person: str | None, language: str | None, tenant: str | None, as_html: bool, as_text: bool
) -> None:
    """Print a digest as it would be sent. Nothing is sent or recorded; the links in a sample do not work."""
    with _open(path) as opened:
        from bridge.digests.message import JOINER
        from bridge.digests.sample import part_of, sample, upcoming

        known = {each.uid for each in opened.conf.tenants} | {each.uid for each in opened.conf.digests.tenants}
        if tenant and tenant not in known:
            raise click.ClickException(f"no tenant has the uid {tenant}; see `tenants` in the configuration")
        if person is None:
            content = sample(opened.maker, tenant or "", language)
        else:
            opened.refresh()
            found = upcoming(opened.maker, opened.items, opened.quarantine, opened.people, person, language)
            if found is None:
                raise click.ClickException(f"no new mail is held for {person}")
            content = found
        shown = part_of(content, "html") if as_html else part_of(content, "plain") if as_text else content.decode()
        # A terminal would show the zero-width character that breaks links as a question mark.
        say_lines(shown.replace("\r\n", "\n").replace(JOINER, "").rstrip("\n"))


@digest.command()
@click.option(
    "--to",
    "people",
    multiple=True,
    metavar="ADDRESS",
    help="Send only to this person, even if no digest is due; repeatable.",
)
@click.option(
    "--now",
    is_flag=True,
    help="Send to everyone for whom new mail is held, even if no digest is due, except those who chose `never`.",
)
@config_option
def send(path: Path | None, people: tuple[str, ...], now: bool) -> None:
    """Send the digests that are due. After an interruption, run the command again: no one gets the same
    digest twice.
    """
    import asyncio

    import uvloop

    async def work(opened: Digesting) -> Progress:
        await asyncio.to_thread(opened.refresh, _say_read)
        only = [_person(opened, each) for each in people]
        await asyncio.to_thread(opened.forget)
        return await opened.send_digests(only=only, now=now, on_progress=_say_progress)

    with _open(path) as opened:
        done = uvloop.run(work(opened))
    if done.problem:
        say(f"scanbridge digest: {done.problem}", err=True)
    sys.exit(EXIT_LATER if done.failed or done.problem else 0)


@digest.command()
@config_option
def serve(path: Path | None) -> None:
    """Serve the pages for users, and send digests when they are due."""
    early = EarlySignals()
    import asyncio

    import uvloop

    from bridge.daemon import history_place
    from bridge.daemon.sockets import Sockets
    from bridge.daemon.systemd import feed_watchdog, notify, show_stack_on_abort
    from bridge.observe.log_writer import set_up_plain_log
    from bridge.runtime.build import log_start

    with _open(path) as opened:
        from bridge.user_pages import process

        set_up_plain_log(history_place.redaction(opened.conf, opened.state), is_throttled=True)
        log_start("scanbridge digest")
        show_stack_on_abort()
        page = opened.conf.digests.page
        sources = opened.sources(path)

        def on_ready(server: HttpServer) -> None:
            for bound in server.addresses:
                say(f"user pages at {page.public_url or f'http://{bound}' if not bound.path else bound}")
            notify("READY=1")

        async def send_due() -> Progress:
            await asyncio.to_thread(opened.refresh)
            return await opened.send_digests()

        async def run() -> None:
            feeding = asyncio.create_task(feed_watchdog())
            sockets = Sockets().open("digests.page.address", page.address)
            await process.run(sources, sockets, send_due, on_ready, opened.forget, early)
            feeding.cancel()

        uvloop.run(run())


@digest.group()
def keys() -> None:
    """Manage the keys that sign links."""


@keys.command()
@config_option
def rotate(path: Path | None) -> None:
    """Create a new key for signing links.

    Links in digests that have already been sent keep working until they expire.
    """
    with _open(path, makes_keys=True) as opened:
        made = opened.maker.keys.rotate(opened.conf.digests.link_validity)
        count = len(opened.maker.keys.keys)
    say(f"new links are signed with key {made.id}; keys whose links are accepted: {count}", err=True)


@contextmanager
def _open(path: Path | None, *, makes_keys: bool = False) -> Iterator[Digesting]:
    """What is imported inside it may need the libraries that it looks for."""
    need_libraries("digests need")
    from bridge.cli.digest.wiring import Digesting

    opened = Digesting.open(path, makes_keys=makes_keys)
    try:
        yield opened
    except ConfigError as exc:
        fail_config(exc)
    except BridgeError as exc:
        say_lines(f"scanbridge digest: {exc}", err=True)
        sys.exit(1)
    finally:
        opened.store.close()


def _person(opened: Digesting, address: str) -> str:
    from bridge.mail.address import comparable_address

    person = opened.people.person_of(comparable_address(address))
    if person is None:
        raise click.ClickException(
            f"no digest is sent to {address}: its domain is not in digests.domains, or it is in digests.exclude"
        )
    return person


def _say_read(count: int) -> None:
    if count and count % 100_000 < 1000:
        say(f"read {count:,} held mails", err=True)


def _say_progress(progress: Progress) -> None:
    """A line a second is enough for a log as well."""
    from bridge.runtime.counted import counted

    if progress.is_over or progress.looked_at:
        end = "done" if progress.is_over else "sending"
        say(
            f"{end}: {progress.sent:,} sent, {counted(progress.mails, 'mail')} listed, {progress.failed:,} failed, "
            f"{progress.refused:,} refused, {progress.looked_at:,} of {progress.total:,} people checked",
            err=True,
        )
