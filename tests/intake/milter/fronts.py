"""Postfix and Sendmail, each with listeners whose bridges answer, hang, are slow, or are killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bridge.filter.outcome import Outcome
from bridge.mail.action import Action
from bridge.testing import free_port
from tests.chain import Destination
from tests.intake.milter.milter_kit import OUTCOMES, Seen, forever
from tests.intake.milter.mta_kit import Bridge, Postfix
from tests.requirements import need
from tests.sendmail_kit import Sendmail

SLOW_S = 3.5  # longer than either mail server waits for one answer on the listener "slow"


@dataclass
class Front:
    """`ports`: mx, hung, slow and dead; nothing listens at `dead` until a test starts a bridge there."""

    destination: Destination
    bridge: Bridge
    dead: int
    ports: Mapping[str, int]
    without_us = "451"  # how its own reply begins when we do not answer

    def port(self, listener: str) -> int:
        return self.ports[listener]

    def queue_id(self, reply: str) -> str:
        """The queue id in its reply to the final dot, which must be a success."""
        raise NotImplementedError

    def is_discarded(self, queue_id: str) -> bool:
        """Whether it logged that it discarded this mail, or no longer has it."""
        raise NotImplementedError

    def is_held(self, queue_id: str) -> bool:
        """Whether this mail is in its hold queue."""
        raise NotImplementedError

    def release(self, queue_id: str) -> None:
        """Deliver a mail that was held."""
        raise NotImplementedError


@dataclass
class PostfixFront(Front):
    server: Postfix
    without_us = "451 4.7.1"

    def queue_id(self, reply: str) -> str:
        return _found(r"250 2\.0\.0 Ok: queued as (\w+)", reply)

    def is_discarded(self, queue_id: str) -> bool:
        return bool(self.server.logged(rf"{queue_id}: milter-discard"))

    def is_held(self, queue_id: str) -> bool:
        self.server.logged(rf"{queue_id}: milter-hold: END-OF-MESSAGE")
        return bool(re.search(rf"(?m)^{queue_id}!", self.server.run("postqueue", "-p")))

    def release(self, queue_id: str) -> None:
        self.server.run("postsuper", "-H", queue_id)
        self.server.run("postqueue", "-f")


@dataclass
class SendmailFront(Front):
    server: Sendmail

    def queue_id(self, reply: str) -> str:
        return _found(r"250 2\.0\.0 (\w+) Message accepted for delivery", reply)

    def is_discarded(self, queue_id: str) -> bool:
        return queue_id not in self.server.sendmail("-bp") + self.server.sendmail("-bp", "-qQ")

    def is_held(self, queue_id: str) -> bool:
        listing = self.server.sendmail("-bp", "-qQ")
        return queue_id in listing and "held for review" in listing

    def release(self, queue_id: str) -> None:
        self.server.sendmail("-qQ", f"-qI{queue_id}", "-Q")
        self.server.sendmail(f"-qI{queue_id}")


def _found(pattern: str, reply: str) -> str:
    found = re.fullmatch(pattern, reply)
    assert found, reply
    return found[1]


@contextmanager
def postfix_front() -> Iterator[PostfixFront]:
    need("postfix", root=True)
    with _bridges() as (destination, bridge, milters):
        listeners = {
            name: f"  -o smtpd_milters=inet:127.0.0.1:{port} -o milter_content_timeout={_WAITS_S[name]}s\n"
            for name, port in milters.items()
        }
        with Postfix(listeners, destination) as postfix:
            ports = {name: postfix.port(name) for name in listeners}
            yield PostfixFront(destination, bridge, milters["dead"], ports, postfix)


@contextmanager
def sendmail_front() -> Iterator[SendmailFront]:
    with _bridges() as (destination, bridge, milters):
        ports = {name: free_port() for name in milters}
        lines = ""
        for name, milter in milters.items():
            whole = "2s" if name == "hung" else "5m"  # for the whole decision
            lines += _LISTENER.format(name=name, port=ports[name], milter=milter, wait=_WAITS_S[name], whole=whole)
        with Sendmail(lines, ports.values(), destination.port) as sendmail:
            yield SendmailFront(destination, bridge, milters["dead"], ports, sendmail)


_LISTENER = """\
MAIL_FILTER(`{name}', `S=inet:{milter}@127.0.0.1, F=T, T=C:5s;S:10s;R:{wait}s;E:{whole}')dnl
DAEMON_OPTIONS(`Port={port}, Addr=127.0.0.1, Name={name}, Listen=250, InputMailFilters={name}')dnl
"""
_WAITS_S = {"mx": 30, "hung": 2, "slow": 2, "dead": 30}  # for one answer


@contextmanager
def _bridges() -> Iterator[tuple[Destination, Bridge, dict[str, int]]]:
    with (
        Destination() as destination,
        Bridge() as bridge,
        Bridge(forever, progress_interval_s=1000) as hung,
        Bridge(_slowly, progress_interval_s=0.3) as slow,
    ):
        yield destination, bridge, {"mx": bridge.port, "hung": hung.port, "slow": slow.port, "dead": free_port()}


async def _slowly(seen: Seen) -> Outcome:
    await asyncio.sleep(SLOW_S)
    return OUTCOMES[Action.RELAY]
