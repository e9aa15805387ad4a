"""`scanbridge service check`: what the service's configuration refers to, without starting the service.

Nothing is created or changed: no database, no socket file.
"""

from __future__ import annotations

import asyncio
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bridge.api.scanning import SUBMIT_PATH
from bridge.cli import service_pages
from bridge.cli.check.finding import Finding
from bridge.cli.check.local import certificate_end
from bridge.cli.check.queue import check_queue
from bridge.cli.terminal import hide_log
from bridge.daemon import certificate_expiry
from bridge.daemon.service_process import located
from bridge.daemon.sockets import open_listening
from bridge.errors import BridgeError, ConfigError
from bridge.runtime import root_as_owner
from bridge.runtime.endpoints import Endpoint
from bridge.service.abby_settings import StaticApiToken
from bridge.service.advice import advice
from bridge.service.analysis.connections import Opening
from bridge.service.analysis.phishing_judgement import load_model
from bridge.service.config_files import Loaded
from bridge.service.core_nodes import CoreNodes
from bridge.service.engine_settings import endpoint_of
from bridge.service.server import tls_context
from bridge.service.settings import Timings
from bridge.service.store import DATABASE_ID, Store
from bridge.service.token_files import token_path

CONNECT_TIMEOUT_S = 5.0


def check_service(loaded: Loaded) -> list[Finding]:
    hide_log()  # what a running service logs is a finding here
    findings = [Finding("configuration", detail=", ".join(str(path) for path in loaded.files))]
    findings += [Finding("configuration", warning=text) for text in advice(loaded)]
    findings += _secrets(loaded)
    findings += _certificate(loaded)
    findings.append(_address(loaded))
    findings.append(_database(loaded))
    findings += _model(loaded)
    findings += asyncio.run(_others(loaded))
    return findings


def lines_of(findings: list[Finding], verbose: bool) -> Iterator[str]:
    wrong = sorted((finding for finding in findings if finding.text), key=lambda finding: not finding.problem)
    yield from map(str, findings if verbose else wrong)
    if not wrong and not verbose:
        yield f"OK: {len(findings)} checks passed"
    elif wrong:
        problems = sum(bool(finding.problem) for finding in wrong)
        yield f"checked: {findings[0].detail}; problems: {problems}, warnings: {len(wrong) - problems}"


def _model(loaded: Loaded) -> Iterator[Finding]:
    """Only a model of the operator's own: the shipped one is part of the program."""
    settings = loaded.config.analyzers.phishing
    if settings is None or not settings.model_file:
        return
    problem = ""
    try:
        load_model(settings)
    except ConfigError as exc:
        problem = f"{loaded.at('analyzers', 'phishing', 'model_file')}: {exc}"
    yield Finding("phishing model", detail=settings.model_path, problem=problem)


def _secrets(loaded: Loaded) -> Iterator[Finding]:
    abby = loaded.config.abby
    for i, token in enumerate(abby.staticApiTokens):
        where = loaded.at("abby", "staticApiTokens", i)
        for path in _secret_files(loaded, token):
            open_to_all = path.stat().st_mode & stat.S_IROTH
            text = f"{where}: every user of this machine can read the token; run chmod 600 {path}"
            yield Finding(f"token of {token.name}", detail=str(path), warning=text if open_to_all else "")


def _secret_files(loaded: Loaded, token: StaticApiToken) -> list[Path]:
    if token.files:
        return [token_path(name, loaded.config.abby.directory) for name in token.files]
    return [path for path in loaded.files if loaded.at("abby", "staticApiTokens").startswith(f"{path}:")]


def _certificate(loaded: Loaded) -> Iterator[Finding]:
    config = loaded.config
    if config.tls is None:
        return
    what, where = "tls", loaded.at("tls")
    path = config.directory / config.tls.cert_file
    try:
        tls_context(config.tls, config.directory)
    except BridgeError as exc:
        yield Finding(what, located(loaded, exc))
        return
    if not certificate_expiry.is_chain(path):
        order = "the certificate itself must come first, then its issuer's"
        yield Finding(what, f"{where}: {path} is not a chain: {order}")
    renew = f"renew {path}, then reload the service (SIGHUP)"
    found = certificate_end(what, certificate_expiry.earliest_expiry(path), renew)
    prefix = f"{where}: "
    yield Finding(
        what, found.problem and prefix + found.problem, found.detail, found.warning and prefix + found.warning
    )


def _address(loaded: Loaded) -> Finding:
    listen = loaded.config.listen
    running = _database_of_service(listen, tls=loaded.config.tls is not None)
    if running is not None:
        return _in_use(loaded, running)
    try:
        for sock in open_listening(listen):
            sock.close()
    except BridgeError as exc:
        return Finding("listen", f"{loaded.at('listen')}: {exc}")
    if listen.path:
        Path(listen.path).unlink(missing_ok=True)
    return Finding("listen", detail=str(listen))


def _in_use(loaded: Loaded, running: str) -> Finding:
    """A scanning service answers at our address: is it the one of this configuration? `running`: its database."""
    listen, where = loaded.config.listen, loaded.at("listen")
    url = loaded.config.database_url
    if running and Store(url).identity() == running:
        return Finding("listen", detail=f"{listen}, in use by a running service with this database")
    if running and _can_be_identified(url):
        text = f"another scanning service, with another database, uses {listen}"
        return Finding("listen", f"{where}: {text}; stop it, or set listen to another port")
    text = f"a scanning service uses {listen}; unless it runs with this configuration, startup will fail"
    return Finding("listen", warning=f"{where}: {text}")


def _can_be_identified(url: str) -> bool:
    """False for a database in memory, and for a file that we are not allowed to see."""
    if ":memory:" in url:
        return False
    try:
        Path(url.partition(":///")[2]).stat()
    except PermissionError:
        return False
    except OSError:  # it does not exist yet
        pass
    return True


def _database_of_service(listen: Endpoint, *, tls: bool) -> str | None:
    """What the scanning service that answers there says about its database; None if no scanning service does."""
    page = service_pages.get(listen, "/openapi.json", tls=tls)
    if page is None or page.status != 200 or SUBMIT_PATH.encode() not in page.content:
        return None  # only a scanning service has this page
    live = service_pages.get(listen, "/livez", tls=tls)
    return live.headers.get(DATABASE_ID, "") if live is not None else None


def _database(loaded: Loaded) -> Finding:
    url, where = loaded.config.database_url, loaded.at("database")
    if not url.startswith("sqlite"):
        try:
            Store(url).probe()
        except BridgeError as exc:
            return Finding("database", f"{where}: {exc}")
        return Finding("database", detail="PostgreSQL")
    path = Path(url.partition(":///")[2])
    if not str(path) or str(path) == ":memory:":
        return Finding("database", detail="in memory", warning=f"{where}: lists and keys are lost at every restart")
    existing = next((place for place in (path, *path.parents) if place.exists()), Path("/"))
    try:
        with (
            root_as_owner.acting_for(path.parent),
            existing.open("r+b") if existing == path else tempfile.TemporaryFile(dir=existing),
        ):
            pass
    except OSError as exc:
        return Finding("database", f"{where}: {existing} cannot be written to: {exc.strerror}", str(path))
    is_named = loaded.config.database.get_secret_value().startswith("sqlite:////")
    if is_named and not path.exists():  # after a typo, the service would start with an empty database
        note = f"{where}: {path} does not exist; the service will create it, without lists or API keys"
        return Finding("database", detail=str(path), note=note)
    return Finding("database", detail=str(path))


async def _others(loaded: Loaded) -> list[Finding]:
    """Everything that is reached over the network, or starts processes."""
    return [*await _core(loaded), *await check_queue(loaded), *await _analyzers(loaded)]


async def _core(loaded: Loaded) -> list[Finding]:
    config = loaded.config
    if not config.abby.serviceProviders.core.hosts:
        return []
    try:
        nodes = CoreNodes(config, Timings(), Store(config.database_url).identity)
    except ConfigError as exc:
        return [Finding("core", located(loaded, exc))]
    where = loaded.at("abby", "serviceProviders", "core", "hosts")
    try:
        await nodes.status()
    finally:
        await nodes.stop()
    return [
        Finding(
            f"core {node.url}",
            "" if node.alive else f"{where}: {node.url}: {'; '.join(sorted(node.reasons)) or 'no answer'}",
        )
        for node in nodes.nodes
    ]


async def _analyzers(loaded: Loaded) -> list[Finding]:
    from bridge.service.analysis.engines import engines_of
    from bridge.service.analysis.icap import opening_of

    analyzers = loaded.config.analyzers
    try:
        engines_of(analyzers)
    except ConfigError as exc:
        return [Finding("analyzers", located(loaded, exc))]
    openings = {"icap": opening_of(analyzers.icap)} if analyzers.icap is not None else {}
    places: list[tuple[str, Endpoint, tuple[str, ...]]] = []
    if analyzers.clamav is not None:
        places.append(("clamav", analyzers.clamav.address, ("clamav", "address")))
    if analyzers.rspamd is not None:
        places.append(("rspamd", endpoint_of(analyzers.rspamd.url), ("rspamd", "url")))
    if analyzers.icap is not None:
        places.append(("icap", analyzers.icap.address, ("icap", "url")))
    if analyzers.spamassassin is not None:
        places.append(("spamassassin", analyzers.spamassassin.address, ("spamassassin", "address")))
    places += [(name, endpoint_of(hook.url), ("hooks", name, "url")) for name, hook in analyzers.hooks.items()]
    return [
        *_rules(loaded),
        *[await _reach(loaded, name, address, key, openings.get(name)) for name, address, key in places],
    ]


def _rules(loaded: Loaded) -> Iterator[Finding]:
    if (yara := loaded.config.analyzers.yara) is None:
        return
    from bridge.service.analysis.yara_rules import compiled_setup

    try:
        compiled_setup(yara)
    except ConfigError as exc:
        yield from (Finding("yara", located(loaded, ConfigError(line))) for line in str(exc).splitlines())
    else:
        yield Finding("yara", detail=", ".join(yara.rules))


async def _reach(
    loaded: Loaded, name: str, address: Endpoint, key: tuple[str, ...], opening: Opening | None = None
) -> Finding:
    from bridge.runtime.host_addresses import NameLookup
    from bridge.runtime.reason import reason
    from bridge.service.analysis.connections import as_it_is, connect

    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await connect(address, NameLookup(), CONNECT_TIMEOUT_S, opening or as_it_is)
    except OSError as exc:  # TimeoutError is one
        why = "no answer" if isinstance(exc, TimeoutError) else reason(exc) or type(exc).__name__
        text = f"{loaded.at('analyzers', *key)}: {name} cannot be reached at {address}: {why}; start it"
        return Finding(name, text)
    connection.close()
    return Finding(name, detail=str(address))
