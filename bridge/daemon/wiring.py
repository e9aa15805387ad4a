"""From configuration to components: every settings object is filled in here and in the files named `*_wiring`.

The components below `daemon/` know their own settings and nothing about the configuration. A key that is
forgotten here has no effect, whatever the documentation says.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.config.listener import Listener
from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config, Tenant
from bridge.config.model import LateDecisions as LateConfig
from bridge.config.policy import PolicyEntry
from bridge.config.relay import Relay as RelayConfig
from bridge.daemon import directories, history_place, named_files
from bridge.daemon.dialects import dialect
from bridge.errors import ConfigError
from bridge.filter import rule_names
from bridge.filter.adaptive_limit import AdaptiveLimit
from bridge.filter.admission import AdmissionSettings
from bridge.filter.headers import HeaderEditor
from bridge.filter.late.decisions import LateDecisions, LateScanEnd, LateSettings
from bridge.filter.late.store import LateStore, MemoryStore, SqlStore
from bridge.filter.policy import Case, Policy, Rule
from bridge.filter.settings import FilterSettings
from bridge.history.recorder import Recorder, RecorderSettings
from bridge.history.store import HistoryStore
from bridge.intake.milter.context import MilterSettings
from bridge.intake.one_tenant import RecipientGroups
from bridge.intake.smtp.client_header import ClientHeader
from bridge.intake.smtp.server import SmtpSettings
from bridge.intake.smtp.session_settings import SessionLimits
from bridge.mail.action import Action
from bridge.mail.address import comparable_domain
from bridge.observe.redaction import Redaction
from bridge.quarantine.quarantine import QuarantineSettings
from bridge.quarantine.release_token import ReleaseTokens
from bridge.quarantine.s3_store import S3Settings
from bridge.quarantine.used_tokens import UsedTokens
from bridge.relay.failover import Failover
from bridge.relay.maildir import Maildir
from bridge.relay.relay import OnLateAnswer, Relay, RelaySettings, SmtpRelay
from bridge.relay.routes import Routes
from bridge.runtime import durable_files
from bridge.runtime.database import Database
from bridge.runtime.endpoints import Endpoint, NextHop
from bridge.scanner.client import Scanner, ScannerSettings
from bridge.scanner.discovery import DiscoverySettings

if TYPE_CHECKING:
    from bridge.observe.tracing import Tracing

_STOP_GRACE_S = 20.0
_RELEASE_KEY = "quarantine.release_key_file"


def hostname(conf: Config) -> str:
    """Our name. `gethostname`, because `getfqdn` may wait for DNS."""
    return conf.hostname or socket.gethostname()


def header_editor(conf: Config) -> HeaderEditor:
    headers = conf.headers
    return HeaderEditor(headers.prefix, hostname(conf), headers.received, headers.authserv_id)


def longest_stop_s(conf: Config) -> float:
    """The drain time and what may follow it: late answers, workers that have to be killed, the service."""
    return conf.drain_timeout + _STOP_GRACE_S


def scanner_settings(conf: Config, token: str) -> ScannerSettings:
    scanner = conf.scanner
    encrypted = any(url.startswith("https:") for url in scanner.urls)
    return ScannerSettings(
        urls=tuple(scanner.urls),
        token=token,
        tls=named_files.scanner_tls(scanner, conf.directory) if encrypted else None,
        connect_timeout_s=scanner.connect_timeout,
        status_interval_s=scanner.status_interval,
        resubmit=scanner.resubmit,
        max_request_bytes=MAX_MESSAGE_BYTES if scanner.size_limit_counts == "request" else None,
        tenant_uid=scanner.tenant_uid,
        dialect=dialect(conf),
        discovery=_discovery(conf),
    )


def _discovery(conf: Config) -> DiscoverySettings | None:
    given = conf.scanner.discovery
    if given is None:
        return None
    servers = tuple((server.host, server.port) for server in given.nameservers)
    return DiscoverySettings(given.records, servers, given.min_interval, given.max_interval)


def scanner(conf: Config) -> Scanner:
    return Scanner(scanner_settings(conf, token(conf)))


def token(conf: Config) -> str:
    """The scanner's token; empty if there is none, which only rspamd allows."""
    if conf.scanner.token_file is None:
        return ""
    return named_files.read_secret(named_files.locate(conf.scanner.token_file, conf.directory), "scanner.token_file")


def admission_settings(conf: Config) -> AdmissionSettings:
    """This bridge's share of the limits."""
    admission = conf.admission
    limit, threshold = map(admission.share_of, (admission.max_in_processing, admission.throttle_threshold))
    return AdmissionSettings(limit, threshold, admission.throttle_max_delay)


def spool_settings(conf: Config) -> tuple[int, int, str | None]:
    """Limit, memory per mail, directory."""
    return conf.admission.max_bytes_in_processing, conf.spool.memory_per_mail, conf.spool.directory


def worker_count(conf: Config) -> int:
    """`auto` is one per processor that this process may use."""
    return len(os.sched_getaffinity(0)) if conf.workers == "auto" else conf.workers


def service_address(conf: Config) -> Endpoint:
    """Where the embedded service listens: the first scanner URL."""
    parts = urlsplit(conf.scanner.urls[0])
    return Endpoint(parts.hostname or "127.0.0.1", parts.port or 80)


def certificate_files(conf: Config) -> list[tuple[str, str, Path]]:
    """The certificates we present: role, name, file."""
    named = [
        ("listener", listener.name, listener.tls.cert_file) for listener in conf.listeners if listener.tls is not None
    ]
    if conf.scanner.client_cert_file:
        named.append(("scanner_client", "scanner", conf.scanner.client_cert_file))
    return [(role, name, named_files.locate(file, conf.directory)) for role, name, file in named]


# Next hops

Wrap = Callable[[str, Relay], Relay]
Make = Callable[[Config, RelayConfig, NextHop], Relay]


def _unwrapped(name: str, relay: Relay) -> Relay:
    return relay


def relay(conf: Config, wrap: Wrap = _unwrapped, make: Make | None = None) -> Relay | None:
    """`wrap` is called with the name and the relay of every next hop, and returns the relay to use instead.

    `make` builds the relay of one next hop, instead of `next_hop`.
    """
    if conf.relay is None:
        return None
    default = tuple(conf.relay.hops)
    by_domain = hops_by_domain(conf)
    relays = {
        hops: _failover(conf, conf.relay, hops, wrap, make or next_hop)
        for hops in dict.fromkeys((default, *by_domain.values()))
    }
    if len(relays) == 1:
        return relays[default]
    return Routes({domain: relays[hops] for domain, hops in by_domain.items()}, relays[default])


def hops_by_domain(conf: Config) -> dict[str, tuple[NextHop, ...]]:
    """The next hops of recipient domains that have their own; a tenant's take precedence over a route's."""
    found: dict[str, tuple[NextHop, ...]] = {}
    for route in conf.relay.routes if conf.relay else ():
        found |= {comparable_domain(domain): tuple(route.hops) for domain in route.recipient_domains}
    for tenant in conf.tenants:
        if tenant.relay is not None:
            found |= {comparable_domain(domain): tuple(tenant.relay.hops) for domain in tenant.recipient_domains}
    return found


def _failover(conf: Config, settings: RelayConfig, hops: tuple[NextHop, ...], wrap: Wrap, make: Make) -> Relay:
    relays = [(str(hop), wrap(str(hop), make(conf, settings, hop))) for hop in hops]
    return relays[0][1] if len(relays) == 1 else Failover(relays)


def next_hop(
    conf: Config, settings: RelayConfig, hop: NextHop, on_late_answer: OnLateAnswer = lambda *_: None
) -> Relay:
    if hop.protocol == "maildir":
        return Maildir(directories.make_shared_directory(Path(hop.address.path), "relay.next_hop"), hostname(conf))
    is_verified = settings.tls == "required" or settings.ca_file
    tls_context = named_files.client_tls(settings.ca_file, conf.directory, "relay.ca_file") if is_verified else None
    return SmtpRelay(
        RelaySettings(
            next_hop=hop,
            hostname=hostname(conf),
            tls=settings.tls,
            tls_context=tls_context,
            connect_timeout_s=settings.connect_timeout,
            timeout_s=settings.timeout,
            max_idle_s=settings.max_idle,
            max_connections=settings.max_connections,
        ),
        on_late_answer,
    )


# Stored state


def state_database(conf: Config, state: Path, default: str) -> Database:
    """The configured database, else the file `default` in the state directory. Raises ConfigError."""
    url = conf.state_database or f"sqlite:///{default}"
    if url.startswith("sqlite:"):
        return Database.file(state / url.removeprefix("sqlite:///"))
    return history_place.server(conf)


def quarantine_place(conf: Config, state: Path) -> QuarantineSettings:
    """Raises ConfigError."""
    directory = directories.make_directory(state / conf.quarantine.directory, "quarantine.directory")
    index = state_database(conf, state, "state.sqlite")
    return QuarantineSettings(
        directory=directory,
        index=index,
        max_size=conf.quarantine.max_size,
        tenant_by_domain=tenants_by_domain(conf),
        default_tenant=conf.scanner.tenant_uid,
        s3=bucket_settings(conf),
        owner="" if index.is_sqlite else f"{hostname(conf)}:{directory}",
    )


def bucket_settings(conf: Config) -> S3Settings | None:
    s3 = conf.quarantine.s3
    if s3 is None:
        return None
    if find_spec("obstore") is None:
        raise ConfigError("quarantine.s3: the package for object storage is missing: pip install 'scanbridge[s3]'")
    key = "quarantine.s3."
    return S3Settings(
        bucket=s3.bucket,
        endpoint=s3.endpoint,
        region=s3.region,
        prefix=s3.prefix,
        access_key=history_place.read_secret(conf, s3.access_key_file, key + "access_key_file"),
        secret_key=history_place.read_secret(conf, s3.secret_key_file, key + "secret_key_file"),
        allow_http=(s3.endpoint or "").startswith("http:"),
        ca=named_files.read_certificates(s3.ca_file, conf.directory, key + "ca_file") if s3.ca_file else None,
    )


def release_tokens(conf: Config, state: Path) -> ReleaseTokens:
    """Raises ConfigError."""
    path = release_key(conf, state)
    if not conf.quarantine.release_key_file:
        directories.make_directory(state, "state_directory")
        named_files.make_secret(path, _RELEASE_KEY)
        durable_files.give_to_owner(path)
    return release_tokens_of(conf, path)


def release_key(conf: Config, state: Path) -> Path:
    """The file with the key; without a configured one, `release_tokens` creates it."""
    if conf.quarantine.release_key_file:
        return named_files.locate(conf.quarantine.release_key_file, conf.directory)
    return state / "release-key"


def release_tokens_of(conf: Config, key: Path) -> ReleaseTokens:
    """Raises ConfigError."""
    read = named_files.read_secret if conf.quarantine.release_key_file else named_files.read_own_secret
    return ReleaseTokens(read(key, _RELEASE_KEY), conf.headers.prefix)


def used_tokens(conf: Config, state: Path) -> UsedTokens:
    """Raises ConfigError."""
    return UsedTokens(used_tokens_place(conf, state))


def used_tokens_place(conf: Config, state: Path) -> Database:
    """Raises ConfigError."""
    place = state_database(conf, state, "")
    return Database.file(state / "released.sqlite") if place.is_sqlite else place


def history(conf: Config, state: Path) -> HistoryStore:
    """Where the history is kept. Raises ConfigError."""
    return history_place.history(conf, state)


def recorder(
    conf: Config, state: Path, is_keeper: Callable[[], bool], count: Callable[[str, int], None]
) -> Recorder | None:
    """Not started yet; None if no history is kept. Raises ConfigError."""
    if not conf.history.enabled:
        return None
    settings = RecorderSettings(conf.history.retention, conf.history.max_size, redaction(conf), is_keeper)
    return Recorder(history(conf, state), settings, count)


def redaction(conf: Config) -> Redaction:
    """How addresses appear in the log. Raises ConfigError."""
    return history_place.redaction(conf)


# The filter and what it uses


def filter_settings(conf: Config, listener: Listener) -> FilterSettings:
    return FilterSettings(
        deadline_s=listener.deadline,
        policy=_policy(conf, listener),
        tenant_policies={tenant.uid: _policy(conf, listener, tenant) for tenant in conf.tenants},
        tenant_by_domain=tenants_by_domain(conf),
        default_tenant=conf.scanner.tenant_uid,
        max_received=conf.limits.max_received,
        refuse_ambiguous_mime=listener.refuse_ambiguous_mime,
        keeps_refused=_keeps_refused(conf, listener),
        shadow_percent=100.0 if listener.mode == "shadow" else listener.shadow_percent,
    )


def _keeps_refused(conf: Config, listener: Listener) -> bool:
    """Whether content that we refuse is quarantined: after a queue, unless the operator wants bounces."""
    rejects = conf.policy_for(listener).entry_for(Case.BOUNCE.value).action is Action.REJECT
    return PROFILES[listener.profile].is_after_queue and not rejects


def tracing(conf: Config) -> Tracing | None:
    """None when tracing is off; then its libraries are not loaded either."""
    if conf.tracing is None:
        return None
    try:
        from bridge.observe.tracing import Tracing
    except ImportError as exc:
        missing = "the OpenTelemetry packages are missing: pip install 'scanbridge[otel]'"
        raise ConfigError(f"tracing: {missing} ({exc})") from exc
    return Tracing(conf.tracing.endpoint, conf.tracing.sample_percent, hostname(conf))


def effective_late_decisions(conf: Config) -> LateConfig:
    """`database` is `sqlite` if there is no `state_database`."""
    late = conf.late_decisions
    is_file = late.store == "database" and conf.state_database is None
    return late.model_copy(update={"store": "sqlite"}) if is_file else late


def late_decisions(conf: Config, state: Path, on_end: Callable[[LateScanEnd], None]) -> LateDecisions | None:
    """Not started yet; None when late decisions are off."""
    late = effective_late_decisions(conf)
    if late.store == "off":
        return None
    settings = LateSettings(late.max_age, late.max_entries, late.scan_limit)
    return LateDecisions(settings, _late_store(late.store, conf, state), on_end)


def _late_store(store: str, conf: Config, state: Path) -> LateStore:
    if store == "memory":
        return MemoryStore()
    if store == "sqlite":
        return SqlStore.in_file(state / "late.sqlite")
    return SqlStore(state_database(conf, state, ""), state / "late-stamp")


def limit(conf: Config) -> AdaptiveLimit | None:
    admission = conf.admission
    return AdaptiveLimit(admission.share_of(admission.max_in_processing)) if admission.limit == "adaptive" else None


def _policy(conf: Config, listener: Listener, tenant: Tenant | None = None) -> Policy:
    policy = conf.policy_for(listener, tenant)
    return {case: _rule(policy.entry_for(case.value), _rule_name(conf, listener, tenant, case)) for case in Case}


def _rule(entry: PolicyEntry, name: str) -> Rule:
    return Rule(entry.action, entry.code, entry.text, entry.keep_copy, name)


def _rule_name(conf: Config, listener: Listener, tenant: Tenant | None, case: Case) -> str:
    """Where the entry of this case is set; the most specific place comes first."""
    key = conf.policy_for(listener, tenant).key_for(case.value)
    if tenant is not None and key in tenant.policy.model_fields_set:
        return rule_names.of_tenant(tenant.uid, key)
    if key in listener.policy.model_fields_set:
        return rule_names.of_listener(listener.name, key)
    if key not in conf.policy.model_fields_set and key in PROFILES[listener.profile].policy:
        return rule_names.of_profile(listener.profile, key)
    return rule_names.of_policy(key)


def tenants_by_domain(conf: Config) -> dict[str, str]:
    return {comparable_domain(domain): tenant.uid for tenant in conf.tenants for domain in tenant.recipient_domains}


# Listeners


def tenant_groups(conf: Config) -> RecipientGroups:
    """Which recipients may share a mail, where the mail server passes it on itself: those with the same tenant."""
    groups = {domain: (tenant, 0) for domain, tenant in tenants_by_domain(conf).items()}
    return RecipientGroups(groups, (conf.scanner.tenant_uid, 0))


def _route_groups(conf: Config) -> RecipientGroups:
    """Which recipients may share a mail that we pass on: those with the same tenant and the same next hops."""
    tenants, hops = tenants_by_domain(conf), hops_by_domain(conf)
    default = tuple(conf.relay.hops) if conf.relay else ()
    numbers = {hops: number for number, hops in enumerate(dict.fromkeys((default, *hops.values())))}
    by_domain = {
        domain: (tenants.get(domain, conf.scanner.tenant_uid), numbers[hops.get(domain, default)])
        for domain in {**tenants, **hops}
    }
    return RecipientGroups(by_domain, (conf.scanner.tenant_uid, 0))


def smtp_settings(conf: Config, listener: Listener) -> SmtpSettings:
    assert listener.protocol in ("smtp", "lmtp")
    limits = conf.limits
    return SmtpSettings(
        name=listener.name,
        hostname=hostname(conf),
        protocol=listener.protocol,
        trusted=tuple(ipaddress.ip_network(network) for network in listener.trusted_clients),
        tls=named_files.listener_tls(listener.tls, conf.directory, f"listeners.{listener.name}.tls")
        if listener.tls
        else None,
        tls_required=listener.tls.required if listener.tls else False,
        proxy_protocol=listener.proxy_protocol,
        client_header=ClientHeader(listener.client_header) if listener.client_header else None,
        client_is_sender=PROFILES[listener.profile].client_is_sender,
        max_message_size=limits.max_message_size,
        max_connections=limits.max_connections,
        max_connections_per_client=limits.max_connections_per_client,
        session=SessionLimits(
            command_timeout_s=limits.command_timeout,
            data_timeout_s=limits.data_timeout,
            min_data_rate=limits.min_data_rate,
            max_recipients=limits.max_recipients,
            max_errors=limits.max_errors,
            max_mails=limits.max_mails_per_connection,
            mail_timeout_s=limits.mail_timeout,
            keeps_bare=_keeps_refused(conf, listener),
            shortens_lines=_keeps_refused(conf, listener),
        ),
        hidden=frozenset(listener.hide_extensions),
        groups=_route_groups(conf),
    )


def milter_settings(conf: Config, listener: Listener) -> MilterSettings:
    if listener.tls is not None or listener.proxy_protocol:
        raise ConfigError(f"{listener.name}: a milter listener cannot have tls or proxy_protocol")
    return MilterSettings(
        name=listener.name,
        trusted=tuple(ipaddress.ip_network(network) for network in listener.trusted_clients),
        max_connections=conf.limits.max_connections,
        max_message_size=conf.limits.max_message_size,
        max_recipients=conf.limits.max_recipients,
        groups=tenant_groups(conf),
        body_is_whole=PROFILES[listener.profile].body_is_whole,
    )
