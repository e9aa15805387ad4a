"""One request to one host: over an idle connection if there is one, and once more over a new one.

A server may close an idle connection at the moment we write to it, so a request that got no answer there is sent
again. A new connection has no earlier request whose answer could be taken for this one's. Knows nothing of other
hosts, and draws no conclusion about this one. If this is wrong, a mail gets the decision on another one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from enum import Enum, auto
from functools import cached_property, partial

from bridge.api.scanning import QueueStatus
from bridge.errors import Saturated, ScanMalformed, ScanTimeout, ScanUnavailable
from bridge.runtime import shortage
from bridge.runtime.reason import is_not_tls, reason
from bridge.scanner.circuit import Event
from bridge.scanner.host import Host
from bridge.scanner.http import (
    Answer,
    AnswerTooLarge,
    ConnectionLost,
    DeadlinePassed,
    ScannerConnection,
    WrongAnswer,
)
from bridge.scanner.requests import STATUS, Request, new_id

log = logging.getLogger(__name__)

_SLOW_LEAD = 1.1  # times what a test mail may take: how long before its deadline a mail counts as slow
_MAX_STEPS = 4  # requests until a host to which we must first introduce ourselves reports its status

# Called with the time at which the request began, and with how long a test mail may take.
OnSlow = Callable[[Host, Request, float, float], None]


class Obstacle(Enum):
    """What prevents a connection, in so far as operators respond to it differently."""

    WRONG_NAME = auto()  # the certificate is for another name
    EXPIRED = auto()
    UNTRUSTED = auto()  # any other problem with the certificate
    NOT_TLS = auto()
    REFUSED = auto()  # nothing listens there
    OTHER = auto()


# OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_OF_CERTIFICATE = {10: Obstacle.EXPIRED, 62: Obstacle.WRONG_NAME, 64: Obstacle.WRONG_NAME}


class NotReached(Exception):
    """No connection to this host: another host may be tried. `was_sent`: an earlier one was lost with the mail."""

    was_sent = False

    def __init__(self, text: str, obstacle: Obstacle = Obstacle.OTHER) -> None:
        super().__init__(text)
        self.obstacle = obstacle


class HostNotReached(ScanUnavailable):
    """The same, as the error of a mail."""

    def __init__(self, host: Host, cause: NotReached) -> None:
        super().__init__(f"{host.url}: {cause}")
        self.obstacle = cause.obstacle


class Lost(ScanUnavailable):
    """The connection was lost while the mail was sent, or after that. `answered`: part of an answer had arrived."""

    def __init__(self, text: str, sent_whole: bool, answered: bool = False) -> None:
        super().__init__(text)
        self.sent_whole = sent_whole
        self.answered = answered


class Exchange:
    """Requests and their answers."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Python 3.11: get_running_loop makes a system call (getpid) each time."""
        return asyncio.get_running_loop()

    async def ask(self, host: Host, request: Request, deadline: float, on_slow: OnSlow | None = None) -> Answer:
        """Raises NotReached, DeadlinePassed, ScanError, Saturated."""
        again = renewed = False
        try:
            while True:
                now = self._loop.time()
                if now >= deadline:
                    raise DeadlinePassed(None)
                if not host.dialect.is_ready and request is not STATUS:
                    await self._introduce(host, deadline)
                request_id = new_id()
                content = request.to(host, request_id)  # may raise, so before a connection is taken
                connection = None if again else host.take_idle(now)
                reused = connection is not None
                if connection is None:
                    connection = await self._connect(host, deadline)
                trial_s = min(self._connect_timeout_s, (deadline - now) / 2)
                when_slow = partial(on_slow, host, request, now, trial_s) if on_slow is not None else None
                slow_at = deadline - trial_s * _SLOW_LEAD
                waiting = connection.ask(content, deadline, request_id, slow_at, when_slow)
                try:
                    answer = await waiting
                except (WrongAnswer, ConnectionLost, AnswerTooLarge) as exc:
                    _check_may_repeat(exc, host, reused)
                except DeadlinePassed:
                    raise
                except BaseException:  # cancelled midway: the connection cannot be used again
                    connection.close()
                    raise
                else:
                    if self._is_for_us(answer, host, connection, reused):
                        if answer.status < 400 or renewed or not host.dialect.has_forgotten_us(answer):
                            return answer
                        renewed = True
                finally:
                    connection.forget(waiting)
                    del waiting  # breaks a reference cycle: it holds the error, whose traceback holds this frame
                again = True
        except NotReached as exc:
            exc.was_sent = again  # the server closed the idle connection, or crashed on the request
            raise

    def _is_for_us(self, answer: Answer, host: Host, connection: ScannerConnection, reused: bool) -> bool:
        """False if it may belong to an earlier request over this connection, which is then closed."""
        if reused and host.echoes and not answer.is_tied:
            log.warning("scanner %s answered without the request id; connection closed", host.url)
            connection.close()
            return False
        host.give_back(connection, self._loop.time())
        return True

    async def _connect(self, host: Host, deadline: float) -> ScannerConnection:
        limit = self._loop.time() + self._connect_timeout_s
        try:
            async with asyncio.timeout_at(min(limit, deadline)):
                return await host.connect(self._connect_timeout_s)
        except ssl.SSLCertVerificationError as exc:
            obstacle = _OF_CERTIFICATE.get(exc.verify_code, Obstacle.UNTRUSTED)
            raise NotReached(f"its certificate is not valid: {exc.verify_message}", obstacle) from exc
        except TimeoutError:
            if deadline < limit:
                raise DeadlinePassed(None) from None
            raise NotReached("no connection in time") from None
        except (OSError, ssl.SSLError) as exc:
            if shortage.is_ours(exc):  # the scanner is not to blame: mail must not pass as if it were down
                raise Saturated(f"no file descriptors, memory or threads for the scanner: {reason(exc)}") from exc
            raise NotReached(reason(exc) or type(exc).__name__, _obstacle(exc)) from exc

    async def status(self, host: Host, timeout_s: float) -> QueueStatus:
        """Request the status of a host, and note whether it answers. Raises ScanError, Saturated."""
        deadline = self._loop.time() + timeout_s
        try:
            async with host.asking(deadline):
                status = await self._ask_status(host, deadline)
        except DeadlinePassed as exc:
            if exc.late is not None:
                exc.late.abandon()
            host.did_not_answer(self._loop.time())
            raise ScanTimeout(f"{host.url}: no status in time") from None
        except NotReached as exc:
            host.did_not_answer(self._loop.time())
            host.learn(Event.UNREACHABLE, self._loop.time())
            raise HostNotReached(host, exc) from exc
        host.learn(Event.STATUS, self._loop.time())
        return status

    async def _ask_status(self, host: Host, deadline: float) -> QueueStatus:
        """Raises NotReached, DeadlinePassed, ScanError, Saturated. The caller holds `host.asking`."""
        for _ in range(_MAX_STEPS):
            answer = await self.ask(host, STATUS, deadline)
            host.echoes = answer.is_tied  # the service may have been replaced by one that does not know our id
            host.answered(self._loop.time())
            host.date = answer.headers.get(b"date", b"")
            status = host.dialect.read_status(answer)
            if status is not None:
                return status
        raise ScanMalformed(f"{host.url}: the scanner did not complete the registration")

    async def _introduce(self, host: Host, deadline: float) -> None:
        """Ask for the status, after which the host knows us. One mail does so for all that wait. Raises the same."""
        try:
            async with host.asking(deadline):
                if not host.dialect.is_ready:
                    await self._ask_status(host, deadline)
        except DeadlinePassed as exc:
            if exc.late is not None:  # an answer to the introduction is not an answer to the mail
                exc.late.abandon()
            raise DeadlinePassed(None) from None


def _obstacle(exc: OSError) -> Obstacle:
    if isinstance(exc, ConnectionRefusedError):
        return Obstacle.REFUSED
    return Obstacle.NOT_TLS if is_not_tls(exc) else Obstacle.OTHER


def _check_may_repeat(error: WrongAnswer | ConnectionLost | AnswerTooLarge, host: Host, reused: bool) -> None:
    """Returns if a reused connection was most likely closed before the request was read, or has got out of step.

    Raises ScanError.
    """
    match error:
        case WrongAnswer():
            log.warning("scanner %s sent the answer to a different request; connection closed", host.url)
            if not reused:
                raise ScanMalformed(f"{host.url}: the answer belongs to another request") from None
        case ConnectionLost():
            if not reused or error.answered:
                raise Lost(f"{host.url}: {error}", error.sent_whole, error.answered) from error
        case AnswerTooLarge():
            raise ScanMalformed(f"{host.url}: the answer is too large") from error
