"""Core nodes: scans forwarded to other instances of the service (`serviceProviders.core.hosts`).

The API process keeps tokens, limits and the upload; the analysis happens on a node. The least busy
node is asked first. A node that cannot be reached is excluded and probed every few seconds
until it answers again; its mail goes to the next node. That is safe, because an analysis changes
nothing. All nodes share one published configuration, tokens included, and one database: a node with a file of its
own would not learn of changes that this service has accepted. A node says which database it has in each status
answer (`DATABASE_ID`); one with another database prevents the start, and gets no mail if it appears later.

A node that fails after it got a mail may fail because of that mail. So it is excluded only if it also fails to
answer a status request, and a mail on which two nodes failed is undecided: it is not sent to a third.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import httpx2

from bridge.api.request_id import REQUEST_ID
from bridge.api.scanning import STATUS_PATH, SUBMIT_PATH, AnalysisResult, QueueStatus, queue_status_from_json
from bridge.errors import ConfigError
from bridge.runtime import whole_file
from bridge.runtime.lasting import lasting
from bridge.runtime.no_cookies import no_cookies
from bridge.service.abby_settings import Permission
from bridge.service.analysis.decision import unfinished
from bridge.service.analysis.job import AnalysisJob
from bridge.service.responses import Refused
from bridge.service.scanning.admission import RETRY_AFTER_S
from bridge.service.settings import ServiceConfig, Timings
from bridge.service.store import DATABASE_ID

STATUS_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 60.0
MAX_ANSWER = 1024 * 1024
MAX_FAILURES = 2  # nodes that fail on one mail
SEPARATE = "it uses another database, so changes to lists here would have no effect there"

log = logging.getLogger("bridge.service")


@dataclass(slots=True, eq=False)
class CoreNode:
    url: str
    busy: int = 0
    alive: bool = True
    echoes: bool = False  # its answers carry our request id
    reasons: set[str] = field(default_factory=set)  # why it is excluded, as logged
    database: str = ""  # the identity of the database that it uses, if it has told us


class NodeFailed(Exception):
    """This node gave no usable answer; another node may."""


class NodeUnreachable(NodeFailed):
    """The node did not get the mail, or does not accept us."""


class CoreNodes:
    """An `AnalysisBackend` that forwards each job to a node."""

    def __init__(self, config: ServiceConfig, timings: Timings, database: Callable[[], str]) -> None:
        """`database` gives the identity of our own database (`store.identity`)."""
        core = config.abby.serviceProviders.core
        self.nodes = [CoreNode(url) for url in core.hosts]
        self._probe_interval_s = timings.probe_interval_s
        self._authorization = f"Bearer {_token(config)}"
        timeout = httpx2.Timeout(
            core.longRequestTimeout / 1000, connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=None
        )
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        verify = _trust(config)
        self._client = httpx2.AsyncClient(
            cookies=no_cookies(), trust_env=False, verify=verify, timeout=timeout, limits=limits
        )
        self._database = database
        self._probe: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises ConfigError if a node that answers uses a different database from this service."""
        await asyncio.gather(*(self._status(node) for node in self.nodes))
        if separate := [node.url for node in self.nodes if self._is_separate(node)]:
            raise ConfigError(
                f"abby.serviceProviders.core.hosts: {', '.join(separate)}: {SEPARATE}; set `database` to the same "
                "value everywhere: postgresql://..., or an absolute sqlite:////path on one machine"
            )
        self._probe = asyncio.create_task(lasting(self._probe_excluded, "core nodes"), name="core-probe")

    async def stop(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        await self._client.aclose()

    def refusal(self) -> None:
        return None  # each node loads the lists itself

    def limits(self) -> None:
        return None

    @property
    def waiting(self) -> int:
        return 0

    def try_now(self, _job: AnalysisJob) -> AnalysisResult | None:
        return None

    def submit(self, job: AnalysisJob) -> asyncio.Future[AnalysisResult]:
        return asyncio.create_task(self._submit(job))

    async def status(self) -> QueueStatus:
        """The best status of any node: one GREEN node is enough for the next mail."""
        statuses = await asyncio.gather(*(self._status(node) for node in self.nodes))
        best_first = [QueueStatus.GREEN, QueueStatus.YELLOW]
        return next((status for status in best_first if status in statuses), QueueStatus.RED)

    async def _submit(self, job: AnalysisJob) -> AnalysisResult:
        full = False
        failures = 0
        for node in by_preference(self.nodes):
            if failures == MAX_FAILURES:
                break
            if self._is_separate(node):
                continue
            node.busy += 1
            try:
                answer = await self._ask(node, job)
            except NodeUnreachable as exc:
                _mark(node, alive=False, why=str(exc))
                continue
            except NodeFailed as exc:
                log.warning("ggrid=%s core=%s failed on this mail: %s", job.ggrid, node.url, exc)
                if await self._status(node) is QueueStatus.RED:  # it refused the mail and closed the connection
                    full = True
                else:  # excluded by now, if it did not answer the status request either
                    failures += 1
                continue
            finally:
                node.busy -= 1
            _mark(node, alive=True)
            if answer is not None:
                return answer
            full = True
        if failures:
            return unfinished(job, "failed:core")
        if full:
            raise Refused(503, "saturated", "all core nodes are at their limit", retry_after_s=RETRY_AFTER_S)
        raise Refused(502, "core_unavailable", "no core node answered")

    async def _ask(self, node: CoreNode, job: AnalysisJob) -> AnalysisResult | None:
        """The node's answer; None if the node is at its limit. Raises NodeFailed."""
        boundary = secrets.token_hex(16)
        head, tail = _frame(job, boundary)
        headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(len(head) + job.mail.size + len(tail)),
        }
        status, body = await self._post(node, SUBMIT_PATH, headers, _stream(head, job, tail))
        if status == 503:
            return None
        if status in (401, 403):
            raise NodeUnreachable(f"HTTP status {status}")
        if status != 200:
            raise NodeFailed(f"HTTP status {status}")
        try:
            return AnalysisResult.from_json(body)
        except (ValueError, RecursionError):
            raise NodeFailed("malformed answer") from None

    async def _post(
        self, node: CoreNode, path: str, headers: dict[str, str], content: AsyncIterator[bytes] | bytes
    ) -> tuple[int, bytes]:
        """The answer to this very request: a node that does not repeat our request id gets one per connection."""
        request_id = secrets.token_hex(16)
        headers = {
            **headers,
            "Authorization": self._authorization,
            "Accept-Encoding": "identity",  # a small answer must not expand to a large one
            REQUEST_ID: request_id,
        }
        if not node.echoes:
            headers["Connection"] = "close"
        try:
            async with self._client.stream("POST", node.url + path, headers=headers, content=content) as response:
                given = response.headers.get(REQUEST_ID)
                if given != request_id and (given is not None or (node.echoes and response.status_code == 200)):
                    node.echoes = False
                    raise NodeFailed("the answer belongs to another request")
                node.echoes = given is not None
                node.database = response.headers.get(DATABASE_ID, node.database)
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise NodeFailed("the answer is compressed")
                body = bytearray()
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_ANSWER:
                        raise NodeFailed(f"answer larger than {MAX_ANSWER} bytes")
                return response.status_code, bytes(body)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL) as exc:
            raise NodeUnreachable(_reason(exc)) from exc
        except httpx2.HTTPError as exc:
            raise NodeFailed(_reason(exc)) from exc

    async def _status(self, node: CoreNode) -> QueueStatus | None:
        """The node's own status; None if it does not answer, and the node is then excluded."""
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                status, body = await self._post(node, STATUS_PATH, {}, b"")
            if status != 200:
                raise NodeFailed(f"HTTP status {status}")
            found = queue_status_from_json(body)
            if self._is_separate(node):
                raise NodeFailed(SEPARATE)
        except (NodeFailed, TimeoutError, ValueError, RecursionError) as exc:
            _mark(node, alive=False, why=str(exc) or "no answer")
            return None
        _mark(node, alive=True)
        return found

    def _is_separate(self, node: CoreNode) -> bool:
        ours = self._database()
        return bool(node.database and ours) and node.database != ours

    async def _probe_excluded(self) -> None:
        while True:
            await asyncio.sleep(self._probe_interval_s)
            await asyncio.gather(*(self._status(node) for node in self.nodes if not node.alive))


def by_preference(nodes: Sequence[CoreNode]) -> list[CoreNode]:
    """The least busy first; excluded nodes last, as a final attempt."""
    return sorted(nodes, key=lambda node: (not node.alive, node.busy))


def _mark(node: CoreNode, *, alive: bool, why: str = "") -> None:
    """Log each change once, not per mail or probe."""
    if alive:
        if not node.alive:
            log.info("core=%s is answering again", node.url)
        node.reasons.clear()
    elif why not in node.reasons:
        log.warning("core=%s excluded: %s", node.url, why)
        node.reasons.add(why)
    node.alive = alive


def _reason(exc: BaseException) -> str:
    """What is wrong with a certificate, or the type of another error."""
    found: BaseException | None = exc
    while found is not None:
        if isinstance(found, ssl.SSLCertVerificationError):
            return _certificate_problem(found)
        if isinstance(found, ssl.SSLError):
            return f"TLS failed: {found.reason or type(found).__name__}"
        found = found.__cause__ or found.__context__
    return type(exc).__name__


def _certificate_problem(exc: ssl.SSLCertVerificationError) -> str:
    text = exc.verify_message or "not valid"
    match exc.verify_code:
        case 10:  # X509_V_ERR_CERT_HAS_EXPIRED
            return f"its certificate has expired ({text}); renew it on the node"
        case 62 | 64:  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            return f"its certificate is for another name ({text}); use that name in hosts, or another certificate"
        case 18 | 19 | 20 | 21:  # self-signed, or an issuer that is not in our file
            return f"its certificate has an unknown issuer ({text}); set caFile to the issuer's certificate"
        case _:
            return f"its certificate is not valid ({text})"


def _frame(job: AnalysisJob, boundary: str) -> tuple[bytes, bytes]:
    """The parts of the multipart body before and after the mail."""
    line = b"--" + boundary.encode() + b"\r\n"
    head = (
        line
        + b'Content-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
        + job.request.to_json()
        + b"\r\n"
        + line
        + b'Content-Disposition: form-data; name="email"; filename="mail.eml"\r\nContent-Type: message/rfc822\r\n\r\n'
    )
    return head, b"\r\n--" + boundary.encode() + b"--\r\n"


async def _stream(head: bytes, job: AnalysisJob, tail: bytes) -> AsyncIterator[bytes]:
    yield head
    for chunk in job.mail.chunks():
        yield chunk
    yield tail


def _token(config: ServiceConfig) -> str:
    for token in config.abby.staticApiTokens:
        if not token.permissions or {Permission.SCAN, Permission.STATUS} <= set(token.permissions):
            return token.secrets[0]
    raise ConfigError(
        "abby.staticApiTokens: core hosts need a token with the scan and status permissions; add one, or remove "
        "abby.serviceProviders.core.hosts"
    )


def _trust(config: ServiceConfig) -> ssl.SSLContext:
    core = config.abby.serviceProviders.core
    try:
        if core.ca_path:
            whole_file.refuse_endless(core.ca_path)
        return ssl.create_default_context(cafile=core.ca_path)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"abby.serviceProviders.core.caFile: cannot load certificates from {core.caFile}: "
            f"{exc.strerror or type(exc).__name__}"
        ) from exc
