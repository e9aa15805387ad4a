"""Configurations that cannot work are refused with the next step; documented forms are accepted."""

from __future__ import annotations

import pytest

from tests.config.config_kit import OIDC, OWN, TENANT, changed, listener, load, mistakes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(scanner={"urls": ["file:///etc/passwd"]}), "https://host:port"),
        (changed(scanner={"urls": ["https://u:p@scan.example.org"]}), "user name or password"),
        (changed(scanner={"urls": ["http://scan.example.org:9081"]}), "allow_plain_http"),
        (changed(scanner={"urls": ["https://h:1/?a=b"]}), "must not have a query"),
        (changed(scanner={"urls": ["https://h:99999"]}), "https://host:port"),
        (changed(scanner={"urls": ["https://h\r\nX: y"]}), "https://host:port"),
        (changed(scanner={"urls": []}), "expected 1 or more entries"),
        (changed(scanner={"client_cert_file": "c.pem"}), "must be set together"),
        (changed(scanner={"tenant_uid": "17"}), "for a new tenant, `uuidgen` prints one"),
        (changed(scanner={"status_interval": "0s"}), "expected at least 0.1"),
        (changed(scanner={"connect_timeout": "0s"}), "a number above 0"),
        (changed(api={"tokens": [{"name": "t", "token_file": "t", "tenants": None}]}), "no tenant is listed here"),
        (changed(api={"tokens": [{"name": "t", "token_file": "t", "tenants": []}]}), "expected 1 or more entries"),
        (
            changed(console={"oidc": {**OIDC, "roles": [{"group": "g", "role": "viewer", "tenants": None}]}}),
            "no tenant is listed here",
        ),
        (listener(address="0.0.0.0:25"), "list the mail servers that may use it, or listen on 127.0.0.1"),
        (listener(address="[::]:25"), "can be reached from other machines"),
        (listener(address="mail.example.org:25"), "can be reached from other machines"),
        (listener(trusted_clients=["10.0.0.1/8"]), "write 10.0.0.0/8, or the address alone"),
        (listener(profile="qmail"), "available profiles: postfix-proxy"),
        (listener(profile="postfix-milter"), "is a profile for milter, but this listener speaks smtp"),
        (listener(protocol="milter", proxy_protocol=True), "a milter listener cannot have tls, proxy_protocol"),
        (listener(protocol="milter", tls={"cert_file": "c", "key_file": "k"}), "cannot have tls, proxy_protocol"),
        (listener(protocol="mta-hooks"), "an mta-hooks listener needs a token: set hooks.token_file"),
        (listener(protocol="mta-hooks", hooks={}), "token_file"),
        (listener(hooks={"token_file": "t"}), "only an mta-hooks listener has hooks"),
        (listener(protocol="mta-hooks", hooks={"token_file": "t"}, proxy_protocol=True), "cannot have proxy_protocol"),
        (listener(protocol="mta-hooks", hooks={"token_file": "t"}, profile="haraka"), "is a profile for smtp"),
        (
            listener(
                protocol="mta-hooks",
                hooks={"token_file": "t"},
                address="192.0.2.1:80",
                trusted_clients=["192.0.2.2"],
            ),
            "so the token and the mail must be encrypted: set tls",
        ),
        (listener(deadline="500ms"), "at least 1s"),
        (listener(unix_mode="660"), "pattern"),
        (changed(listeners=[{"name": "a", "address": "127.0.0.1:1"}] * 2), "two listeners are named a"),
        (
            changed(listeners=[{"name": name, "address": "127.0.0.1:1"} for name in "ab"]),
            "a and b have the same address, 127.0.0.1:1",
        ),
        (changed(admin={"address": "127.0.0.1:10025"}), "the listener mx has the same address"),
        (changed(listeners=[]), "expected 1 or more entries"),
        (changed(relay=None), "set relay.next_hop"),
        (changed(relay={"next_hop": "maildir:relative"}), "a next hop must be"),
        (changed(relay={"next_hop": "127.0.0.1:0"}), "a port must be a number from 1 to 65535"),
        (changed(relay={"next_hop": "smtp://systemd:x"}), "a next hop must be"),
        (changed(limits={"max_message_size": "51MiB"}), "at most 50 MiB"),
        (changed(limits={"max_message_size": 1000}), "a size needs a number and a unit"),
        (changed(policy={"too_large": "relay"}), "use reject or tempfail"),
        (changed(policy={"bounce": {"action": "reject", "code": 450}}), "5xx"),
        (changed(policy={"bounce": {"action": "reject", "code": 521}}), "which close the connection"),
        (changed(policy={"undecided": {"action": "tempfail", "code": 421}}), "which close the connection"),
        (changed(policy={"drop": {"action": "discard", "code": 550}}), "reject (5xx) and tempfail (4xx) only"),
        (changed(policy={"bounce": {"action": "reject", "text": "a\nb"}}), "printable ASCII"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["A", "a"]}]), "in two places: tenants.0.rec"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["*.example.com"]}]), "no `*` and no dot in front"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": [".example.com"]}]), "no `*` and no dot in front"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["http://x.example"]}]), "not a URL"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a@x.example"]}]), "only the part after the @"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a..b"]}]), "separated by single dots"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["-x.example"]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["x" * 64]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a b"]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": [d]} for d in "ab"]), "same uid"),
        (listener(client_header="Received"), "client_header"),
        (listener(client_header="X-Client:"), "client_header"),
        (listener(client_header="x-scan-client"), "mx.client_header starts with X-Scan-, which is reserved"),
        (listener(client_header="X-C", protocol="milter", profile="postfix-milter"), "client_header or hide_"),
        (listener(hide_extensions=["PIPELINING"]), "hide_extensions"),
        (listener(hide_extensions=["DSN"], protocol="milter", profile="postfix-milter"), "listener cannot have tls"),
        (changed(tenants=[{**OWN, "relay": {}}]), "next_hop"),
        (changed(tenants=[{**OWN, "relay": {"next_hop": "http://x"}}]), "next_hop"),
        (changed(tenants=[{**OWN, "relay": {"next_hops": ["h:1", "h:1"]}}]), "twice"),
        (changed(tenants=[{**OWN, "relay": {"next_hop": "h:1", "tls": "required"}}]), "tls"),
        (
            changed(
                listeners=[{"name": "m", "protocol": "milter", "address": "127.0.0.1:1"}],
                relay=None,
                tenants=[{**OWN, "relay": {"next_hop": "h:1"}}],
            ),
            "a tenant has its own next hop",
        ),
        (changed(lists={"url": "http://scan.example.org", "api_key_file": "k"}), "allow_plain_http"),
        (changed(lists={"url": "file:///x", "api_key_file": "k"}), "https://host:port"),
        (changed(state_database="mysql://h/x"), "postgresql://user@host:port/name"),
        (changed(state_database="postgresql://h"), "postgresql://user@host:port/name"),
        (changed(state_database="sqlite://file"), "sqlite:///file"),
        (changed(state_database="postgresql://u:p@h/x"), "state_database_password_file"),
        (changed(state_database_password_file="p"), "only a PostgreSQL database has a password"),
        (changed(quarantine={"retention": "0s"}), "quarantine.retention"),  # read as "for ever", it deleted all mail
        (changed(quarantine={"s3": {"bucket": "a/b"}}), "pattern"),
        (changed(quarantine={"s3": {"bucket": "abc", "prefix": "/x"}}), "pattern"),
        (changed(quarantine={"s3": {"bucket": "abc", "endpoint": "http://s3.example.org"}}), "allow_plain_http"),
        (changed(quarantine={"s3": {"bucket": "abc", "access_key_file": "a"}}), "must be set together"),
        (changed(drain_timeout="soon"), "a time needs a number and a unit"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused_with_the_next_step(text: str, words: str) -> None:
    """When it is loaded, not at the first mail."""
    assert any(words in line for line in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    "text",
    [
        changed(scanner={"urls": ["http://scan.example.org:9081"], "allow_plain_http": True}),
        changed(scanner={"urls": ["http://localhost:1", "http://[::1]:1", "https://h/prefix/"]}),
        listener(address="0.0.0.0:25", trusted_clients=["192.0.2.1"]),
        listener(address="unix:/run/scanbridge/smtp.sock"),
        listener(address="systemd:smtp"),
        listener(protocol="lmtp", profile="exim-queue"),
        changed(relay={"next_hop": "lmtp+unix:/run/dovecot/lmtp"}),
        changed(relay={"next_hop": "lmtp://[::1]:24"}),
        changed(tenants=[{**OWN, "relay": {"next_hop": "lmtp+unix:/run/lmtp"}}]),
        changed(tenants=[{**OWN, "relay": {"next_hops": ["a.example:25", "b.example:25"]}}]),
        changed(state_database="postgresql://u@h:5432/x?sslmode=require", state_database_password_file="p"),
        changed(state_database="sqlite:////var/lib/x.sqlite"),
        changed(quarantine={"s3": {"bucket": "abc"}}),
        changed(quarantine={"s3": {"bucket": "abc", "endpoint": "https://s3.example.org", "prefix": "a/b"}}),
        changed(listeners=[{"name": "m", "protocol": "milter", "address": "127.0.0.1:1"}], relay=None),
    ],
)
def test_a_documented_form_is_accepted(text: str) -> None:
    """All forms that the documentation names."""
    assert len(load(text).listeners) == 1
