"""The options of `scanbridge lists`, defined once for all its commands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bridge.cli.config_option import config_option
from bridge.cli.parameters import Tenant
from bridge.cli.values import duration
from bridge.lists.files import Format

_OPTIONS = (
    config_option,
    click.option("--url", envvar="SCANBRIDGE_LISTS_URL", help="Base URL of the List API, instead of lists.url."),
    click.option(
        "--api-key-file", envvar="SCANBRIDGE_API_KEY_FILE",
        help="File that contains the API key, instead of lists.api_key_file.",
    ),
    click.option("--ca-file", help="File that contains CA certificates, instead of lists.ca_file."),
    click.option(
        "--tenant", type=Tenant(), metavar="UUID", help="Lists of this tenant. Default: the deployment's lists.",
    ),
    click.option(
        "--patience", "patience_s", default="60s", show_default=True, callback=duration,
        help="How long to retry a failing request.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)  # fmt: skip


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the service; the command gets the session made from them."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        from bridge.cli.lists.session import open_session

        names = ("path", "url", "api_key_file", "ca_file", "patience_s", "tenant", "as_json")
        command(open_session(**{name: given.pop(name) for name in names}), **given)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), wrapped)


format_option = click.option(
    "--format", "kind", type=click.Choice([str(format_) for format_ in Format]),
    help="File format. Default: as indicated by the file name (.txt .csv .jsonl .json .yml), or text if there is none.",
)  # fmt: skip


keep_going_option = click.option(
    "--keep-going", is_flag=True, help="Skip entries that the service refuses, and report them at the end."
)

force_option = click.option(
    "--force", is_flag=True, help="Also add dangerous entries: a large provider, a very wide network, your own domain."
)


_SOURCE = (
    click.argument("name", metavar="LIST"),
    click.argument("given", metavar="[ENTRY]...", nargs=-1),
    click.option("-f", "--file", "paths", multiple=True, type=click.Path(path_type=Path, allow_dash=True),
                 help="Read entries from this file (- for standard input); repeatable."),
    format_option,
)  # fmt: skip


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments and options that give entries."""
    return functools.reduce(lambda made, option: option(made), reversed(_SOURCE), command)


class Share(click.ParamType[Any]):
    """`10%` of the list, or a number of entries."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if callable(value):
            return value
        text = str(value)
        number = text.removesuffix("%")
        if not (number.isascii() and number.isdigit()):
            self.fail("expected a percentage of the list, for example 10%, or a number of entries", param, context)
        limit = int(number)
        if text.endswith("%"):
            return lambda planned: planned.deletions * 100 > limit * planned.change.size
        return lambda planned: planned.deletions > limit
