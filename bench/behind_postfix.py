"""What the bridge adds to a real Postfix: one 4 KiB mail after another, over one connection, the median of each.

Postfix alone, with our milter, with rspamd's proxy as milter, and with our bridge as proxy filter; Postfix throws
the mail away after its queue, so that only taking it is measured.
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

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the kits of the tests

MAILS = Work(300, sessions=1)
ALONE, MILTER, RSPAMD, PROXY = "Postfix alone", "with our milter", "with rspamd's proxy", "with our proxy filter"
_DISCARD = "default_transport = discard:\nrelay_transport = discard:\nmessage_size_limit = 64000000\n"
_TIMES = 3  # in turn; the least counts: what disturbs only ever adds


@contextmanager
def _postfix(port: int, settings: str, back: int) -> Iterator[None]:
    from tests.postfix_kit import Postfix

    services = [f"127.0.0.1:{port} inet n - n - - smtpd"]
    if "smtpd_proxy_filter" in settings:  # what comes back is not filtered again
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
    """For each mail. Empty where there is no Postfix to start."""
    if os.geteuid() != 0 or not Path("/usr/sbin/postfix").exists():
        MISSING["Postfix"] = "Postfix is not installed, or we may not start one"
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
                way = f"smtpd_proxy_filter = 127.0.0.1:{inside}\n"
                settings = way if name == PROXY else f"smtpd_milters = inet:127.0.0.1:{inside}\n"
            stack.enter_context(_postfix(front, settings, back))
            fronts[name] = front
        for _ in range(_TIMES):
            for name, front in fronts.items():
                told = load("smtp", front, MAILS)
                if told["accepted"] != MAILS.mails:
                    raise RuntimeError(f"{name}: {told}")
                found[name] = min(found.get(name, (1e9, 1e9)), latency(told))
    return found


if __name__ == "__main__":
    from peers import build

    build()
    for name, (p50, p99) in measure_all().items():
        print(f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
