"""`scanbridge quarantine block-sender | allow-sender`: add the senders of quarantined mails to a list.

The entry's comment names the mail, its date and the operator, unless one is given. An existing entry is left unchanged,
with its comment; a sender of several mails is added once. Exit codes are those of `scanbridge lists`, and 3 if there is
no such mail. A dangerous entry (the domain of a large provider, one's own domain) needs --force, and without it nothing
is added: senders are often forged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option
from bridge.cli.quarantine.selection import Choice, select, show_table, with_selection
from bridge.cli.single_values import Command
from bridge.cli.terminal import EXIT_INTERRUPTED, consents, say, say_json
from bridge.errors import BridgeError, ConfigError
from bridge.runtime.counted import counted

if TYPE_CHECKING:
    from bridge.cli.quarantine.session import Session
    from bridge.config.lists import Lists
    from bridge.lists.client import ListClient
    from bridge.quarantine.record import MailRecord

_SHOWN = 20  # entries shown before a question

_options = (
    config_option,
    with_selection,
    click.option("--domain", "whole_domain", is_flag=True, help="Add the sender's whole domain, not only the address."),
    click.option("--list", "name", default=None, help="Add the entries to this list instead of the configured one."),
    click.option(
        "--global",
        "everywhere",
        is_flag=True,
        help="Add the entries for the whole deployment, not only for one tenant.",
    ),
    click.option("--force", is_flag=True, help="Also add dangerous entries: a large provider, your own domain."),
    click.option(
        "--comment", default=None, help="Comment for the entries. Default: the mail's id and date, and your name."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per mail."),
)


class NoEntry(BridgeError):
    """This mail's sender cannot be added to this list."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda made, option: option(made), reversed(_options), command)


@click.command("block-sender", cls=Command)
@_with_options
def block_sender(path: Path | None, choice: Choice, **given: Any) -> None:
    """Add the envelope senders of mails to the list of blocked senders (lists.block_list).

    Each entry applies to the tenant of the mail. If the mail has no tenant, or if --global is given, the entry
    applies to the whole deployment.
    """
    _add(path, choice, "block", **given)


@click.command("allow-sender", cls=Command)
@_with_options
def allow_sender(path: Path | None, choice: Choice, **given: Any) -> None:
    """Add the envelope senders of mails to the list of allowed senders (lists.allow_list).

    Each entry applies to the tenant of the mail. If the mail has no tenant, or if --global is given, the entry
    applies to the whole deployment.
    Envelope senders are easily forged: if possible, allow the networks of a partner's mail servers instead.
    """
    _add(path, choice, "allow", **given)


def _add(
    path: Path | None,
    choice: Choice,
    what: str,
    *,
    name: str | None,
    whole_domain: bool,
    everywhere: bool,
    force: bool,
    comment: str | None,
    as_json: bool,
) -> None:
    import uvloop

    from bridge.cli.lists.session import fail, not_configured, with_hint
    from bridge.cli.quarantine.exit_codes import most_serious
    from bridge.cli.quarantine.session import Session
    from bridge.daemon import list_wiring
    from bridge.lists.client import ListClient

    session = Session.open(path)
    lists = session.config.lists
    try:
        if lists is None:
            raise ConfigError(not_configured(path))
        settings = with_hint(list_wiring.list_settings(session.config))
    except ConfigError as exc:
        fail(exc)
    selection = select(session, choice)
    chosen = name or (lists.block_list if what == "block" else lists.allow_list)
    additions = [Addition(mail, None if everywhere else mail.tenant or None) for mail in selection.mails]
    job = Job(session, lists, what, chosen, additions, whole_domain, force, comment)

    async def work() -> None:
        async with ListClient(settings) as client:
            await job.prepare(client)
            if job.confirmed(choice):
                await job.carry_out(client)

    try:
        uvloop.run(work())
    except KeyboardInterrupt:
        say("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if not choice.dry_run:
        job.report(as_json=as_json)
    sys.exit(job.refusal or most_serious([*selection.codes, *(addition.code for addition in job.additions)]))


@dataclass(slots=True)
class Addition:
    """The sender of one mail, and what became of it."""

    mail: MailRecord
    tenant: str | None
    entry: str = ""
    normal: str = ""  # the entry in the form that is compared
    added: bool = False
    is_there: bool = False
    danger: str = ""  # why the entry needs --force
    problem: str = ""
    brief: str = ""  # the same for people who must not learn which machines there are
    step: str = ""  # the next one, for the terminal only: the console must not show paths
    code: int = 0

    def fail(self, exc: BridgeError) -> None:
        from bridge.cli.lists.session import exit_code, hint
        from bridge.lists.errors import EntryRefused, ListFull, ListNotFound, ListsError

        self.problem, self.code = str(exc), exit_code(exc)
        is_about_mail = not isinstance(exc, ListsError) or isinstance(exc, EntryRefused | ListFull | ListNotFound)
        self.brief = self.problem if is_about_mail else "the lists cannot be changed at the moment"
        self.step = hint(exc)


@dataclass(slots=True)
class Job:
    """All additions to one list."""

    session: Session
    lists: Lists
    what: str  # block or allow
    list_name: str
    additions: list[Addition]
    whole_domain: bool = False
    force: bool = False
    comment: str | None = None
    refusal: int = 0  # the exit code if nothing was changed: dangerous entries, or the operator did not agree
    _seen: set[tuple[str | None, str]] = field(default_factory=set)

    @property
    def due(self) -> list[Addition]:
        return [each for each in self.additions if not each.problem and not each.is_there]

    async def prepare(self, client: ListClient, *, reads_list: bool = True) -> None:
        """Find the entries and, with `reads_list`, which of them exist already. Changes nothing."""
        for tenant in dict.fromkeys(each.tenant for each in self.additions):
            mine = [each for each in self.additions if each.tenant == tenant]
            try:
                category = await self._category(client, tenant)
                for each in mine:
                    self._find_entry(each, category)
                if reads_list:
                    await self._find_existing(client, tenant, category, [each for each in mine if not each.problem])
            except BridgeError as exc:
                for each in mine:
                    each.fail(exc)

    async def _category(self, client: ListClient, tenant: str | None) -> str:
        from bridge.lists.errors import ListNotFound
        from bridge.runtime.suggestion import did_you_mean

        infos = {info.name: info for info in await client.lists(tenant)}
        if self.list_name not in infos:
            hint = did_you_mean(self.list_name, infos) or f"; available lists: {', '.join(sorted(infos)) or 'none'}"
            raise ListNotFound(f"the service has no list {self.list_name}{hint}")
        return str(self.lists.kinds.get(self.list_name, infos[self.list_name].category))

    def _find_entry(self, each: Addition, category: str) -> None:
        from bridge.cli.lists.session import DangerousEntries, own_domains
        from bridge.lists.danger import Dangers
        from bridge.mail.address import domain_of
        from bridge.matching import spelling

        try:
            each.entry = entry_of(each.mail, category, whole_domain=self.whole_domain)
            each.normal = spelling.normalise(category, each.entry)
            ours = own_domains(self.session.config) | set(map(domain_of, each.mail.envelope.addresses))
            if not self.force and (why := Dangers(ours).reason(category, each.entry)):
                each.danger = why
                raise DangerousEntries(f"{each.entry} is dangerous: {why}; add --force if this is intended")
        except BridgeError as exc:
            each.fail(exc)

    async def _find_existing(self, client: ListClient, tenant: str | None, category: str, mine: list[Addition]) -> None:
        """In any spelling: adding an entry again would overwrite its comment. Reads the list once."""
        from bridge.matching import spelling

        if not mine:
            return
        wanted = {each.normal: each for each in mine} | {each.entry: each for each in mine}
        found: set[str] = set()
        async with aclosing(client.entries(self.list_name, tenant)) as entries:
            async for listed in entries:
                try:
                    name = listed.entry if listed.entry in wanted else spelling.normalise(category, listed.entry)
                except ValueError:  # an entry that the service accepted but we cannot read
                    continue
                if name in wanted:
                    found.add(wanted[name].normal)
        for each in mine:
            each.is_there = each.normal in found

    def confirmed(self, choice: Choice) -> bool:
        """Asks for consent if filters selected the mails; a dry run only shows what would be added."""
        from bridge.cli.quarantine.exit_codes import EXIT_FAILED, EXIT_UNCONFIRMED

        if choice.dry_run:
            self._show_dry_run()
            return False
        if any(each.danger for each in self.additions):
            self._refuse_dangerous()
            return False
        if not choice.is_by_filter or choice.yes or not self.due:
            return True
        entries = list(dict.fromkeys(each.entry for each in self.due))
        for entry in entries[:_SHOWN]:
            say(f"+ {entry}", err=True)
        if len(entries) > _SHOWN:
            say(f"+ ... and {len(entries) - _SHOWN:,} more (--dry-run shows all)", err=True)
        what = f"add {_entries(len(entries))} from {counted(len(self.due), 'mail')} to {self.list_name}"
        agreed = consents(what, otherwise="nothing was changed")
        if not agreed:
            self.refusal = EXIT_UNCONFIRMED if agreed is None else EXIT_FAILED
        return not self.refusal

    def _refuse_dangerous(self) -> None:
        """Changes nothing, as `lists add` does: half of a campaign's entries would be harder to undo than none."""
        from bridge.cli.lists import dangers
        from bridge.cli.lists.session import EXIT_UNCONFIRMED

        for line in dangers.lines({each.entry: each.danger for each in self.additions if each.danger}):
            say(line, err=True)
        say("nothing was changed; add --force if this is intended", err=True)
        self.refusal = EXIT_UNCONFIRMED
        for each in self.due:
            each.problem = each.brief = "not added, because another entry is dangerous"
            each.code = EXIT_UNCONFIRMED

    def _show_dry_run(self) -> None:
        show_table([each.mail for each in self.additions])
        for line in dict.fromkeys(_shown_plan(each, self.list_name) for each in self.additions):
            say(line, err=True)
        say("nothing was changed", err=True)

    async def carry_out(self, client: ListClient) -> None:
        """Add each entry once. A failure does not stop the others."""
        from bridge.api.lists import ListEntry

        for each in self.due:
            if (each.tenant, each.normal) in self._seen:
                each.is_there = True
                continue
            moment = each.mail.time.strftime("%Y-%m-%d %H:%M UTC")
            default = f"quarantined mail {each.mail.id} of {moment}, by {self.session.by}"
            comment = default if self.comment is None else self.comment
            try:
                await client.add(self.list_name, [ListEntry(each.entry, comment)], each.tenant)
            except BridgeError as exc:
                each.fail(exc)
                continue
            each.added = True
            self._seen.add((each.tenant, each.normal))
            self.session.note(
                f"{self.what}ed sender", each.mail.id, list=self.list_name, tenant=each.tenant, entry=each.entry
            )

    def report(self, *, as_json: bool) -> None:
        """For a single mail, one line; with --json, one for each mail; otherwise one for each entry, shared or not."""
        if as_json:
            for each in self.additions:
                _say_row(each, self.list_name)
        if self.refusal:
            return
        if not as_json:
            for line, is_problem in self._lines().items():
                say(line, err=is_problem)
        if len(self.additions) > 1:
            failed = len({(each.tenant, each.entry or each.mail.id) for each in self.additions if each.problem})
            added = sum(each.added for each in self.additions)
            rest = f"; {failed:,} not added (see above)" if failed else ""
            say(
                f"{_entries(added)} from {counted(len(self.additions), 'mail')} added to {self.list_name}{rest}",
                err=True,
            )

    def _lines(self) -> dict[str, bool]:
        """What to print, and whether it is a problem."""
        if len(self.additions) == 1:
            return {f"{each.mail.id}: {_result(each, self.list_name)}": bool(each.problem) for each in self.additions}
        groups: dict[tuple[str | None, str], list[Addition]] = {}
        for each in self.additions:
            groups.setdefault((each.tenant, each.entry or each.problem), []).append(each)
        lines = {}
        for mails in groups.values():
            who = mails[0].mail.id if len(mails) == 1 else f"{len(mails):,} mails"
            lines[f"{who}: {_result(mails[0], self.list_name)}"] = bool(mails[0].problem)
        return lines


def _shown_plan(each: Addition, list_name: str) -> str:
    if each.problem:
        return f"{each.entry or each.mail.id}: would not be added: {each.problem}{each.step}"
    return f"{each.entry}: {'already on' if each.is_there else 'would be added to'} {list_name} of {_scope(each)}"


def _say_row(each: Addition, list_name: str) -> None:
    row = {"id": each.mail.id, "list": list_name, "tenant": each.tenant, "entry": each.entry or None}
    say_json({**row, "added": each.added, "problem": each.problem or None, "exit_code": each.code})


def _result(each: Addition, list_name: str) -> str:
    if each.problem:
        return f"not added to {list_name}: {each.problem}{each.step}"
    return f"{each.entry} {'added to' if each.added else 'already on'} {list_name} of {_scope(each)}"


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


def _scope(each: Addition) -> str:
    return f"tenant {each.tenant}" if each.tenant else "the deployment"


def entry_of(mail: MailRecord, category: str, *, whole_domain: bool) -> str:
    """The entry for the list. Raises NoEntry."""
    from bridge.mail.address import domain_of
    from bridge.matching import spelling
    from bridge.matching.match import DOMAIN, NETWORK, SENDER

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
    try:
        entry = (domain if category == DOMAIN else f"@{domain}") if whole_domain else spelling.one_sender(sender)
        spelling.normalise(category if category in (SENDER, DOMAIN) else SENDER, entry)
    except ValueError as exc:
        raise NoEntry(f"the sender cannot be listed: {exc}") from None
    return entry
