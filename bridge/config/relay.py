"""Where mail is relayed to: one next hop or several, for all mail, for a tenant, or for some domains.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from bridge.config.fields import CA_FILE, DomainField, NextHopField, Section, domain_places, refuse_same_domain
from bridge.runtime.endpoints import NextHop
from bridge.runtime.units import Duration


def _either_hop(schema: dict[str, Any]) -> None:
    """For editors: either `next_hop` or `next_hops` is required."""
    schema["required"].remove("next_hop")
    schema["anyOf"] = [{"required": ["next_hop"]}, {"required": ["next_hops"]}]


class NextHops(BaseModel):
    model_config = ConfigDict(json_schema_extra=_either_hop)

    next_hop: NextHopField = Field(
        description="Where to relay mail: smtp://host:port, lmtp://host:port, lmtp+unix:/path or maildir:/path."
    )
    next_hops: list[NextHopField] = Field(
        [],
        description="Several next hops, instead of `next_hop`. The first one that accepts a connection receives the "
        "mail.",
    )

    @model_validator(mode="before")
    @classmethod
    def _first(cls, value: Any) -> Any:
        """Set `next_hop` to the first of several, so that it is always set."""
        if isinstance(value, dict) and isinstance(value.get("next_hops"), list) and value["next_hops"]:
            return {"next_hop": value["next_hops"][0], **value}
        return value

    @field_validator("next_hops")
    @classmethod
    def _agree(cls, hops: list[NextHop], info: ValidationInfo) -> list[NextHop]:
        if hops and info.data.get("next_hop", hops[0]) != hops[0]:
            raise ValueError("set next_hop or next_hops, not both")
        if len(set(hops)) != len(hops):
            raise ValueError("a next hop appears twice")
        return hops

    @property
    def hops(self) -> list[NextHop]:
        """All next hops, in order of preference."""
        return self.next_hops or [self.next_hop]


class TenantRelay(NextHops, Section):
    """The next hop of one tenant's mail."""


class Route(NextHops, Section):
    recipient_domains: list[DomainField] = Field(
        min_length=1,
        description="Mail to recipients in these domains goes to this route's next hop. They may be written in "
        "Unicode or as `xn--`.",
    )


class Relay(NextHops, Section):
    routes: list[Route] = Field([], description="Different next hops for some recipient domains.")
    tls: Literal["none", "opportunistic", "required"] = Field(
        "opportunistic",
        description="STARTTLS to the next hop. `opportunistic`: if it is offered, without verifying the certificate. "
        "`required`: always, and the certificate is verified.",
    )
    ca_file: str | None = Field(None, description=CA_FILE)
    connect_timeout: Duration = Field(10.0, gt=0, description="Maximum time to connect and to receive the greeting.")
    timeout: Duration = Field(60.0, gt=0, description="Maximum time for each reply of the next hop.")
    max_idle: Duration = Field(
        20.0,
        description="How long an idle connection is kept for the next mail. A connection that is five minutes old is "
        "closed after its current mail.",
    )
    probe_interval: Duration = Field(
        60.0,
        description="How often a next hop that receives no mail is tested with a connection, EHLO and QUIT. It is also "
        "tested at startup. 0: never; its state is then unknown until a mail is sent to it.",
    )
    max_connections: int = Field(100, ge=1, description="Maximum number of connections to each next hop.")

    @field_validator("routes")
    @classmethod
    def _one_route(cls, routes: list[Route]) -> list[Route]:
        refuse_same_domain("relay.routes", domain_places(routes))
        return routes
