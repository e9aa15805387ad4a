"""Where mail goes: one next hop or several, for all mail, for a tenant, for some domains.

Part of the configuration (`bridge.config.model`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from bridge.config.fields import NextHopField, Section
from bridge.mail.address import comparable_domain
from bridge.runtime.endpoints import NextHop
from bridge.runtime.units import Duration


def _either_hop(schema: dict[str, Any]) -> None:
    """For editors: `next_hops` alone will do."""
    schema["required"].remove("next_hop")
    schema["anyOf"] = [{"required": ["next_hop"]}, {"required": ["next_hops"]}]


class NextHops(BaseModel):
    model_config = ConfigDict(json_schema_extra=_either_hop)

    next_hop: NextHopField = Field(description="smtp://host:port, lmtp://host:port, lmtp+unix:/path or maildir:/path.")
    next_hops: list[NextHopField] = Field(
        [], description="In place of next_hop: several. The first that can be connected to gets the mail."
    )

    @model_validator(mode="before")
    @classmethod
    def _first(cls, value: Any) -> Any:
        """`next_hop` is always there: the first of several."""
        if isinstance(value, dict) and isinstance(value.get("next_hops"), list) and value["next_hops"]:
            return {"next_hop": value["next_hops"][0], **value}
        return value

    @field_validator("next_hops")
    @classmethod
    def _agree(cls, hops: list[NextHop], info: ValidationInfo) -> list[NextHop]:
        if hops and info.data.get("next_hop", hops[0]) != hops[0]:
            raise ValueError("give next_hop or next_hops, not both")
        if len(set(hops)) != len(hops):
            raise ValueError("the same next hop stands there twice")
        return hops

    @property
    def hops(self) -> list[NextHop]:
        """All of them, in the order of preference."""
        return self.next_hops or [self.next_hop]


class TenantRelay(NextHops, Section):
    """Where one tenant's mail goes."""


class Route(NextHops, Section):
    recipient_domains: list[Annotated[str, Field(pattern=r"^[^@\s]+$")]] = Field(
        min_length=1, description="Mail to these domains goes to this route's next hop."
    )


class Relay(NextHops, Section):
    routes: list[Route] = Field([], description="Other next hops for some recipient domains.")
    tls: Literal["none", "opportunistic", "required"] = Field(
        "opportunistic", description="STARTTLS to the next hop; `required` verifies its certificate."
    )
    ca_file: str | None = Field(None, description="Certificates to trust for the next hop.")
    connect_timeout: Duration = Field(10.0, gt=0, description="Longest wait for a connection and greeting.")
    timeout: Duration = Field(60.0, gt=0, description="Longest wait for each reply of the next hop.")
    max_idle: Duration = Field(20.0, description="An idle connection is kept this long for the next mail.")
    max_connections: int = Field(100, ge=1, description="Connections to the next hop at once.")

    @field_validator("routes")
    @classmethod
    def _one_route(cls, routes: list[Route]) -> list[Route]:
        domains = [comparable_domain(domain) for route in routes for domain in route.recipient_domains]
        if len(set(domains)) != len(domains):
            raise ValueError("one recipient domain has two routes")
        return routes
