"""What today's configuration says about the path of a mail: its listener, its lists, its next hop."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config
from bridge.history.entry import MailEntry
from bridge.history.story_context import Surroundings
from bridge.mail.address import comparable_domain, domain_of


def surroundings(conf: Config, entry: MailEntry, scores: Mapping[str, float]) -> Surroundings:
    """`scores`: the scores of the included service's tags."""
    listener = next((listener for listener in conf.listeners if listener.name == entry.kind.listener), None)
    hops = _next_hops(conf, entry)
    names = set(hops.values())
    one_hop, hops = (names.pop() if names else "", {}) if len(names) < 2 else ("", hops)
    if listener is None:
        tenant_domain = _tenant_domain(conf, entry)
        return Surroundings(next_hop=one_hop, next_hops=hops, tenant_domain=tenant_domain, scores=scores)
    lists = listener.lists if conf.lists is not None else None
    return Surroundings(
        protocol=listener.protocol,
        is_after_queue=PROFILES[listener.profile].is_after_queue,
        is_direct=PROFILES[listener.profile].client_is_sender,
        lists=tuple(lists.names) if lists is not None else (),
        next_hop=one_hop,
        next_hops=hops,
        tenant_domain=_tenant_domain(conf, entry),
        scores=scores,
    )


def _tenant_domain(conf: Config, entry: MailEntry) -> str:
    found = (tenant.recipient_domains[0] for tenant in conf.tenants if tenant.uid == entry.kind.tenant)
    return next(found, "")


def _next_hops(conf: Config, entry: MailEntry) -> dict[str, str]:
    """For each recipient, the one that this mail must have taken; "" if there are several to choose from."""
    if conf.relay is None:
        return {}
    places = [(route.recipient_domains, route.hops) for route in conf.relay.routes]
    places += [(tenant.recipient_domains, tenant.relay.hops) for tenant in conf.tenants if tenant.relay is not None]
    by_domain = dict.fromkeys(map(domain_of, entry.recipients or ("",)), conf.relay.hops)
    for domains, own in places:  # a tenant's come last: they take precedence
        by_domain |= dict.fromkeys(by_domain.keys() & set(map(comparable_domain, domains)), own)
    found = {address: by_domain[domain_of(address)] for address in entry.recipients or ("",)}
    return {address: str(hops[0]) if len(hops) == 1 else "" for address, hops in found.items()}
