"""The effective configuration as data: every key with its value, as people write it. Secrets are in files."""

from __future__ import annotations

from typing import Any

from bridge.config.model import Config


def effective(conf: Config) -> dict[str, Any]:
    """Every key with its effective value; each listener with the policy that applies to it."""
    data = conf.model_dump(mode="json", by_alias=True)
    for shown, listener in zip(data["listeners"], conf.listeners, strict=True):
        shown["policy"] = conf.policy_for(listener).model_dump(mode="json")
    for shown, tenant in zip(data["tenants"], conf.tenants, strict=True):
        # Keys that a tenant does not set come from the listener; if printed here, they would override it.
        shown["policy"] = tenant.policy.model_dump(mode="json", include=tenant.policy.model_fields_set)
    shorten(data)
    return data


def shorten(value: Any) -> None:
    """Write `relay` instead of `{action: relay, code: null, ...}`."""
    for key, child in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(child, dict) and set(child) == {"action", "code", "text", "keep_copy"}:
            if not (child["code"] or child["text"] or child["keep_copy"]):
                value[key] = child["action"]
        elif isinstance(child, dict | list):
            shorten(child)
