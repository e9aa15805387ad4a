"""The latency that the bridge adds to a real Postfix: 4 KiB mails one after another, over one connection, median.

Measures Postfix alone, with our milter, with rspamd's proxy as a milter, and with our bridge as a proxy filter. Postfix
discards the mail after queueing it, so that only its acceptance is measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure import Latency, Work, free_ports, latency, load, process, wait_port
from peers import BUILD, MISSING, PEERS, Peer, Ports, ours

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the test kits

MAILS = Work(300, sessions=1)
ALONE, MILTER, RSPAMD, PROXY = "Postfix alone", "with our milter", "with rspamd's proxy", "with our proxy filter"
_DISCARD = "default_transport = discard:\nrelay_transport = discard:\nmessage_size_limit = 64000000\n"
_TIMES = 3  # in turn; the minimum counts, because disturbances only ever add time


@contextmanager
def _postfix(port: int, settings: str, back: int) -> Iterator[None]:
    from tests.postfix_kit import Postfix

    services = [f"127.0.0.1:{port} inet n - n - - smtpd"]
    if "smtpd_proxy_filter" in settings:  # mail that the bridge returns is not filtered again
        services.append(f"127.0.0.1:{back} inet n - n - - smtpd -o smtpd_proxy_filter=")
        services[-1] += " -o smtpd_authorized_xforward_hosts=127.0.0.0/8"
    with Postfix("\n".join(services), back, _DISCARD + settings):
        yield


def _bridge(stack: ExitStack, peer: Peer, ports: Ports, name: str) -> None:
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    scratch.chmod(0o755)
    arguments, environment = peer.command(ports, scratch)
    wait_port(ports.peer, stack.enter_context(process(arguments, 0, environment, scratch / "log")), scratch / "log")


def measure_all() -> dict[str, Latency]:
    """The latency per mail, by setup. Empty where Postfix cannot be started."""
    if os.geteuid() != 0 or not Path("/usr/sbin/postfix").exists():
        MISSING["Postfix"] = "Postfix is not installed, or cannot be started without root"
        return {}
    found: dict[str, Latency] = {}
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))) / "log"
        scanner, *free = free_ports(21)
        fronts: dict[str, int] = {}
        started = stack.enter_context(process([str(BUILD / "scanner"), str(scanner)], 1, {}, log))
        wait_port(scanner, started, log)
        peers = {MILTER: PEERS["scanbridge milter"], RSPAMD: PEERS["rspamd proxy"]}
        peers[PROXY] = Peer(PROXY, "smtp", ours("smtp", deliver="relay"))
        for name in (ALONE, *peers):
            if name in peers and any(need in MISSING for need in peers[name].needs):
                continue
            front, back, inside, other, admin = free[:5]
            del free[:5]
            settings = ""
            if name in peers:
                _bridge(stack, peers[name], Ports(inside, scanner, back, other, admin), name)
                proxy_filter = f"smtpd_proxy_filter = 127.0.0.1:{inside}\n"
                settings = proxy_filter if name == PROXY else f"smtpd_milters = inet:127.0.0.1:{inside}\n"
            stack.enter_context(_postfix(front, settings, back))
            fronts[name] = front
        for _ in range(_TIMES):
            for name, front in fronts.items():
                result = load("smtp", front, MAILS)
                if result["accepted"] != MAILS.mails:
                    raise RuntimeError(f"{name}: {result}")
                found[name] = min(found.get(name, (1e9, 1e9)), latency(result))
    return found


if __name__ == "__main__":
    from peers import build

    build()
    for name, (p50, p99) in measure_all().items():
        print(f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
