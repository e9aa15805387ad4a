"""The addresses of all nodes of a cluster, for the commands and pages that show them together.

Part of the configuration (`bridge.config.model`). No mail depends on it: nodes find each other through HAProxy, NATS
and the database.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from bridge.config.fields import AddressField, Section
from bridge.runtime.endpoints import Endpoint

_MANY = "A host name with several addresses stands for one node per address."


class Cluster(Section):
    bridges: list[AddressField] = Field(
        [], description=f"Admin addresses of all bridges, for `scanbridge status --cluster` and the console. {_MANY}"
    )
    workers: list[AddressField] = Field(
        [], description=f"Addresses at which the analysis workers answer (their `worker.listen`). {_MANY}"
    )

    nats: list[AddressField] = Field(
        [], description=f"Addresses of the NATS servers' monitoring pages (`http` in their configuration). {_MANY}"
    )
    haproxy: list[AddressField] = Field(
        [],
        description=f"Addresses of the HAProxy servers' metrics pages (`prometheus-exporter` at `/metrics`). {_MANY}",
    )

    @field_validator("bridges", "workers", "nats", "haproxy")
    @classmethod
    def _reachable(cls, addresses: list[Endpoint]) -> list[Endpoint]:
        if any(address.systemd or address.is_any for address in addresses):
            raise ValueError("a node's address must be given as host:port or unix:/path")
        return addresses
