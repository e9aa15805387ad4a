"""The test mail: is it the host that fails, or the mail?

If a host fails after it received some of a mail, the mail itself may be the cause, and its sender can send more
of them. Such a failure alone therefore says nothing about the host: a test mail (`probe_mail.py`), or other mail
that the host has decided on since, shows whether it works. A mail that comes close to its deadline is settled in
the same way. If the host works, the failure belongs to the mail (`ScanFailed`). If this is wrong, one sender can
close the scanner for everyone, or have a mail delivered because it breaks the scanner.
"""

from __future__ import annotations

import asyncio
import math

from bridge.errors import MessageTooLarge, Saturated, ScanError, ScanFailed, ScanRefused, ScanTimeout
from bridge.runtime.value import value
from bridge.scanner.answers import BadGateway
from bridge.scanner.circuit import Event
from bridge.scanner.exchange import Exchange, Lost, NotReached
from bridge.scanner.host import Host
from bridge.scanner.http import DeadlinePassed
from bridge.scanner.probe_mail import probe_mail
from bridge.scanner.requests import Request, Submission


@value
class Attempt:
    """A mail that is sent to a host, with what was known about the host before."""

    host: Host
    began: float
    was_broken: bool  # the host was known not to work
    was_silent: bool  # it did not answer status requests

    @property
    def host_is_down(self) -> bool:
        """Whether a host that did not answer in time is known not to work, whatever the mail.

        It failed on the test mail, or it was known to be down before it got the mail. If nothing is known, the mail may
        be the reason: the host may be quiet, or busy with other slow mail from the same sender.
        """
        host = self.host
        check = host.check
        works = None
        if check is not None and host.checked_at >= self.began and check.done() and not check.cancelled():
            works = check.result()
        return works is False or (works is None and (self.was_broken or (self.was_silent and host.silent)))


@value
class Doubt:
    """A host got some of a mail and gave no decision."""

    attempt: Attempt
    error: ScanError


class Trials:
    """Sends hosts the test mail, to each host one at a time."""

    def __init__(self, exchange: Exchange, limit_s: float) -> None:
        self._exchange = exchange
        self._limit_s = limit_s  # for one test mail

    def start(self, host: Host, tenant: str | None, limit_s: float = math.inf) -> None:
        if host.check is None or host.check.done():
            host.probe_tenant = tenant
            host.checked_at = asyncio.get_running_loop().time()
            host.check = asyncio.create_task(self._works(host, tenant, min(self._limit_s, limit_s)))

    def start_if_slow(self, host: Host, request: Request, since: float, limit_s: float) -> None:
        """A mail comes close to its deadline: is the host the reason, or the mail?"""
        if host.decided_since <= since:
            self.start(host, request.tenant_uid, limit_s)

    async def blame(self, doubt: Doubt, deadline: float) -> ScanError:
        """The host's error if it fails on all mail, ScanFailed if the mail may be the cause."""
        attempt, error = doubt.attempt, doubt.error
        works = True if attempt.host.decided_since > attempt.began else await _result(attempt.host.check, deadline)
        if isinstance(error, Lost | BadGateway):
            # After a mail that ends the scanner's process, the host does not work, but it did before.
            return error if attempt.was_broken and works is not True else ScanFailed(str(error))
        if works is None and attempt.host.checked_at < attempt.began:  # the test mail for an earlier mail is unanswered
            self.start(attempt.host, attempt.host.probe_tenant)
            works = await _result(attempt.host.check, deadline)
        return error if works is False else ScanFailed(str(error))

    async def _works(self, host: Host, tenant: str | None, timeout_s: float) -> bool | None:
        """Whether the host decides on the test mail; None if that is not known in time."""
        try:
            await self.scan(host, tenant, timeout_s)
        except (ScanTimeout, Saturated):
            return None
        except (ScanRefused, MessageTooLarge) as exc:
            host.is_broken = True
            host.failed(exc)
            return False
        except (NotReached, ScanError) as exc:
            host.is_broken = True
            host.failed(exc)
            event = Event.UNREACHABLE if isinstance(exc, NotReached) else Event.FAILURE
            host.learn(event, asyncio.get_running_loop().time())
            return False
        return True

    async def scan(self, host: Host, tenant: str | None, timeout_s: float) -> None:
        """Have the host decide on the test mail, as it would on any mail. Raises ScanError, Saturated, NotReached."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        request, message = probe_mail(tenant)
        answer = None
        try:
            answer = await self._exchange.ask(host, Submission(request, message, b""), began + timeout_s)
        except DeadlinePassed as exc:
            if exc.late is not None:
                exc.late.abandon()
        finally:
            message.close()
        if answer is None:  # raised here: an error that another one caused would keep this frame, and the mail
            raise ScanTimeout(f"{host.url}: no decision on the test mail in time")
        host.result_of(answer, loop.time(), began)


async def _result(check: asyncio.Task[bool | None] | None, deadline: float) -> bool | None:
    """Of a test mail that was sent, if it is known before the deadline."""
    if check is None:
        return None
    await asyncio.wait({check}, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    return check.result() if check.done() and not check.cancelled() else None
