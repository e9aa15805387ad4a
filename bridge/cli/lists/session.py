"""What all commands of `scanbridge lists` share: the service, the scope and the exit codes.

The exit code tells a script what to do next: 75 means "run it again later", 1 means "needs attention".
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast
from uuid import UUID

import click
import uvloop

from bridge.cli.common import EXIT_CONFIG, config_option, load_or_exit
from bridge.cli.terminal import say, say_lines
from bridge.config.lists import Lists
from bridge.config.model import Config
from bridge.daemon import resources, wiring
from bridge.daemon.config_file import load
from bridge.errors import BridgeError, ConfigError
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.errors import ListNotFound, ListsForbidden, ListsUnavailable, ListsUncertain, clean
from bridge.lists.files import Format, InputError
from bridge.lists.retry import RetrySettings
from bridge.runtime import units, yaml_file
from bridge.runtime.suggestion import did_you_mean

T = TypeVar("T")

EXIT_FAILED = 1  # refused, or only partly done: the message has the details
EXIT_DIFFERENT = 3  # a dry run found differences
EXIT_UNCONFIRMED = 4  # too many deletions, or a dangerous entry, not confirmed
EXIT_DATA = 65  # EX_DATAERR: a file of entries has errors
EXIT_TEMPORARY = 75  # EX_TEMPFAIL: the same command may work later
EXIT_KEY = 77  # EX_NOPERM: the service refuses the key
EXIT_INTERRUPTED = 130

MAX_REFUSED = 20  # shown on standard error; --json has all


class DangerousEntries(BridgeError):
    """Entries that need `--force`; the text has one line for each."""


@dataclass(frozen=True, slots=True)
class Session:
    """The service, the scope, and the output format."""

    settings: ListSettings
    tenant: str | None
    as_json: bool
    config: Config | None = None  # None: everything came from the command line

    def category(self, name: str, reported: str) -> str:
        """What the entries of a list are: as configured, or as the service says."""
        kinds = self.config.lists.kinds if self.config is not None and self.config.lists is not None else {}
        return str(kinds.get(name, reported))

    @property
    def own_domains(self) -> set[str]:
        return own_domains(self.config) if self.config is not None else set()

    @property
    def scope(self) -> str:
        return f"tenant {self.tenant}" if self.tenant else "the deployment"


def own_domains(conf: Config) -> set[str]:
    """The domains that the configuration shows to be the operator's, as far as it does."""
    found = {domain for tenant in conf.tenants for domain in tenant.recipient_domains}
    found |= {domain for route in (conf.relay.routes if conf.relay else ()) for domain in route.recipient_domains}
    host = wiring.hostname(conf).rstrip(".")
    if host.count(".") >= 2:  # mx.example.org
        found |= {host, host.partition(".")[2]}
    return found


def _tenant(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    try:
        return str(UUID(value)) if value is not None else None
    except ValueError:
        raise click.BadParameter("a tenant is a UUID, for example 123e4567-e89b-12d3-a456-426614174000") from None


def _duration(_context: click.Context, _option: click.Parameter, value: str) -> float:
    try:
        return units.parse_duration(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


_OPTIONS = (
    config_option,
    click.option("--url", envvar="SCANBRIDGE_LISTS_URL", help="Base URL of the List API, instead of lists.url."),
    click.option(
        "--api-key-file", envvar="SCANBRIDGE_API_KEY_FILE",
        help="File with the API key, instead of lists.api_key_file.",
    ),
    click.option("--ca-file", help="CA certificates, instead of lists.ca_file."),
    click.option("--tenant", callback=_tenant, help="Tenant (a UUID). Default: the deployment."),
    click.option(
        "--patience", default="60s", show_default=True, callback=_duration,
        help="How long to retry a failing request.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)  # fmt: skip


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the service; the command gets the session made from them."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        names = ("path", "url", "api_key_file", "ca_file", "patience")
        settings, conf = _settings(*(given.pop(name) for name in names))
        command(Session(settings, given.pop("tenant"), given.pop("as_json"), conf), **given)

    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), wrapped)


def _settings(
    path: Path | None, url: str | None, key: str | None, ca: str | None, patience: float
) -> tuple[ListSettings, Config | None]:
    """From the command line only, or from the configuration with overrides from the command line."""
    here = Path.cwd()
    given = {name: str(here / value) for name, value in (("api_key_file", key), ("ca_file", ca)) if value}
    if url:
        given["url"] = url
    try:
        directory, configured, conf = here, None, None
        if not (url and key):
            conf = load_or_exit(path)
            directory, configured = conf.directory, conf.lists
        elif path is not None:
            with suppress(ConfigError):  # it only tells which domains are the operator's
                conf = load(path)
        if configured is not None:
            given = {**configured.model_dump(exclude_none=True), **given}
        elif not (url and key):
            raise ConfigError("the List API is not configured: add lists: {url: ..., api_key_file: ...}, "
                              "or use --url and --api-key-file")  # fmt: skip
        chosen = yaml_file.load(Path("lists"), Lists, yaml_file.dump(given))
        secret = resources.read_secret(resources.locate(chosen.api_key_file, directory), "lists.api_key_file")
        encrypted = chosen.url.startswith("https:")
        tls = resources.client_tls(chosen.ca_file, directory, "lists.ca_file") if encrypted else None
    except ConfigError as exc:
        fail(exc)
    return ListSettings(chosen.url, secret, tls, retry=RetrySettings(patience_s=patience)), conf


format_option = click.option(
    "--format", "kind", type=click.Choice([str(format_) for format_ in Format]),
    help="File format. Default: by file name (.txt .csv .jsonl .json .yml), or text if there is no file name.",
)  # fmt: skip


keep_going_option = click.option(
    "--keep-going", is_flag=True, help="Skip entries that the service refuses, and report them at the end."
)


async def naming(session: Session, name: str, work: Coroutine[Any, Any, T]) -> T:
    """If there is no such list, the error names the one that may be meant, or all."""
    try:
        return await work
    except ListNotFound as exc:
        known: list[str] = []
        with suppress(BridgeError):  # the first error is the one to report
            async with ListClient(session.settings) as client:
                known = [info.name for info in await client.lists(session.tenant)]
        hint = did_you_mean(name, known) or (f"; available lists: {', '.join(known)}" if known else "")
        raise ListNotFound(f"{exc}{clean(hint)}") from exc


def run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return cast(T, uvloop.run(work))
    except BridgeError as exc:
        fail(exc)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def attempt(work: Coroutine[Any, Any, None]) -> tuple[int, str]:
    """The exit code and the problem; (0, "") when there was none."""
    try:
        uvloop.run(work)
    except BridgeError as exc:
        return exit_code(exc), str(exc)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED, "interrupted"
    return 0, ""


def exit_code(exc: BridgeError) -> int:
    match exc:
        case ListsUnavailable() | ListsUncertain():
            return EXIT_TEMPORARY
        case ListsForbidden():
            return EXIT_KEY
        case InputError():
            return EXIT_DATA
        case DangerousEntries():
            return EXIT_UNCONFIRMED
        case ConfigError():
            return EXIT_CONFIG
        case _:
            return EXIT_FAILED


def fail(exc: BridgeError) -> NoReturn:
    say_lines(str(exc), err=True)
    sys.exit(exit_code(exc))


def account(done: int, total: int, uncertain: int, left: int, *, again: bool = True) -> str:
    """What was done, and the next step: every change can be repeated, so running it again is always safe.

    `again` is False if it would fail in the same way.
    """
    if not uncertain:
        step = "" if again else "correct that first, then "
        return f"done: {done:,} of {total:,}; not done: {left:,}; {step}run the same command again to continue"
    return (
        f"done: {done:,} of {total:,}, {uncertain:,} uncertain (no clear answer); not done: {left:,}; "
        "run the same command again to continue (nothing is changed twice), or look with `scanbridge lists entries`"
    )


def say_refused(refused: dict[str, str]) -> None:
    """Print which entries were refused, and why."""
    for reason in list(refused.values())[:MAX_REFUSED]:
        say(reason, err=True)
    if len(refused) > MAX_REFUSED:
        say(f"and {len(refused) - MAX_REFUSED:,} more entries were refused", err=True)
