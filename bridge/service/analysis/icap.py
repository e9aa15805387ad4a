"""ICAP (RFC 3507): the parts of a mail are sent to a malware scanner, one object at a time.

The server's OPTIONS say which method it offers, how much of an object it wants to see first (the preview), and whether
it answers 204 for an object that it does not change. Objects are sent as if they were answers of a web server
(RESPMOD) or uploads to one (REQMOD). 204 means clean. So does an object that comes back unchanged; one that comes back
changed was replaced by a page about what was found, which header fields usually name; not all servers send them.
A server may call an object clean after the preview that it asked for; once more is sent, only after all of it.
If this file is wrong, malware counts as clean, so an unclear answer does not count as an answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from bridge.errors import ConfigError
from bridge.service.analysis.connections import BadAnswer, Connection, Connections, Opening, as_it_is, counted
from bridge.service.analysis.engine import Findings, LimitReached, Mail, as_tag
from bridge.service.analysis.parts import MailPart
from bridge.service.analysis.tls_connection import tls_opening
from bridge.service.engine_settings import Icap

MAX_HEADER = 64 * 1024  # of an answer, and of the HTTP message in it
MAX_FIELDS = 200
MAX_PAGE = 1024 * 1024  # what a server sends instead of an object
MAX_PREVIEW = 64 * 1024
TINY, MAX_TINY_CHUNKS = 256, 1000  # chunks of fewer bytes, which cost more time than they carry
PER_MAIL = 4  # objects of one mail at the same time, so that a mail with hundreds does not delay all others
OPTIONS_S = 300.0  # for which the options of a server are valid if it does not say; at most an hour
MAX_OPTIONS_S = 3600.0
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_STATUS = re.compile(rb"(?:ICAP|HTTP)/\d\.\d (\d{3})(?: .*)?")
_LAST = b"0\r\n\r\n"
_NOTHING = {"", "no", "none", "no-virus", "no-threats", "clean"}  # X-Virus-ID of a clean object
_KINDS = {"1": "icap:policy", "2": "icap:container"}  # X-Infection-Found: Type


@dataclass(frozen=True, slots=True)
class Options:
    method: str
    preview: int | None
    allows_204: bool
    until: float  # of `time.monotonic`


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, without the body of the object in it."""

    status: int
    fields: dict[str, list[str]]  # names in lower case
    http_status: int = 0  # of the object that came back
    digest: str = ""
    is_early: bool = False  # an answer neither to the preview nor to the whole object

    def first(self, name: str) -> str:
        return self.fields.get(name, [""])[0]


def opening_of(settings: Icap) -> Opening:
    """Raises ConfigError."""
    if not settings.is_encrypted:
        return as_it_is
    try:
        return tls_opening(settings.ca_path, settings.address.host)
    except OSError as exc:
        raise ConfigError(f"analyzers.icap.ca_file: cannot be used: {exc.strerror or type(exc).__name__}") from exc


class IcapAnalyzer:
    def __init__(self, settings: Icap) -> None:
        """Raises ConfigError."""
        self._settings = settings
        self._url = settings.url.replace("icaps:", "icap:", 1)  # the scheme of RFC 3507, and behind a TLS proxy
        self._host = urlsplit(settings.url).netloc
        self._connections = Connections(settings.address, settings.connections, settings.timeout, opening_of(settings))
        self._known: Options | None = None
        self._asking = asyncio.Lock()

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        return None

    async def analyze(self, mail: Mail) -> Findings:
        parts = mail.parts()
        if len(parts) > self._settings.max_objects:
            raise LimitReached("objects")
        wanted = [part for part in parts if part.size <= self._settings.max_size]
        tags, problem = await self._scan_all(wanted)
        if tags:
            return Findings(tags)  # whatever happened to the other objects
        if problem is not None:
            raise problem
        if len(wanted) < len(parts) or not parts.is_complete:
            raise LimitReached("size")
        return Findings()

    async def _scan_all(self, parts: list[MailPart]) -> tuple[frozenset[str], BaseException | None]:
        """What was found in time, and why something is missing."""
        turns = asyncio.Semaphore(PER_MAIL)
        tasks = [asyncio.create_task(self._scan(part, turns)) for part in parts]
        try:
            _, late = await asyncio.wait(tasks, timeout=self._settings.timeout) if tasks else ([], set())
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        tags = frozenset().union(*(found for found in results if isinstance(found, frozenset)))
        problems = [found for found in results if isinstance(found, BaseException)]
        return tags, TimeoutError() if late else problems[0] if problems else None

    async def _options(self) -> Options:
        async with self._asking:  # once for all objects that wait for it
            if self._known is None or self._known.until <= time.monotonic():
                response = await self._exchange(self._head("OPTIONS", []) + b"\r\n")
                self._known = read_options(response, time.monotonic())
            return self._known

    async def _scan(self, part: MailPart, turns: asyncio.Semaphore) -> frozenset[str]:
        async with turns:
            options = await self._options()
            try:
                response = await self._exchange(self._request(part, options), part, options)
            except Exception:
                self._known = None  # it may be another server by now
                raise
            return findings(response, part.sha256)

    async def _exchange(self, head: bytes, part: MailPart | None = None, options: Options | None = None) -> Response:
        async with self._connections.one() as connection:
            return await _ask(connection, head, part, options)

    def _request(self, part: MailPart, options: Options) -> bytes:
        """The header of the request, and those of the HTTP message in it."""
        name = quote(min(part.names, default="part"), safe="", errors="replace")[:200]
        url = f"http://mail.invalid/{name}"
        kind = part.content_type if re.fullmatch(r"[\w.+-]+/[\w.+-]+", part.content_type, re.ASCII) else ""
        entity = f"Content-Type: {kind or 'application/octet-stream'}\r\nContent-Length: {part.size}\r\n\r\n"
        if options.method == "RESPMOD":
            asked = f"GET {url} HTTP/1.1\r\nHost: mail.invalid\r\n\r\n"
            messages = asked + f"HTTP/1.1 200 OK\r\n{entity}"
            places = f"req-hdr=0, res-hdr={len(asked)}, res-body={len(messages)}"
        else:
            messages = f"POST {url} HTTP/1.1\r\nHost: mail.invalid\r\n{entity}"
            places = f"req-hdr=0, req-body={len(messages)}"
        fields = [f"Encapsulated: {places}"]
        if options.allows_204:
            fields.append("Allow: 204")
        if options.preview is not None:
            fields.append(f"Preview: {min(options.preview, part.size)}")
        return self._head(options.method, fields) + b"\r\n" + messages.encode()

    def _head(self, method: str, fields: list[str]) -> bytes:
        lines = [
            f"{method} {self._url} ICAP/1.0",
            f"Host: {self._host}",
            "User-Agent: scanbridge",
            "Connection: close",
            *fields,
        ]
        return "\r\n".join([*lines, ""]).encode()


async def _ask(connection: Connection, head: bytes, part: MailPart | None, options: Options | None) -> Response:
    """Send one request and read its answer; after a preview, send the rest if the server asks for it."""
    connection.allow(2 * MAX_HEADER + MAX_PAGE + 2 * (part.size if part else 0))
    if part is None or options is None:
        return await connection.answer(connection.send(head), _response(connection))
    if options.preview is None:
        return await _ask_about_all(connection, head, part, 0)
    count = min(options.preview, part.size)
    beginning = _beginning(part, count)
    end = b"0; ieof\r\n\r\n" if count == part.size else _LAST
    preview = head + (b"%x\r\n%b\r\n" % (count, beginning) if count else b"") + end
    await connection.send(preview)
    response = await _response(connection)
    if response.status != 100:
        return response
    if count == part.size:
        raise BadAnswer("asked for more after the whole object was sent")
    return await _ask_about_all(connection, b"", part, count)


async def _ask_about_all(connection: Connection, head: bytes, part: MailPart, skip: int) -> Response:
    response = await connection.answer(_send_all(connection, head, part, skip), _response(connection))
    return replace(response, is_early=not connection.has_sent_all)


def _beginning(part: MailPart, count: int) -> bytes:
    found = b""
    for chunk in part.chunks():
        found += chunk[: count - len(found)]
        if len(found) >= count:
            break
    return found


async def _send_all(connection: Connection, head: bytes, part: MailPart, skip: int) -> None:
    """The object from `skip` on, in chunks."""
    if head:
        await connection.send(head)
    for chunk in part.chunks():
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        rest = chunk[skip:]
        skip = 0
        await connection.send(b"%x\r\n%b\r\n" % (len(rest), rest))
    await connection.send(_LAST)


async def _response(connection: Connection) -> Response:
    """Raises BadAnswer."""
    status = _status(await connection.line())
    fields = await _fields(connection)
    response = Response(status, fields)
    if status == 100:
        return response
    if status == 200 and (places := response.first("encapsulated")):
        response = await _with_object(connection, response, places)
    return response


def _status(line: bytes) -> int:
    match = _STATUS.fullmatch(line)
    if not match:
        raise BadAnswer("no status line")
    return int(match.group(1))


async def _fields(connection: Connection) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    size = count = 0
    last = ""
    while line := await connection.line():
        size, count = size + len(line), count + 1
        if size > MAX_HEADER or count > MAX_FIELDS:
            raise BadAnswer("the response header is too long")
        text = line.decode("utf-8", "replace")
        if line[:1] in (b" ", b"\t"):  # a continuation, as in X-Violations-Found
            if not last:
                raise BadAnswer("a line in the response header is not a header field")
            found[last][-1] += "\n" + text.strip()
            continue
        name, colon, value = text.partition(":")
        if not colon:
            raise BadAnswer("a line in the response header is not a header field")
        last = name.strip().lower()
        found.setdefault(last, []).append(value.strip())
    return found


async def _with_object(connection: Connection, response: Response, places: str) -> Response:
    """Read the HTTP message in the answer."""
    at: dict[str, int] = {}
    for entry in places.split(","):
        name, _, value = entry.strip().partition("=")
        if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) > 2 * MAX_HEADER:
            raise BadAnswer("Encapsulated is malformed")
        at[name.lower()] = int(value)
    kinds = [name for name in at if name.endswith("-body")]
    if len(kinds) != 1:
        raise BadAnswer("Encapsulated is malformed")
    head = b"".join([piece async for piece in connection.exactly(at[kinds[0]])])
    status = 0
    if "res-hdr" in at:
        status = _status(head[at["res-hdr"] :].partition(b"\n")[0].removesuffix(b"\r"))
    digest = hashlib.sha256()
    if kinds[0] in ("res-body", "req-body"):
        async for piece in _chunked(connection):
            digest.update(piece)
    return Response(response.status, response.fields, status, digest.hexdigest())


async def _chunked(connection: Connection) -> AsyncIterator[bytes]:
    count = total = 0
    while True:
        line = await connection.line()
        match = _CHUNK_SIZE.fullmatch(line)
        if not match:
            raise BadAnswer("a chunk is malformed")
        size = int(match.group(1), 16)
        if not size:
            await _fields(connection)  # the trailer
            return
        count, total = count + 1, total + size
        if count > MAX_TINY_CHUNKS + total // TINY:
            raise BadAnswer("too many small chunks")
        async for piece in connection.exactly(size):
            yield piece
        if await connection.line():
            raise BadAnswer("a chunk is malformed")


def read_options(response: Response, now: float) -> Options:
    """Raises BadAnswer."""
    if response.status != 200:
        raise BadAnswer(f"OPTIONS: status {response.status}")
    methods = {method.strip().upper() for value in response.fields.get("methods", []) for method in value.split(",")}
    method = next((method for method in ("RESPMOD", "REQMOD") if method in methods), None)
    if method is None:
        raise BadAnswer("the service offers neither RESPMOD nor REQMOD")
    preview, ttl = response.first("preview"), response.first("options-ttl")
    valid_s = min(float(ttl), MAX_OPTIONS_S) if re.fullmatch(r"[0-9]{1,9}", ttl) else OPTIONS_S
    return Options(
        method,
        min(int(preview), MAX_PREVIEW) if re.fullmatch(r"[0-9]{1,9}", preview) else None,
        "204" in [value.strip() for value in response.first("allow").split(",")],
        now + max(valid_s, 1.0),
    )


def findings(response: Response, sent: str) -> frozenset[str]:
    """Tags of what the server found in an object whose digest is `sent`. Raises BadAnswer."""
    tags = _found(response, sent)
    return counted(Findings(tags), not response.is_early, is_bad=bool(tags)).tags


def _found(response: Response, sent: str) -> frozenset[str]:
    if response.status == 204:
        return frozenset(_named(response))
    if response.status != 200:
        raise BadAnswer(f"status {response.status}")
    if tags := _named(response):
        return frozenset(tags)
    if not response.first("encapsulated"):
        raise BadAnswer("200 without an object")
    unchanged = response.digest == sent and response.http_status in (0, 200)
    return frozenset() if unchanged else frozenset({"icap:blocked"})


def _named(response: Response) -> set[str]:
    """What header fields say."""
    found: set[str] = set()
    for value in response.fields.get("x-infection-found", []):
        fields = {name.strip(): text.strip() for name, _, text in (field.partition("=") for field in value.split(";"))}
        found.add(_KINDS.get(fields.get("Type", "")) or _threat(fields.get("Threat", "")))
    for value in response.fields.get("x-virus-id", []):
        if as_tag(value) not in _NOTHING:
            found.add(_threat(value))
    if not found:
        found |= _violations(response.first("x-violations-found"))
    if response.first("x-blocked").lower() in ("1", "true", "yes"):
        found.add("icap:blocked")
    return found


def _violations(value: str) -> set[str]:
    """A count, then four lines for each: the file, the threat, its number, and what was done."""
    lines = value.split("\n")
    if lines[0].strip() in ("", "0"):
        return set()
    return {_threat(line) for line in lines[2::4] if line.strip()} or {"icap:blocked"}


def _threat(name: str) -> str:
    """What clamd says about a file that it could not scan completely is not malware."""
    tag = as_tag(name)
    if "limits.exceeded" in tag or tag.startswith("heuristics.encrypted"):
        return "icap:container"
    return f"malware:{tag or 'icap'}"
