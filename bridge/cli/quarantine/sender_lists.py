"""`scanbridge quarantine block-sender | allow-sender`: add the sender of a quarantined mail to a list.

The entry's comment names the mail, its date and the operator. An existing entry is left unchanged, with its
comment. Exit codes are those of `scanbridge lists`, and 3 if there is no such mail.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bridge.api.lists import ListEntry
from bridge.cli.common import config_option
from bridge.cli.lists.session import EXIT_FAILED, attempt, exit_code, fail
from bridge.cli.quarantine.session import EXIT_UNKNOWN, Session, login_name
from bridge.cli.terminal import say, say_json
from bridge.daemon import wiring
from bridge.errors import BridgeError, ConfigError
from bridge.lists.client import ListClient
from bridge.lists.errors import ListNotFound
from bridge.mail.address import domain_of
from bridge.matching import spelling
from bridge.matching.match import DOMAIN, NETWORK, SENDER
from bridge.quarantine.quarantine import MailNotFound
from bridge.quarantine.record import MailRecord

_options = (
    config_option,
    click.argument("ids", metavar="ID...", nargs=-1, required=True),
    click.option("--domain", "whole_domain", is_flag=True, help="Add the sender's whole domain, not only the address."),
    click.option("--list", "name", default=None, help="Add to this list instead of the configured one."),
    click.option(
        "--global",
        "everywhere",
        is_flag=True,
        help="Add for the whole deployment, not only for a tenant.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per mail."),
)


class NoEntry(BridgeError):
    """This mail's sender cannot be added to this list."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda made, option: option(made), reversed(_options), command)


@click.command("block-sender")
@_with_options
def block_sender(path: Path | None, name: str | None, **given: Any) -> None:
    """Add a mail's envelope sender to the list of blocked senders (lists.block_list).

    The entry applies to the mail's tenant; without a tenant, or with --global, to the whole deployment.
    """
    _add(path, name, "block", **given)


@click.command("allow-sender")
@_with_options
def allow_sender(path: Path | None, name: str | None, **given: Any) -> None:
    """Add a mail's envelope sender to the list of allowed senders (lists.allow_list).

    The entry applies to the mail's tenant; without a tenant, or with --global, to the whole deployment.
    Envelope senders are easily forged: if possible, allow the networks of a partner's mail servers instead.
    """
    _add(path, name, "allow", **given)


def _add(
    path: Path | None,
    name: str | None,
    what: str,
    ids: tuple[str, ...],
    whole_domain: bool,
    everywhere: bool,
    as_json: bool,
) -> None:
    session = Session.open(path)
    lists = session.config.lists
    try:
        if lists is None:
            raise ConfigError("the List API is not configured: add lists: {url: ..., api_key_file: ...}")
        settings = wiring.list_settings(session.config)
    except ConfigError as exc:
        fail(exc)
    chosen = name or (lists.block_list if what == "block" else lists.allow_list)
    codes = []
    for mail_id in dict.fromkeys(ids):
        job = Addition(mail_id, chosen, login_name())
        try:
            mail = session.quarantine.read(mail_id)
            job.tenant = None if everywhere else mail.tenant or None
            code, problem = attempt(job.run(ListClient(settings), mail, whole_domain=whole_domain))
        except MailNotFound as exc:
            code, problem = EXIT_UNKNOWN, str(exc)
        except BridgeError as exc:
            code, problem = exit_code(exc), str(exc)
        codes.append(code)
        if not problem and job.added:
            session.note(f"{what}ed sender", mail_id, list=chosen, tenant=job.tenant, entry=job.entry)
        job.report(problem, code, as_json=as_json)
    sys.exit(next((code for code in (EXIT_FAILED, 78, 77, 75, EXIT_UNKNOWN) if code in codes), 0))


@dataclass(slots=True)
class Addition:
    """Adds one mail's sender to a list."""

    mail_id: str
    list_name: str
    by: str
    tenant: str | None = None
    entry: str = ""
    added: bool = False

    async def run(self, client: ListClient, mail: MailRecord, *, whole_domain: bool) -> None:
        async with client:
            infos = {info.name: info for info in await client.lists(self.tenant)}
            if self.list_name not in infos:
                raise ListNotFound(f"the service has no list {self.list_name}")
            category = infos[self.list_name].category
            self.entry = entry_of(mail, category, whole_domain=whole_domain)
            if await self._is_there(client, category):
                return
            moment = mail.time.strftime("%Y-%m-%d %H:%M UTC")
            comment = f"quarantined mail {mail.id} of {moment}, by {self.by}"
            await client.add(self.list_name, [ListEntry(self.entry, comment)], self.tenant)
            self.added = True

    async def _is_there(self, client: ListClient, category: str) -> bool:
        """In any spelling: adding it again would overwrite its comment."""
        own = spelling.normalise(category, self.entry)
        async with aclosing(client.entries(self.list_name, self.tenant)) as entries:
            async for listed in entries:
                try:
                    if listed.entry == self.entry or spelling.normalise(category, listed.entry) == own:
                        return True
                except ValueError:  # an entry that the service accepted, and we cannot read
                    pass
        return False

    def report(self, problem: str, code: int, *, as_json: bool) -> None:
        scope = f"tenant {self.tenant}" if self.tenant else "the deployment"
        if as_json:
            row = {"id": self.mail_id, "list": self.list_name, "tenant": self.tenant, "entry": self.entry or None}
            say_json({**row, "added": self.added, "problem": problem or None, "exit_code": code})
        elif problem:
            say(f"{self.mail_id}: not added to {self.list_name}: {problem}", err=True)
        else:
            done = "added to" if self.added else "already on"
            say(f"{self.mail_id}: {self.entry} {done} {self.list_name} of {scope}")


def entry_of(mail: MailRecord, category: str, *, whole_domain: bool) -> str:
    """The entry for the list. Raises NoEntry."""
    sender = mail.envelope.sender
    if not sender:
        raise NoEntry("the mail has the null sender, as bounces do: it has no address to list")
    domain = domain_of(sender)
    if category == NETWORK:
        raise NoEntry("this list contains networks, not senders")
    if category == DOMAIN and not whole_domain:
        raise NoEntry("this list contains domains: use --domain to add the sender's whole domain")
    if whole_domain and not domain:
        raise NoEntry("the sender has no domain")
    entry = (domain if category == DOMAIN else f"@{domain}") if whole_domain else sender
    try:
        spelling.normalise(category if category in (SENDER, DOMAIN) else SENDER, entry)
    except ValueError as exc:
        raise NoEntry(f"the sender cannot be listed: {exc}") from None
    return entry
