"""The Postfix settings for this configuration: addresses, timeouts and limits that match ours.

Produces text and never changes Postfix's files: the operator reads the lines and adds them. A configuration
that cannot work with Postfix in the requested mode raises a ConfigError that says what to change.
"""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.config.mail_server_profiles import PROFILES
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.suggestion import did_you_mean

if TYPE_CHECKING:
    from bridge.config.listener import Listener
    from bridge.config.model import Config
    from bridge.runtime.endpoints import NextHop

MODES = ("proxy", "milter", "content-filter")
FRONT = "smtp/inet"  # the clients' smtpd, on port 25
RECEIVED_BYTES = 8192  # header fields that Postfix adds before we get the mail; they count for our limit
HEADERS_BYTES = 65536  # header fields that we add; they count for Postfix's limit when the mail comes back
_POSTFIX_MAILBOX_BYTES = 51_200_000  # default of mailbox_size_limit and virtual_mailbox_limit
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to connect, for listeners on all addresses
_EXAMPLES = {
    "proxy": "{name: mx, protocol: smtp, address: 127.0.0.1:10025, profile: postfix-proxy}",
    "milter": "{name: milter, protocol: milter, address: 127.0.0.1:10027, profile: postfix-milter}",
    "content-filter": "{name: queue, protocol: smtp, address: 127.0.0.1:10025, profile: postfix-content-filter}",
}


@dataclass(frozen=True, slots=True)
class Lines:
    """To append to main.cf, and to add to master.cf ("" if nothing changes there)."""

    main: str
    master: str = ""


def next_step(path: Path | None) -> str:
    """What to run when the lines are in place. It checks the configuration that the lines were made for."""
    given = f" -c {shlex.quote(str(path))}" if path is not None else ""
    check = f'scanbridge check{given} --postfix "$(postconf -h config_directory)"'
    return f"# Then: postfix check && postfix reload && {check}"


def for_postfix(conf: Config, mode: str, name: str | None = None, service: str = FRONT) -> Lines:
    """`name` chooses a listener if several are suitable; `service` is the smtpd of the clients. Raises ConfigError."""
    listener = _fitting(conf, mode, name)
    if mode == "milter":
        return Lines(_milter(conf, listener) + _addresses(conf))
    hop = _way_back(conf)
    wait_s = mail_server_wait_s(listener)
    values = {
        "name": listener.name,
        "front": " ".join(service.rsplit("/", 1)),
        "deadline": f"{listener.deadline:g}s",
        "wait": f"{wait_s}s",
        "slots": conf.admission.share_of(conf.admission.max_in_processing),
        "front_size": front_size(conf),
        "size": conf.limits.max_message_size + HEADERS_BYTES,
        "mailboxes": _mailboxes(conf.limits.max_message_size + HEADERS_BYTES) + _addresses(conf),
        "back": hop.address,
        "bridge": _our_networks(hop.address),
    }
    if mode == "proxy":
        where = _proxy_name(listener.address)
        return Lines(_PROXY_MAIN.format(**values), (_PROXY_MASTER + _BACK_MASTER).format(where=where, **values))
    where = _host_port(listener)
    return Lines(
        _QUEUE_MAIN.format(where=where, **values), (_QUEUE_MASTER + _BACK_MASTER).format(where=where, **values)
    )


def depends_on_recipients(conf: Config) -> bool:
    """Whether mail is treated differently by recipient: then Postfix and we must read an address in the same way."""
    has_lists = any(listener.lists and listener.lists.block_recipients for listener in conf.listeners)
    return bool(conf.tenants or (conf.relay and conf.relay.routes) or has_lists)


def mail_server_wait_s(listener: Listener) -> int:
    """How long the mail server must wait for us: its default, or our deadline and 10 % more."""
    return max(ceil(PROFILES[listener.profile].limit_s), ceil(listener.deadline + listener.deadline / 10))


def front_size(conf: Config) -> int:
    """The largest mail from a client that, with Postfix's own fields, is within our limit. (0 would mean no limit.)"""
    limit = conf.limits.max_message_size
    return max(limit - RECEIVED_BYTES, limit // 2, 1)


def milter_name(address: Endpoint) -> str:
    """In the form that smtpd_milters uses."""
    if address.path:
        return f"unix:{address.path}"
    return f"inet:{_reached(address)}"


def _fitting(conf: Config, mode: str, name: str | None) -> Listener:
    profile = f"postfix-{mode}"
    names = [listener.name for listener in conf.listeners]
    if name is not None and name not in names:
        hint = did_you_mean(name, names) or f"; the configuration has {', '.join(names)}"
        raise ConfigError(f"--listener: no listener is named {name}{hint}")
    listeners = [listener for listener in conf.listeners if listener.profile == profile and listener.protocol != "lmtp"]
    if name is not None:
        listeners = [listener for listener in listeners if listener.name == name]
    if not listeners:
        subject = f"listener {name} does not have" if name else "no listener has"
        raise ConfigError(f"listeners: {subject} the {profile} profile; add\n  - {_EXAMPLES[mode]}")
    if len(listeners) > 1:
        names = [listener.name for listener in listeners]
        raise ConfigError(f"listeners: several are suitable; choose one: --listener {' or '.join(names)}")
    listener, key = listeners[0], f"listeners: {listeners[0].name}"
    if listener.address.systemd:
        raise ConfigError(f"{key}: address: the address of {listener.address} is set in systemd; use host:port instead")
    if listener.proxy_protocol:
        raise ConfigError(f"{key}: proxy_protocol: Postfix sends no PROXY header to a filter; set it to false")
    if listener.tls is not None and listener.tls.required and mode == "proxy":
        raise ConfigError(f"{key}: tls.required: Postfix does not use TLS with a proxy filter; set it to false")
    return listener


def _way_back(conf: Config) -> NextHop:
    assert conf.relay is not None  # config/model.py: a configuration with an SMTP listener has a next hop
    hop = conf.relay.hops[0]
    if hop.protocol != "smtp" or hop.address.path:
        raise ConfigError(
            f"relay.next_hop: {hop} does not lead back to Postfix; set it to smtp://127.0.0.1:10026, "
            "where Postfix accepts scanned mail"
        )
    return hop


def _reached(address: Endpoint) -> str:
    """host:port for connections from this machine."""
    return str(Endpoint(_ANY.get(address.host, address.host), address.port))


def _proxy_name(address: Endpoint) -> str:
    return f"unix:{address.path}" if address.path else _reached(address)


def _host_port(listener: Listener) -> str:
    """As a transport's next hop; the brackets mark a host, as opposed to a mail domain."""
    address = listener.address
    if address.path:
        raise ConfigError(
            f"listeners: {listener.name}: address: Postfix cannot deliver SMTP to a unix socket; use 127.0.0.1:10025"
        )
    reached = Endpoint(_ANY.get(address.host, address.host), address.port)
    return str(reached) if ":" in reached.host else f"[{reached.host}]:{reached.port}"


def _our_networks(address: Endpoint) -> str:
    """Our source address for connections to it. Connecting a datagram socket finds it without sending anything."""
    if address.is_local:
        return "127.0.0.0/8,[::1]/128"
    try:
        family, kind, number, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as sock:
            sock.connect(where)
            host = str(sock.getsockname()[0])
    except OSError as exc:
        raise ConfigError(
            f"relay.next_hop: no route from here to {address}: {exc.strerror}; run this command where the bridge runs"
        ) from exc
    return f"[{host}]/128" if ":" in host else f"{host}/32"


def _mailboxes(size: int) -> str:
    """local(8) and virtual(8) do not start if a mail may be larger than a mailbox."""
    return MAILBOXES if size > _POSTFIX_MAILBOX_BYTES else ""


def _addresses(conf: Config) -> str:
    return _RECIPIENTS if depends_on_recipients(conf) else ""


def _milter(conf: Config, listener: Listener) -> str:
    chroot = ""
    if listener.address.path:
        chroot = (
            "# A chrooted smtpd (y in the fifth column of master.cf) can reach this socket only inside the queue\n"
            "# directory, and needs its path relative to that directory: `scanbridge check --postfix /etc/postfix`\n"
            "# shows the name to use.\n"
        )
    return _MILTER_MAIN.format(
        chroot=chroot,
        where=milter_name(listener.address),
        deadline=f"{listener.deadline:g}s",
        wait=f"{mail_server_wait_s(listener)}s",
        size=conf.limits.max_message_size,
        mailboxes=_mailboxes(conf.limits.max_message_size),
    )


MAILBOXES = """\
# Postfix does not deliver to a mailbox whose size limit is below message_size_limit. 0 = no limit.
mailbox_size_limit = 0
virtual_mailbox_limit = 0
"""


_RECIPIENTS = """\
# Tenants, routes and lists of recipients depend on the recipient's domain, so Postfix must not rewrite addresses to
# another domain: user%b.example@a.example and b.example!user are not recipients at b.example.
allow_percent_hack = no
swap_bangpath = no
"""


_MILTER_MAIN = """\
# Mail received by SMTP. Add other milters to the same list, in the order in which they are to run.
{chroot}smtpd_milters = {where}
# Mail submitted with sendmail(1) on this machine. Omit this line to scan only mail received by SMTP.
non_smtpd_milters = {where}
# If the bridge cannot be reached, the client tries again later. Never use "accept": mail would pass unscanned.
milter_default_action = tempfail
milter_protocol = 6
milter_connect_timeout = 30s
milter_command_timeout = 30s
# Longer than the bridge's deadline of {deadline}.
milter_content_timeout = {wait}
message_size_limit = {size}
{mailboxes}"""

_PROXY_MAIN = """\
# Longer than the deadline of listener {name}, which is {deadline}.
smtpd_proxy_timeout = {wait}
# Scanned mail comes back with more header fields. The limit for clients is in master.cf.
message_size_limit = {size}
{mailboxes}"""

_PROXY_MASTER = """\
# Replaces the line "{front} ... smtpd"; keep its -o lines.
# As many processes as the bridge's admission.max_in_processing.
{front} n - n - {slots} smtpd
    -o smtpd_proxy_filter={where}
    -o message_size_limit={front_size}
"""

_QUEUE_MAIN = """\
# All mail, from the network and from this machine.
content_filter = scanbridge:{where}
# Bounces are not filtered, and go to a sender that may be forged: they must not contain the content of a mail.
bounce_size_limit = 1
# Scanned mail comes back with more header fields. The limit for clients is in master.cf.
message_size_limit = {size}
{mailboxes}"""

_QUEUE_MASTER = """\
# Replaces the line "{front} ... smtpd"; keep its -o lines.
{front} n - n - - smtpd
    -o message_size_limit={front_size}
# Delivers to the bridge, over at most as many connections as its admission.max_in_processing.
scanbridge unix - - n - {slots} smtp
    -o smtp_send_xforward_command=yes
    -o disable_mime_output_conversion=yes
    -o smtp_line_length_limit=0
    # Longer than the deadline of listener {name}, which is {deadline}.
    -o smtp_data_done_timeout={wait}
    -o smtp_tls_security_level=none
"""

_BACK_MASTER = """\
# Accepts scanned mail from the bridge only. All other checks were made when the mail was received.
{back} inet n - n - - smtpd
    # Without these two lines the mail would loop.
    -o content_filter=
    -o smtpd_proxy_filter=
    -o smtpd_authorized_xforward_hosts={bridge}
    -o mynetworks={bridge}
    -o smtpd_client_restrictions=
    -o smtpd_helo_restrictions=
    -o smtpd_sender_restrictions=
    -o smtpd_relay_restrictions=
    -o smtpd_recipient_restrictions=permit_mynetworks,reject
    -o smtpd_data_restrictions=
    -o smtpd_end_of_data_restrictions=
    -o smtpd_client_connection_count_limit=0
    -o smtpd_milters=
    -o receive_override_options=no_unknown_recipient_checks,no_header_body_checks
"""
