"""The effective configuration as data: every key with its value, as people write it.

Secrets are in files, which are not read here, or in URLs, where they are hidden.
"""

from __future__ import annotations

from typing import Any

from bridge.config.model import Config
from bridge.runtime.shown_url import shown_database, shown_url


def effective(conf: Config, *, hides_paths: bool = False) -> dict[str, Any]:
    """Every key with its effective value; each listener with the policy that applies to it.

    `hides_paths`: hides the paths of webhooks, too, some of which are secrets. For people who cannot read the file.
    """
    data = conf.model_dump(mode="json", by_alias=True)
    for shown, listener in zip(data["listeners"], conf.listeners, strict=True):
        shown["policy"] = conf.policy_for(listener).model_dump(mode="json")
    for shown, tenant in zip(data["tenants"], conf.tenants, strict=True):
        # Keys that a tenant does not set come from the listener; if printed here, they would override it.
        shown["policy"] = tenant.policy.model_dump(mode="json", include=tenant.policy.model_fields_set)
    for limited in (*data["api"]["tokens"], *(((data["console"] or {}).get("oidc") or {}).get("roles") or ())):
        if limited["tenants"] is None:  # all mail: the configuration refuses the key without a tenant
            del limited["tenants"]
    _hide_secrets(data, hides_paths)
    shorten(data)
    return data


def _hide_secrets(data: dict[str, Any], hides_paths: bool) -> None:
    """All other URLs must not have a user name, a password or a query: the configuration refuses them."""
    for sink in data["events"]:
        if sink["url"]:
            sink["url"] = shown_url(sink["url"], has_secret_path=hides_paths)
    if data["tracing"]:
        data["tracing"]["endpoint"] = shown_url(data["tracing"]["endpoint"])
    if data["state_database"]:
        data["state_database"] = shown_database(data["state_database"])


def shorten(value: Any) -> None:
    """Write `relay` instead of `{action: relay, code: null, ...}`."""
    for key, child in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(child, dict) and set(child) == {"action", "code", "text", "keep_copy"}:
            if not (child["code"] or child["text"] or child["keep_copy"]):
                value[key] = child["action"]
        elif isinstance(child, dict | list):
            shorten(child)
