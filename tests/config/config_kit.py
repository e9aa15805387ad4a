"""Configurations for the tests: an example with every key, the smallest one, and changes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.config import model
from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file

# The example of the design, key by key.
EXAMPLE = """\
scanner:
  urls: [https://scan.example.org:9081]     # several: least busy first, with failover
  token_file: api-token                     # relative to $CREDENTIALS_DIRECTORY, else to this file
  tenant_uid: null
  ca_file: null                             # client_cert_file, client_key_file for mutual TLS
  status_interval: 5s
listeners:
  - name: mx                                # the name in logs and metrics
    protocol: smtp                          # smtp | lmtp | milter
    address: 127.0.0.1:10025                # host:port, [::1]:port, unix:/path, systemd:NAME
    profile: postfix-proxy                  # defaults of deadline and policy for that mail server
    deadline: 90s                           # end of data to our reply; default: the profile's
    trusted_clients: [127.0.0.0/8, "::1"]   # may connect; their XFORWARD and XCLIENT are trusted
    tls: null                               # cert_file, key_file, required
    proxy_protocol: false
    policy: {}                              # overrides of the policy below
  - {name: milter, protocol: milter, address: 127.0.0.1:10027, profile: postfix-milter}
admission:
  max_in_processing: 20                     # the service's maxGuardRequestsInProcessing
  throttle_threshold: 20                    # guardRequestThrottleThreshold: linear delay from here ...
  throttle_max_delay: 5s                    # ... up to this at the limit
  max_bytes_in_processing: 1GiB
policy:
  deliver: relay
  quarantine: quarantine
  bounce: reject
  drop: discard
  undecided: tempfail
  unavailable: tempfail                     # no answer from the service
  too_large: reject
tenants:
  - {uid: 0b8e4567-e89b-12d3-a456-426614174000, recipient_domains: [example.org], policy: {}}
relay:
  next_hop: 127.0.0.1:10026                 # smtp://host:port, lmtp://..., lmtp+unix:/path, maildir:/path
quarantine: {directory: quarantine, retention: 30d}
headers: {prefix: X-Scan-, received: true}
lists: {url: https://scan.example.org:9081, api_key_file: api-key}
admin: {address: 127.0.0.1:9082}
workers: 1                                  # processes; the limits above apply to all together
log: {format: keyvalue, level: info}        # or json
"""
TENANT = "0b8e4567-e89b-12d3-a456-426614174000"
OWN = {"uid": TENANT, "recipient_domains": ["x"]}
SMALL = """\
scanner:
  urls: [http://127.0.0.1:9081]
  token_file: token
listeners:
  - name: mx
    address: 127.0.0.1:10025
relay:
  next_hop: 127.0.0.1:10026
"""


def load(text: str) -> Config:
    return yaml_file.load(Path("bridge.yml"), Config, text)


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(text)
    return str(raised.value).split("\n")


def changed(**sections: Any) -> str:
    """The small configuration with these sections merged over it."""
    data: dict[str, Any] = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "127.0.0.1:10026"},
    }
    for name, value in sections.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return yaml_file.dump(data)


def listener(**keys: Any) -> str:
    return changed(listeners=[{"name": "mx", "address": "127.0.0.1:10025", **keys}])


COPIED = {"action": "relay", "keep_copy": True}
OIDC = {"issuer": "https://login.example.org", "client_id": "x"}
ROUND_TRIPS = {
    "small": SMALL,
    "example": EXAMPLE,
    "embedded": model.EMBEDDED.format(state="/tmp/a b"),
    "rich": changed(
        listeners=[
            {"name": "a", "address": "127.0.0.1:1", "profile": "exim-queue", "deadline": "1.5h"},
            {"name": "b", "address": "unix:/x y", "protocol": "lmtp", "policy": {"drop": COPIED}},
            {"name": "c", "address": "systemd:m", "protocol": "milter", "trusted_clients": ["::1"]},
        ],
        policy={"bounce": {"action": "reject", "code": 554, "text": "no: not # here"}},
        tenants=[{"uid": TENANT, "recipient_domains": ["x"], "policy": {"drop": "relay"}}],
        quarantine={"retention": "1.1d"},
        scanner={"status_interval": "0.1015s", "urls": ["https://h:1/", "https://i"]},
        spool={"memory_per_mail": "1001B"},
        api={"tokens": [{"name": "all", "token_file": "a"}, {"name": "one", "token_file": "b", "tenants": [TENANT]}]},
        console={"oidc": {**OIDC, "roles": [{"group": "a", "role": "admin"}]}},
    ),
}  # fmt: skip
