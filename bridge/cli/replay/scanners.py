"""The scanners of a replay: the configured one, another one (by its URL), or the included service (by its file).

A token is never sent to a scanner for which it was not given: the configured one goes only to the configured URLs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bridge.cli.terminal import say
from bridge.config.fields import base_url
from bridge.config.model import Config
from bridge.daemon import named_files, wiring
from bridge.scanner.client import Scanner, ScannerSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """One scanner, as given on the command line; without a URL or a file, the one in the configuration."""

    url: str | None = None
    token_file: Path | None = None
    service: Path | None = None
    ca_file: Path | None = None
    option: str = "--scanner"  # for messages
    token_option: str = "--token-file"  # noqa: S105 - the name of an option
    profile: str = ""  # overrides the one in the file of the service

    def name(self, conf: Config) -> str:
        return str(self.service) if self.service is not None else self.url or ", ".join(conf.scanner.urls)


@asynccontextmanager
async def opened(choice: Choice, conf: Config) -> AsyncIterator[Scanner]:
    """Raises ConfigError, BridgeError, click.UsageError."""
    if choice.service is not None:
        from bridge.daemon.private_service import private_service

        async with private_service(choice.service, choice.profile) as service:
            if service.note:
                say(f"{choice.service}: {service.note}", err=True)
            async with _closing(ScannerSettings(urls=(service.url,), token=service.token)) as scanner:
                yield scanner
        return
    async with _closing(_settings(choice, conf)) as scanner:
        yield scanner


@asynccontextmanager
async def _closing(settings: ScannerSettings) -> AsyncIterator[Scanner]:
    scanner = Scanner(settings)
    try:
        yield scanner
    finally:
        scanner.close()


def _settings(choice: Choice, conf: Config) -> ScannerSettings:
    urls = conf.scanner.urls
    if choice.url is not None:
        try:
            urls = [base_url(choice.url, conf.scanner.allow_plain_http)]
        except ValueError as exc:
            raise click.UsageError(f"{choice.option}: {exc}") from None
    is_configured = set(urls) <= set(conf.scanner.urls)
    if choice.token_file is not None:
        token = named_files.read_secret(choice.token_file.absolute(), choice.token_option)
    elif is_configured or conf.scanner.token_file is None:
        token = wiring.token(conf)
    else:
        hint = "the token in the configuration is only for scanner.urls"
        raise click.UsageError(f"{choice.option}: give its token with {choice.token_option} FILE; {hint}")
    there = conf.scanner.model_copy(update={"urls": urls})
    if choice.ca_file is not None:
        there = there.model_copy(update={"ca_file": str(choice.ca_file.absolute())})
    if not is_configured:  # our certificate, too, is only for the configured ones
        there = there.model_copy(update={"client_cert_file": None, "client_key_file": None})
    found = wiring.scanner_settings(conf.model_copy(update={"scanner": there}), token)
    return replace(found, resubmit=False)
