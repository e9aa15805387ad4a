"""Checks of the console and of digests: libraries, keys of links, URLs, templates, and who decides on requests."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from urllib.parse import urlsplit

from bridge.cli.check.finding import Finding
from bridge.cli.console.libraries import what_is_missing
from bridge.config.digests import UserPolicy
from bridge.config.model import Config
from bridge.daemon import directories, history_place
from bridge.errors import ConfigError
from bridge.runtime import root_as_owner

_WHAT = "digests"
_REASONS = ("spam", "phishing", "malware", "blocked", "other")


def check_console(conf: Config) -> Iterator[Finding]:
    """Nothing if there is no console. A warning, because mail does not need it."""
    if conf.console is not None:
        missing = what_is_missing()
        yield Finding("console", detail=str(conf.console.address), warning=missing and f"console: it needs {missing}")


def check_digests(conf: Config) -> Iterator[Finding]:
    """Nothing if there are no digests. The next hop, which gets them, is checked separately."""
    if not conf.digests.is_on:
        return
    if missing := what_is_missing():
        yield Finding(_WHAT, f"digests: they need {missing}")
        return
    yield from _files(conf)
    yield _urls(conf)
    yield from _requests(conf)
    yield from _machines(conf)


def _files(conf: Config) -> Iterator[Finding]:
    """The keys, and the files that the configuration names: aliases, and each tenant's templates (writes a sample)."""
    from bridge.cli.digest import parts
    from bridge.digests.message import DigestMaker
    from bridge.digests.sample import sample

    state = directories.state_directory(conf.state_directory)
    try:
        with root_as_owner.acting_for(state):
            directories.make_directory(state, "state_directory")
            keys = parts.keys(conf, state)
            parts.people(conf).read_aliases()
            maker = DigestMaker(parts.settings(conf), keys)
            for tenant in ("", *(entry.uid for entry in conf.digests.tenants)):
                sample(maker, tenant)
    except ConfigError as exc:
        yield Finding(_WHAT, str(exc))
        return
    except OSError as exc:
        yield Finding(_WHAT, f"state_directory: {state} {exc.strerror}; run this command as that user")
        return
    warning = f"every user of this machine can read {keys.path} and create links with it: run chmod 600 {keys.path}"
    is_open = keys.path.stat().st_mode & stat.S_IROTH
    yield Finding(_WHAT, detail=f"from {conf.digests.from_}", warning=warning if is_open else "")


def _urls(conf: Config) -> Finding:
    page, warning = conf.digests.page, ""
    if urlsplit(page.base).scheme != "https":
        where = f"they start with {page.base} and work only on this machine"
        warning = f"{where}: put a reverse proxy in front, and set digests.page.public_url"
    return Finding(f"{_WHAT}: links", detail=page.base, warning=warning)


def _requests(conf: Config) -> Iterator[Finding]:
    """Somebody must be able to decide on what users may only ask for."""
    policies = [conf.digests.users, *(entry.users for entry in conf.digests.tenants)]
    if not any(_may_ask(policy) for policy in policies):
        return
    what, console = f"{_WHAT}: requests", conf.console
    notify = conf.digests.notify or any(entry.notify for entry in conf.digests.tenants)
    if console is None:
        text = (
            "users may ask for a release, but there is no console in which a releaser can decide: add the `console` key"
        )
        yield Finding(what, warning=f"{text}, or change digests.users")
    elif not notify:
        yield Finding(what, note="no one is notified when a user asks for a release: set digests.notify")
    elif console.public_url is None:
        text = f"the mail to digests.notify has a link to {console.base}, which works only on this machine"
        yield Finding(what, note=f"{text}: set console.public_url")
    else:
        yield Finding(what, detail=f"{console.base}/requests")


def _may_ask(policy: UserPolicy) -> bool:
    return any(getattr(policy, reason) == "request" for reason in _REASONS)


def _machines(conf: Config) -> Iterator[Finding]:
    """Several machines share a database, but each has its own quarantine."""
    if history_place.has_server(conf) and conf.quarantine.s3 is None:
        text = (
            "each machine that shares this database tells users about its own quarantine, so they may get one digest "
            "from each: give each machine its own digests.page.public_url, or share the quarantine (quarantine.s3)"
        )
        yield Finding(f"{_WHAT}: several machines", note=text)
