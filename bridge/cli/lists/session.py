"""What all commands of `scanbridge lists` share: the service, the scope and the exit codes.

The exit code tells a script what to do next: 75 means "run it again later", 1 means "needs attention".
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import uvloop

from bridge.cli.config_option import EXIT_CONFIG, load_or_exit
from bridge.cli.progress import LINE_EVERY_S
from bridge.cli.terminal import EXIT_INTERRUPTED, say, say_lines
from bridge.config.fields import base_url
from bridge.config.lists import Lists
from bridge.config.model import Config
from bridge.daemon import list_wiring, wiring
from bridge.daemon.config_file import load
from bridge.errors import BridgeError, ConfigError
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.errors import ListNotFound, ListsForbidden, ListsUnavailable, ListsUncertain, ListsUnreachable, clean
from bridge.lists.files import InputError
from bridge.runtime import yaml_file
from bridge.runtime.suggestion import did_you_mean

T = TypeVar("T")

EXIT_FAILED = 1  # refused, or only partly done: the message has the details
EXIT_DIFFERENT = 3  # a dry run found differences
EXIT_UNCONFIRMED = 4  # too many deletions, or a dangerous entry, not confirmed
EXIT_DATA = 65  # EX_DATAERR: a file of entries has errors
EXIT_TEMPORARY = 75  # EX_TEMPFAIL: the same command may work later
EXIT_KEY = 77  # EX_NOPERM: the service refuses the key

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
        """The kind of entries in a list: as configured, or else as the service reports it."""
        kinds = self.config.lists.kinds if self.config is not None and self.config.lists is not None else {}
        return str(kinds.get(name, reported))

    @property
    def own_domains(self) -> set[str]:
        return own_domains(self.config) if self.config is not None else set()

    @property
    def scope(self) -> str:
        return f"tenant {self.tenant}" if self.tenant else "the deployment"


def own_domains(conf: Config) -> set[str]:
    """The operator's domains, as far as the configuration names them."""
    found = {domain for tenant in conf.tenants for domain in tenant.recipient_domains}
    found |= {domain for route in (conf.relay.routes if conf.relay else ()) for domain in route.recipient_domains}
    host = wiring.hostname(conf).rstrip(".")
    if host.count(".") >= 2:  # mx.example.org
        found |= {host, host.partition(".")[2]}
    return found


def open_session(
    *,
    path: Path | None,
    url: str | None,
    api_key_file: str | None,
    ca_file: str | None,
    patience_s: float,
    tenant: str | None,
    as_json: bool,
) -> Session:
    """From the command line only, or from the configuration with overrides from the command line."""
    here, key = Path.cwd(), api_key_file
    given = {name: str(here / value) for name, value in (("api_key_file", key), ("ca_file", ca_file)) if value}
    try:
        directory, configured, conf = here, None, None
        if not (url and key):
            conf = load_or_exit(path)
            directory, configured = conf.directory, conf.lists
        elif path is not None:
            with suppress(ConfigError):  # it is only needed for the operator's domains
                conf = load(path)
        if configured is not None:
            given = {**configured.model_dump(exclude_none=True), **given}
        if url:  # only this service
            given["url"] = _given_url(url, configured is not None and configured.allow_plain_http)
            given.pop("other_urls", None)
        if configured is None and not (url and key):
            raise ConfigError(f"{not_configured(path)}; or use --url and --api-key-file")
        chosen = yaml_file.load(Path("lists"), Lists, yaml_file.dump(given))
        settings = list_wiring.settings_of(chosen, directory, patience_s)
    except ConfigError as exc:
        fail(exc)
    return Session(with_hint(settings, "--patience"), tenant, as_json, conf)


def _given_url(url: str, allow_plain_http: bool) -> str:
    """Raises ConfigError, which names the option."""
    try:
        return base_url(url, allow_plain_http)
    except ValueError as exc:
        raise ConfigError(f"--url: {exc}") from exc


def not_configured(path: Path | None) -> str:
    """What is missing, where it belongs, and where the key comes from."""
    where = f"to {path}" if path else "to a configuration file, and give that file with -c"
    return (
        f"the List API is not configured: add lists: {{url: ..., api_key_file: ...}} {where}; "
        "`scanbridge service apikey create NAME` prints a key for api_key_file"
    )


def with_hint(settings: ListSettings, option: str = "") -> ListSettings:
    """The same settings, with a message that says why the command waits. `option` sets how long it waits."""
    hint = RetryHint(settings.retry.patience_s, f" ({option})" if option else "")
    return replace(settings, on_retry=hint, on_fail_over=lambda exc, url: say(f"{exc}; using {url}", err=True))


class RetryHint:
    """Says that the service does not answer and that the command keeps trying: once for each outage.

    Immediately if there is no connection; other failures are often brief, so they are reported only if they persist.
    """

    def __init__(self, patience_s: float, option: str) -> None:
        self._patience_s, self._option = patience_s, option
        self._said_at = -math.inf

    def __call__(self, exc: ListsUnavailable, waiting_s: float) -> None:
        now = time.monotonic()
        worth_it = isinstance(exc, ListsUnreachable) or waiting_s > LINE_EVERY_S
        if worth_it and now - self._said_at > self._patience_s:
            self._said_at = now
            say(f"{exc}; trying again for up to {self._patience_s:g}s{self._option}", err=True)


async def naming(session: Session, name: str, work: Coroutine[Any, Any, T]) -> T:
    """If there is no such list, the error suggests a similar name, or else names all lists."""
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
        return exit_code(exc), f"{exc}{hint(exc) if isinstance(exc, ListsForbidden) else ''}"
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


def hint(exc: BridgeError) -> str:
    """The next step, to be appended to a message."""
    match exc:
        case ListsUnreachable():
            return "; is the service running? check lists.url, or --url"
        case ListsForbidden():
            held = f"the key is in {exc.key_file} (lists.api_key_file)" if exc.key_file else "check lists.api_key_file"
            return f"; {held}: replace it with one that `scanbridge service apikey create NAME` prints"
    return ""


def fail(exc: BridgeError) -> NoReturn:
    say_lines(f"{exc}{hint(exc)}", err=True)
    sys.exit(exit_code(exc))


def account(done: int, total: int, uncertain: int, left: int, *, again: bool = True) -> str:
    """What was done, and the next step: every change can be repeated, so running it again is always safe.

    `again` is False if it would fail in the same way.
    """
    if not uncertain:
        step = (
            "run the same command again to continue"
            if again
            else "correct this, then run the command again to continue"
        )
        return f"done: {done:,} of {total:,}; not done: {left:,}; {step}"
    return (
        f"done: {done:,} of {total:,}, {uncertain:,} uncertain (no clear answer); not done: {left:,}; "
        "run the same command again to continue (nothing is changed twice), or check with `scanbridge lists entries`"
    )


def say_refused(refused: dict[str, str]) -> None:
    """Print which entries were refused, and why."""
    for reason in list(refused.values())[:MAX_REFUSED]:
        say(reason, err=True)
    if len(refused) > MAX_REFUSED:
        say(f"and {len(refused) - MAX_REFUSED:,} more entries were refused", err=True)
