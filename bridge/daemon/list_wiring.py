"""From the configuration to block and allow lists, as `wiring` does for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bridge.config.listener import Listener
from bridge.config.lists import Lists
from bridge.config.model import Config
from bridge.daemon import directories, named_files
from bridge.filter.envelope_lists import EnvelopeLists, EnvelopeListsSettings
from bridge.lists.client import ListSettings
from bridge.lists.copies import Copies, Wanted
from bridge.lists.fetch import Job
from bridge.lists.retry import RetrySettings


def wanted_lists(conf: Config) -> list[Wanted]:
    """Every list that a listener names, for the deployment and for every tenant."""
    if conf.lists is None:
        return []
    kinds = conf.lists.kinds
    names = dict.fromkeys(name for listener in conf.listeners if listener.lists for name in listener.lists.names)
    tenants = dict.fromkeys([None, conf.scanner.tenant_uid, *(tenant.uid for tenant in conf.tenants)])
    return [Wanted(name, tenant, kinds.get(name)) for name in names for tenant in tenants]


def list_settings(conf: Config, patience_s: float = 60.0) -> ListSettings:
    """Raises ConfigError."""
    assert conf.lists is not None
    return settings_of(conf.lists, conf.directory, patience_s)


def settings_of(lists: Lists, directory: Path, patience_s: float) -> ListSettings:
    """Relative file names refer to this directory. Raises ConfigError."""
    key_file = named_files.locate(lists.api_key_file, directory)
    key = named_files.read_secret(key_file, "lists.api_key_file")
    encrypted = any(url.startswith("https:") for url in (lists.url, *lists.other_urls))
    tls = named_files.client_tls(lists.ca_file, directory, "lists.ca_file") if encrypted else None
    retry = RetrySettings(patience_s=patience_s)
    return ListSettings(lists.url, key, tls, retry=retry, key_file=str(key_file), other_urls=tuple(lists.other_urls))


def list_job(conf: Config, directory: Path, due: Iterable[Wanted]) -> Job:
    """For `bridge.lists.fetch`. The API key is read each time: it may have been replaced."""
    assert conf.lists is not None
    ca_file = named_files.locate(conf.lists.ca_file, conf.directory) if conf.lists.ca_file else None
    made = directories.make_directory(directory, "state_directory")
    return Job(list_settings(conf), ca_file, made, tuple(wanted_lists(conf)), tuple(due))


def envelope_lists(conf: Config, listener: Listener, copies: Copies) -> EnvelopeLists | None:
    """The lists that this listener enforces; None if it names none."""
    lists = listener.lists
    if lists is None or conf.lists is None or not lists.names:
        return None
    settings = EnvelopeListsSettings(
        block=tuple(lists.block),
        block_recipients=tuple(lists.block_recipients),
        skip_scan=tuple(lists.skip_scan),
        allow_wins=lists.allow_wins,
        needs_copies=conf.lists.without_copy == "tempfail",
        text=lists.text,
    )
    return EnvelopeLists(settings, copies.get)
