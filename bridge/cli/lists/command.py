"""`scanbridge lists`: show, change and sync the lists of the service.

Standard output has the result, standard error has progress and problems, and the exit code tells a script what
to do next (docs/operate/lists.md): 75 means "run it again later", 1 means "needs attention". What a command needs is
imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.config_option import config_option
from bridge.cli.lists.options import (
    Share,
    force_option,
    format_option,
    keep_going_option,
    with_session,
    with_source,
)
from bridge.cli.single_values import Group

if TYPE_CHECKING:
    from bridge.cli.lists.session import Session
    from bridge.lists.plan import Plan


@click.group(cls=Group)
def lists() -> None:
    """Show, change and sync the service's lists."""


@lists.command()
@with_session
def show(session: Session) -> None:
    """Show the available lists."""
    from bridge.cli.lists import reading

    reading.show(session)


@lists.command()
@click.argument("name", metavar="LIST")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file; it is replaced only when the output is complete.",
)
@format_option
@with_session
def entries(session: Session, name: str, output: Path | None, kind: str | None) -> None:
    """Print the entries of LIST with their comments, in a format that `add` and `sync` can read."""
    from bridge.cli.lists import reading

    reading.entries(session, name, output, kind)


@lists.command()
@with_source
@click.option("--comment", help="Comment for entries that have none.")
@keep_going_option
@force_option
@with_session
def add(session: Session, name: str, given: tuple[str, ...], paths: tuple[Path, ...], kind: str | None,
        comment: str | None, keep_going: bool, force: bool) -> None:  # fmt: skip
    """Add entries to LIST from arguments, files or standard input. The comment of an existing entry is replaced.

    An entry that affects far more mail than you might expect (such as @gmail.com, 0.0.0.0/0 or your own domain) needs
    --force.
    """
    from bridge.cli.lists import changing

    changing.add(session, name, changing.Given(given, paths, kind), comment, keep_going=keep_going, force=force)


@lists.command()
@with_source
@with_session
def delete(session: Session, name: str, given: tuple[str, ...], paths: tuple[Path, ...], kind: str | None) -> None:
    """Delete entries from LIST: those given as arguments, in files or on standard input.

    Entries that are not in the list are ignored.
    """
    from bridge.cli.lists import changing

    changing.delete(session, name, changing.Given(given, paths, kind))


@lists.command()
@click.argument("places", metavar="LIST FILE | DIRECTORY", nargs=-1, required=True)
@format_option
@click.option("--prune", is_flag=True, help="Delete entries that are not in the file. Default: keep them.")
@click.option("--dry-run", is_flag=True, help="Only show the differences; exit code 3 if there are any.")
@click.option("--max-delete", "too_many", type=Share(), default="10%", show_default=True,
              help="Ask before deleting more than this percentage or number of a list's entries.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--verify/--no-verify", default=True,
              help="Read the list again afterwards and compare it with the file. Default: verify.")  # fmt: skip
@keep_going_option
@force_option
@with_session
def sync(session: Session, places: tuple[str, ...], kind: str | None, prune: bool, dry_run: bool,
         too_many: Callable[[Plan], bool], yes: bool, verify: bool, keep_going: bool, force: bool) -> None:  # fmt: skip
    """Update LIST to match FILE, or several lists to match the files in DIRECTORY.

    In DIRECTORY, blocked-senders.txt contains the deployment's blocked-senders list, and TENANT/blocked-senders.txt
    contains the tenant's. After an interruption, run the command again to continue.
    """
    from bridge.cli.lists import sync

    choices = sync.Choices(prune, verify, yes, keep_going, too_many, force)
    sync.sync(session, places, kind, choices, dry_run=dry_run)


@lists.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def refresh(path: Path | None, as_json: bool) -> None:
    """Refresh the local copies of the lists that listeners enforce.

    Exit code 0 only if all copies are up to date. If a list cannot be fetched, its old copy is kept.
    """
    from bridge.cli.lists import refresh

    refresh.refresh(path, as_json)


@lists.group(cls=Group)
def personal() -> None:
    """Show and change personal lists: the senders that a recipient has blocked or allowed.

    Personal lists are stored by this bridge, not by the service; the daemon applies changes within seconds.
    """


_KIND = click.argument("kind", type=click.Choice(["block", "allow"]))


@personal.command("show")
@config_option
@click.argument("recipient", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entry.")
def show_personal(path: Path | None, recipient: str | None, as_json: bool) -> None:
    """Show the entries of RECIPIENT, or of all recipients, newest first."""
    from bridge.cli.lists import personal

    personal.show(path, recipient, as_json)


@personal.command("add")
@config_option
@_KIND
@click.argument("recipient")
@click.argument("senders", nargs=-1, required=True, metavar="SENDER...")
def add_personal(path: Path | None, kind: str, recipient: str, senders: tuple[str, ...]) -> None:
    """Block or allow senders for RECIPIENT. SENDER is an address or a domain. A domain includes its subdomains."""
    from bridge.cli.lists import personal

    personal.add(path, kind, recipient, senders)


@personal.command("delete")
@config_option
@_KIND
@click.argument("recipient")
@click.argument("senders", nargs=-1, required=True, metavar="SENDER...")
def delete_personal(path: Path | None, kind: str, recipient: str, senders: tuple[str, ...]) -> None:
    """Delete RECIPIENT's entries for these senders. Senders without an entry are ignored."""
    from bridge.cli.lists import personal

    personal.delete(path, kind, recipient, senders)
