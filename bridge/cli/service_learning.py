"""`scanbridge service learning`: show, export, import and reset what the phishing score has learned from reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from bridge.cli.parameters import Tenant
from bridge.cli.service_place import opened_store, own_config
from bridge.cli.single_values import Group
from bridge.cli.terminal import consents, say, say_cells, say_json
from bridge.runtime.counted import counted

if TYPE_CHECKING:
    from bridge.service.learning.votes import Vote

_MAX_LINE = 20_000
_EXIT_REFUSED, _EXIT_UNCONFIRMED = 1, 2  # as of `quarantine delete`


_tenant = click.option(
    "--tenant", "scope", type=Tenant(), metavar="UUID", callback=lambda _context, _option, value: value or "",
    help="Votes on the mail of this tenant. Default: votes on mail without a tenant.",
)  # fmt: skip


@click.group(cls=Group)
def learning() -> None:
    """Show, export, import or reset what was learned from people's reports."""


@learning.command()
@own_config
@_tenant
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.pass_obj
def show(path: Path | None, own: Path | None, scope: str, as_json: bool) -> None:
    """Show how much the reports have changed the weight of each sender and signal.

    The numbers use the scale of `service explain`. A number above 0 makes mail look more like phishing; a number
    below 0 makes it look less like phishing.
    """
    from bridge.service.learning.score_shift import layer_of
    from bridge.service.learning.store import VoteStore

    with opened_store(own or path) as store:
        found = layer_of(VoteStore(store).votes(scope))
    if as_json:
        say_json({"votes": found.votes, "senders": found.senders, "signals": found.signals}, indent=2)
        return
    say(f"votes: {found.votes:,}")
    for title, values in (("senders", found.senders), ("signals", found.signals)):
        for name, change in sorted(values.items(), key=lambda item: (-abs(item[1]), item[0])):
            say_cells(title.removesuffix("s"), f"{change:+.2f}", name)


@learning.command()
@own_config
@_tenant
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def reset(path: Path | None, own: Path | None, scope: str, yes: bool) -> None:
    """Delete the votes that --tenant selects, after asking for confirmation.

    A running service picks up the change within seconds.
    """
    from bridge.service.learning.store import VoteStore

    with opened_store(own or path) as store:
        votes = VoteStore(store)
        if not yes and (known := len(votes.votes(scope))):
            agreed = consents(
                f"permanently delete {counted(known, 'vote')} (`learning export` saves them)",
                otherwise="nothing was deleted",
            )
            if not agreed:
                sys.exit(_EXIT_UNCONFIRMED if agreed is None else _EXIT_REFUSED)
        count = votes.reset(scope)
    say(f"{counted(count, 'vote')} removed", err=True)


@learning.command("export")
@own_config
@_tenant
@click.pass_obj
def export_votes(path: Path | None, own: Path | None, scope: str) -> None:
    """Print the votes that --tenant selects, one JSON object per line, for use with `import`.

    A vote contains hashes of the mail and of the person, the sender's domain, and the signals, but no content.
    """
    from bridge.service.learning.store import VoteStore

    with opened_store(own or path) as store:
        for vote in VoteStore(store).votes(scope):
            say(vote.to_json())


@learning.command("import")
@own_config
@_tenant
@click.argument("file", type=click.File("r", encoding="utf-8", errors="surrogateescape"))
@click.pass_obj
def import_votes(path: Path | None, own: Path | None, scope: str, file: TextIO) -> None:
    """Replace the votes that --tenant selects with those in FILE, written by `export`; `-` is standard input.

    If any line is invalid, or if there are no votes, nothing is changed.
    """
    from bridge.service.learning.store import VoteStore

    votes = _votes(file)
    with opened_store(own or path) as store:
        count = VoteStore(store).replace(scope, votes)
    say(f"{counted(count, 'vote')} stored", err=True)


def _votes(file: TextIO) -> list[Vote]:
    """Read the votes in a file. Ends the command if the file cannot be used."""
    from bridge.service.learning.votes import BadVote, Vote

    votes: list[Vote] = []
    try:
        for line in iter(lambda: file.readline(_MAX_LINE), ""):
            votes.append(Vote.from_json(line))
    except BadVote as exc:
        _refuse(file, f"line {len(votes) + 1}: {exc}; nothing was changed")
    except OSError as exc:
        _refuse(file, f"cannot be read: {exc.strerror}; nothing was changed")
    if not votes:  # the export may have failed
        _refuse(file, "the file has no votes; nothing was changed (`learning reset` deletes all votes)")
    return votes


def _refuse(file: TextIO, why: str) -> NoReturn:
    say(f"{file.name}: {why}", err=True)
    sys.exit(1)
