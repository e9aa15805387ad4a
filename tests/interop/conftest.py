"""A real Postfix before and behind the bridge, in two setups.

`scripted`: the bridge in this process, with a scanner that answers what the test wants.
`installed`: `scanbridge run` and `scanbridge service` as processes, which can be stopped and killed.
Both hand mail back to the same Postfix, which delivers to the `destination`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.testing import TOKEN, RunningBridge, running_bridge
from tests.chain import Destination, Postfix, Program, free_port, until
from tests.requirements import need

_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that only one mail contains."""
    return f"mark{next(_NUMBERS)}mark"


@dataclass(frozen=True)
class Ports:
    """The port of each listener."""

    scripted_front: int
    hurried_front: int
    proxy_front: int
    queue_front: int
    milter_front: int
    reinjection: int
    scripted: int
    hurried: int
    proxy: int
    queue: int
    milter: int
    service: int
    admin: int


@pytest.fixture(scope="session")
def ports():
    need("postfix", "smtp-source", root=True)
    return Ports(*(free_port() for _ in Ports.__dataclass_fields__))


@pytest.fixture(scope="session")
def destination():
    with Destination() as destination:
        yield destination


@pytest.fixture(scope="session")
def postfix(ports, destination):
    """Every entry that a test uses, and the way back."""
    with Postfix(SERVICES.format(ports=ports), destination.port) as postfix:
        yield postfix


SERVICES = """\
127.0.0.1:{ports.scripted_front} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports.scripted}
127.0.0.1:{ports.hurried_front} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports.hurried}
127.0.0.1:{ports.proxy_front} inet n - n - 100 smtpd -o smtpd_proxy_filter=127.0.0.1:{ports.proxy}
127.0.0.1:{ports.queue_front} inet n - n - 100 smtpd -o content_filter=scan:[127.0.0.1]:{ports.queue}
127.0.0.1:{ports.milter_front} inet n - n - 100 smtpd
    -o smtpd_milters=inet:127.0.0.1:{ports.milter} -o milter_default_action=tempfail
scan unix - - n - 10 smtp -o smtp_send_xforward_command=yes -o disable_mime_output_conversion=yes
127.0.0.1:{ports.reinjection} inet n - n - 100 smtpd
    -o smtpd_authorized_xforward_hosts=127.0.0.0/8
    -o smtpd_authorized_xclient_hosts=
    -o smtpd_client_restrictions=
    -o smtpd_helo_restrictions=
    -o smtpd_sender_restrictions=
    -o smtpd_relay_restrictions=
    -o {{ smtpd_recipient_restrictions=
         check_recipient_access inline:{{{{unknown@example.net=550 5.1.1 No such user here}}}},
         permit_mynetworks, reject }}
    -o smtpd_data_restrictions=
    -o receive_override_options=no_unknown_recipient_checks
"""


@pytest.fixture(scope="session")
def scripted_bridge(ports, tmp_path_factory):
    listeners = [
        {"name": "proxy", "address": f"127.0.0.1:{ports.scripted}"},
        {"name": "hurried", "address": f"127.0.0.1:{ports.hurried}", "deadline": "1s"},
    ]
    relay = {"next_hop": f"smtp://127.0.0.1:{ports.reinjection}"}
    late = {"store": "off"}  # a scan that one test left hanging would hold a slot in the next
    config = {"listeners": listeners, "relay": relay, "late_decisions": late}
    with running_bridge(tmp_path_factory.mktemp("scripted"), config) as bridge:
        yield bridge


@pytest.fixture
def scripted(scripted_bridge: RunningBridge, postfix):
    """The bridge, with a scanner that answers deliver unless the test changes it."""
    scripted_bridge.forget()
    return scripted_bridge


@dataclass(frozen=True)
class Installed:
    """The daemon and the service as an operator runs them."""

    bridge: Program
    service: Program
    directory: Path

    def quarantined(self, marker: str) -> list[Path]:
        return [path for path in self.directory.glob("quarantine/*.eml") if marker.encode() in path.read_bytes()]


@pytest.fixture(scope="session")
def installed(ports, postfix, tmp_path_factory):
    directory = tmp_path_factory.mktemp("installed")
    (directory / "token").write_text(TOKEN)
    (directory / "service.yml").write_text(SERVICE.format(ports=ports, token=TOKEN))
    (directory / "bridge.yml").write_text(BRIDGE.format(ports=ports))
    service = Program(directory, [ports.service], "service", "-c", str(directory / "service.yml"))
    bridge = Program(
        directory, [ports.admin, ports.proxy, ports.queue, ports.milter], "run", "-c", str(directory / "bridge.yml")
    )
    try:
        service.start()
        bridge.start()
        yield Installed(bridge, service, directory)
        until(lambda: not postfix.queue(), "Postfix's queue to be empty")
        assert bridge.stop() == 0, bridge.log()
        assert "Traceback" not in bridge.log()
    finally:
        bridge.kill()
        service.kill()


SERVICE = """\
listen: 127.0.0.1:{ports.service}
guard: {{scanSources: {{restApi: {{}}}}}}
abby: {{serviceProviders: {{core: {{hosts: []}}}}, staticApiTokens: [{{name: bridge, token: {token}}}]}}
"""

BRIDGE = """\
scanner: {{urls: ["http://127.0.0.1:{ports.service}"], token_file: token}}
listeners:
  - {{name: proxy, address: "127.0.0.1:{ports.proxy}", profile: postfix-proxy}}
  - {{name: queue, address: "127.0.0.1:{ports.queue}", profile: postfix-content-filter}}
  - {{name: milter, protocol: milter, address: "127.0.0.1:{ports.milter}", profile: postfix-milter}}
relay: {{next_hop: "smtp://127.0.0.1:{ports.reinjection}"}}
admin: {{address: "127.0.0.1:{ports.admin}"}}
"""
