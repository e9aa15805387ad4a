"""What today's configuration says about the path of a mail: its listener, its lists, its next hop."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config
from bridge.history.entry import MailEntry
from bridge.history.story import Surroundings
from bridge.mail.address import comparable_domain, domain_of


def surroundings(conf: Config, entry: MailEntry, scores: Mapping[str, float]) -> Surroundings:
    """`scores`: the scores of the included service's tags."""
    listener = next((listener for listener in conf.listeners if listener.name == entry.kind.listener), None)
    if listener is None:
        return Surroundings(next_hop=_next_hop(conf, entry), tenant_domain=_tenant_domain(conf, entry), scores=scores)
    lists = listener.lists if conf.lists is not None else None
    return Surroundings(
        protocol=listener.protocol,
        is_after_queue=PROFILES[listener.profile].is_after_queue,
        is_direct=PROFILES[listener.profile].client_is_sender,
        lists=tuple(lists.names) if lists is not None else (),
        next_hop=_next_hop(conf, entry),
        tenant_domain=_tenant_domain(conf, entry),
        scores=scores,
    )


def _tenant_domain(conf: Config, entry: MailEntry) -> str:
    found = (tenant.recipient_domains[0] for tenant in conf.tenants if tenant.uid == entry.kind.tenant)
    return next(found, "")


def _next_hop(conf: Config, entry: MailEntry) -> str:
    """The one that this mail must have taken; "" if there are several."""
    if conf.relay is None:
        return ""
    domain = domain_of(entry.recipients[0]) if entry.recipients else ""
    places = [(route.recipient_domains, route.hops) for route in conf.relay.routes]
    places += [(tenant.recipient_domains, tenant.relay.hops) for tenant in conf.tenants if tenant.relay is not None]
    hops = conf.relay.hops
    for domains, own in places:  # a tenant's come last: they take precedence
        if domain in map(comparable_domain, domains):
            hops = own
    return str(hops[0]) if len(hops) == 1 else ""
