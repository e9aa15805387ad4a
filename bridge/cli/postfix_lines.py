"""The lines that Postfix needs for this configuration: addresses, time-outs and limits that fit ours.

Text only. Nothing here touches a file of Postfix's: whoever runs it puts the lines in, and sees them first.
A configuration that cannot work with Postfix in the wanted way is a ConfigError that says what to write.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from math import ceil

from bridge.config.model import Config, Listener
from bridge.config.profiles import PROFILES
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Address, NextHop

MODES = ("proxy", "milter", "content-filter")
RECEIVED_BYTES = 8192  # what Postfix writes in front of a mail before we get it counts for our limit
HEADERS_BYTES = 65536  # and what we write in front of it counts for Postfix's, when it comes back
_POSTFIX_MAILBOX_BYTES = 51_200_000  # its default of mailbox_size_limit and virtual_mailbox_limit
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - listened at; connected to by another name
_EXAMPLES = {
    "proxy": "{name: mx, protocol: smtp, address: 127.0.0.1:10025, profile: postfix-proxy}",
    "milter": "{name: milter, protocol: milter, address: 127.0.0.1:10027, profile: postfix-milter}",
    "content-filter": "{name: queue, protocol: smtp, address: 127.0.0.1:10025, profile: postfix-content-filter}",
}


@dataclass(frozen=True, slots=True)
class Lines:
    """For the end of main.cf, and for master.cf ("" when that stays as it is)."""

    main: str
    master: str = ""


def for_postfix(conf: Config, mode: str, name: str | None = None) -> Lines:
    """`name` chooses a listener where several fit. Raises ConfigError."""
    listener = _fitting(conf, mode, name)
    if mode == "milter":
        return Lines(_milter(conf, listener))
    hop = _way_back(conf)
    wait_s = mail_server_wait_s(listener)
    values = {
        "name": listener.name,
        "deadline": f"{listener.deadline:g}s",
        "wait": f"{wait_s}s",
        "slots": conf.admission.max_in_processing,
        "front_size": front_size(conf),
        "size": conf.limits.max_message_size + HEADERS_BYTES,
        "mailboxes": _mailboxes(conf.limits.max_message_size + HEADERS_BYTES),
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


def mail_server_wait_s(listener: Listener) -> int:
    """How long the mail server must wait for us: its usual time, or a tenth more than our deadline."""
    return max(ceil(PROFILES[listener.profile].limit_s), ceil(listener.deadline + listener.deadline / 10))


def front_size(conf: Config) -> int:
    """The largest mail of a client that is still within our limit with Postfix's own field. (0 would be: no limit.)"""
    limit = conf.limits.max_message_size
    return max(limit - RECEIVED_BYTES, limit // 2, 1)


def milter_name(address: Address) -> str:
    """As smtpd_milters names it."""
    if address.path:
        return f"unix:{address.path}"
    return f"inet:{_reached(address)}"


def _fitting(conf: Config, mode: str, name: str | None) -> Listener:
    profile = f"postfix-{mode}"
    listeners = [one for one in conf.listeners if one.profile == profile and one.protocol != "lmtp"]
    if name is not None:
        listeners = [one for one in listeners if one.name == name]
    if not listeners:
        who = f"the listener {name} does not have" if name else "no listener has"
        raise ConfigError(f"listeners: {who} the profile {profile}; add\n  - {_EXAMPLES[mode]}")
    if len(listeners) > 1:
        raise ConfigError(
            f"listeners: several fit; choose one: --listener {' or '.join(one.name for one in listeners)}"
        )
    listener, key = listeners[0], f"listeners: {listeners[0].name}"
    if listener.address.systemd:
        raise ConfigError(f"{key}: address: only systemd knows where {listener.address} is; write host:port here")
    if listener.proxy_protocol:
        raise ConfigError(f"{key}: proxy_protocol: Postfix sends no PROXY header to a filter; set it to false")
    if listener.tls is not None and listener.tls.required and mode == "proxy":
        raise ConfigError(f"{key}: tls.required: Postfix speaks no TLS to a proxy filter; set it to false")
    return listener


def _way_back(conf: Config) -> NextHop:
    assert conf.relay is not None  # config.py: an SMTP listener has a next hop
    hop = conf.relay.hops[0]
    if hop.protocol != "smtp" or hop.address.path:
        raise ConfigError(
            f"relay.next_hop: {hop} does not lead back to Postfix; set it to smtp://127.0.0.1:10026, "
            "and Postfix listens there for what comes back"
        )
    return hop


def _reached(address: Address) -> str:
    """host:port as somebody on this machine connects to it."""
    return str(Address(_ANY.get(address.host, address.host), address.port))


def _proxy_name(address: Address) -> str:
    return f"unix:{address.path}" if address.path else _reached(address)


def _host_port(listener: Listener) -> str:
    """As a transport's next hop; the brackets say that it is a host, not a mail domain."""
    address = listener.address
    if address.path:
        raise ConfigError(
            f"listeners: {listener.name}: address: Postfix cannot deliver SMTP to a unix socket; use 127.0.0.1:10025"
        )
    reached = Address(_ANY.get(address.host, address.host), address.port)
    return str(reached) if ":" in reached.host else f"[{reached.host}]:{reached.port}"


def _our_networks(address: Address) -> str:
    """Whence we come when we connect there. A datagram socket chooses its address without sending anything."""
    if address.is_local:
        return "127.0.0.0/8,[::1]/128"
    try:
        family, kind, number, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as sock:
            sock.connect(where)
            host = str(sock.getsockname()[0])
    except OSError as exc:
        raise ConfigError(
            f"relay.next_hop: no way from here to {address}: {exc.strerror}; run this where the bridge runs"
        ) from exc
    return f"[{host}]/128" if ":" in host else f"{host}/32"


def _mailboxes(size: int) -> str:
    """local(8) and virtual(8) do not run when one mail may be larger than a mailbox."""
    return _MAILBOXES if size > _POSTFIX_MAILBOX_BYTES else ""


def _milter(conf: Config, listener: Listener) -> str:
    chroot = ""
    if listener.address.path:
        chroot = (
            "# A chrooted smtpd (the fifth column of master.cf is y) sees this socket only below the queue directory,\n"
            "# and by its name there: `scanbridge check --postfix /etc/postfix` says which to write.\n"
        )
    return _MILTER_MAIN.format(
        chroot=chroot,
        where=milter_name(listener.address),
        deadline=f"{listener.deadline:g}s",
        wait=f"{mail_server_wait_s(listener)}s",
        size=conf.limits.max_message_size,
        mailboxes=_mailboxes(conf.limits.max_message_size),
    )


_MAILBOXES = """\
# Postfix delivers to no mailbox that may be smaller than a mail. 0: no limit; larger ones of your own may stay.
mailbox_size_limit = 0
virtual_mailbox_limit = 0
"""


_MILTER_MAIN = """\
# Mail that comes over SMTP. Other milters go into the same list, in the order they are asked.
{chroot}smtpd_milters = {where}
# Mail given to sendmail(1) on this machine, too. Leave it out if only incoming mail is scanned.
non_smtpd_milters = {where}
# While the bridge cannot be reached the client keeps the mail. Never "accept": that is unscanned mail.
milter_default_action = tempfail
milter_protocol = 6
milter_connect_timeout = 30s
milter_command_timeout = 30s
# Longer than the bridge's deadline of {deadline}.
milter_content_timeout = {wait}
message_size_limit = {size}
{mailboxes}"""

_PROXY_MAIN = """\
# Longer than the deadline of {deadline} of the listener {name}.
smtpd_proxy_timeout = {wait}
# What comes back has more header fields. The limit for clients is in master.cf.
message_size_limit = {size}
{mailboxes}"""

_PROXY_MASTER = """\
# In place of the line "smtp inet ... smtpd"; its own -o lines stay.
# As many processes as the bridge's admission.max_in_processing.
smtp inet n - n - {slots} smtpd
    -o smtpd_proxy_filter={where}
    -o message_size_limit={front_size}
"""

_QUEUE_MAIN = """\
# All mail, from the network and from this machine.
content_filter = scanbridge:{where}
# What comes back has more header fields. The limit for clients is in master.cf.
message_size_limit = {size}
{mailboxes}"""

_QUEUE_MASTER = """\
# In place of the line "smtp inet ... smtpd"; its own -o lines stay.
smtp inet n - n - - smtpd
    -o message_size_limit={front_size}
# To the bridge; at most as many at once as its admission.max_in_processing.
scanbridge unix - - n - {slots} smtp
    -o smtp_send_xforward_command=yes
    -o disable_mime_output_conversion=yes
    -o smtp_line_length_limit=0
    # Longer than the deadline of {deadline} of the listener {name}.
    -o smtp_data_done_timeout={wait}
    -o smtp_tls_security_level=none
"""

_BACK_MASTER = """\
# Mail that comes back from the bridge. All checks were done in front: here only the bridge may send.
{back} inet n - n - - smtpd
    # Without these two the mail would go round for ever.
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
