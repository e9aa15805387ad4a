"""The body of submitEmail: a multipart stream into `parameters` and one stored mail.

python-multipart's low-level parser walks the stream; the mail goes to a spool as it comes (memory
while small, an unlinked file above), so one copy of it exists. Everything is bounded: the mail,
the parameters, the whole body, and the time between two pieces of it. Every refusal is a
`Refused` with the status and the Error object the client reads.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from uuid import UUID

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, BorderMtaData
from bridge.errors import Saturated
from bridge.mail.message import Message, Spool
from bridge.service.analysis.structure import Buffer
from bridge.service.responses import Refused

MAX_PARAMETERS_BYTES = 1024 * 1024
MAX_OVERHEAD_BYTES = 256 * 1024  # delimiters, part headers, parts nobody asked for
MAX_BODY_BYTES = MAX_MESSAGE_BYTES + MAX_PARAMETERS_BYTES + MAX_OVERHEAD_BYTES
MAX_PARTS = 16
IDLE_S = 60.0  # silence within an upload
MIN_RATE = 1024  # bytes per second over the whole upload, after IDLE_S

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every malformed body of a stranger


class StoredMail(Message):
    """A mail in the spool that can be looked at as one buffer."""

    __slots__ = ()

    def content(self) -> bytes:
        """All of it as bytes: for small mail."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self.chunks())

    @property
    def descriptor(self) -> int | None:
        """The file it lies in, when it is not in memory."""
        return self._file

    @contextmanager
    def view(self) -> Iterator[Buffer]:
        """All of it without a copy when it lies in a file."""
        if self._file is None:
            yield self.content()
            return
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped


class Upload:
    """One request's body on its way in. `read` it, use `request` and `mail`, then `close` it."""

    def __init__(self, spool: Spool) -> None:
        self.mail = StoredMail(spool)
        self._parameters: bytearray | None = None
        self._has_mail = False
        self._headers: list[tuple[bytearray, bytearray]] = []
        self._parts = 0
        self._begun = False
        self._sink: str = ""
        self._finished = False
        self._size = 0

    def close(self) -> None:
        self.mail.close()

    async def read(self, receive: Receive, content_type: bytes) -> AnalysisRequest:
        """Take in the whole body. Raises Refused."""
        parser = MultipartParser(_boundary(content_type), self._callbacks())
        try:
            await self._pump(receive, parser)
        except FormParserError:
            raise Refused(400, "invalid_multipart", "the body is not well-formed multipart/form-data") from None
        except Saturated:
            raise Refused(503, "saturated", "too much mail in processing", retry_after_s=1) from None
        except OSError:
            raise Refused(507, "storage_full", "the mail cannot be stored now") from None
        return self._complete()

    async def _pump(self, receive: Receive, parser: MultipartParser) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    event = await receive()
            except TimeoutError:
                raise Refused(408, "upload_timeout", "the upload stopped") from None
            if event["type"] == "http.disconnect":
                raise Disconnected
            chunk = event.get("body", b"")
            if chunk:
                self._take(chunk, parser)
            if not event.get("more_body", False):
                return
            elapsed = loop.time() - start
            if elapsed > IDLE_S and self._size < elapsed * MIN_RATE:
                raise Refused(408, "upload_timeout", "the upload is too slow")

    def _take(self, chunk: bytes, parser: MultipartParser) -> None:
        self._size += len(chunk)
        if self._size > MAX_BODY_BYTES:
            raise too_large()
        if not self._begun:
            chunk = chunk.lstrip(b"\r\n")  # behind an empty line the parser skips text, but only to the chunk's end
            self._begun = bool(chunk)
        parser.write(chunk)

    def _complete(self) -> AnalysisRequest:
        if not self._finished:
            raise Refused(400, "invalid_multipart", "the body ends before its last delimiter")
        if self._parameters is None:
            raise Refused(400, "missing_part", "the part `parameters` is missing")
        if not self._has_mail:
            raise Refused(400, "missing_part", "the part `email` is missing")
        return parse_parameters(bytes(self._parameters))

    # What the parser calls. A chunk may end anywhere, also within a header.

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_begin": self._on_header_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._headers = []
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise Refused(400, "invalid_multipart", "there are too many parts")

    def _on_header_begin(self) -> None:
        self._headers.append((bytearray(), bytearray()))

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][0].extend(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][1].extend(data[start:end])

    def _on_headers_finished(self) -> None:
        headers = {bytes(name).lower(): bytes(value) for name, value in self._headers}
        disposition, options = _options(headers.get(b"content-disposition", b""))
        self._sink = options.get(b"name", b"").decode("utf-8", "replace") if disposition == b"form-data" else ""
        if self._sink == "parameters":
            if self._parameters is not None:
                raise Refused(400, "duplicate_part", "the part `parameters` is there twice")
            if not is_json(headers.get(b"content-type", b"")):
                raise Refused(415, "parameters_not_json", "the part `parameters` must be of type application/json")
            self._parameters = bytearray()
        elif self._sink == "email":
            if self._has_mail:
                raise Refused(400, "duplicate_part", "the part `email` is there twice")
            self._has_mail = True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._sink == "email":
            if self.mail.size + end - start > MAX_MESSAGE_BYTES:
                raise too_large()
            self.mail.write(bytes(memoryview(data)[start:end]))
        elif self._sink == "parameters" and self._parameters is not None:
            if len(self._parameters) + end - start > MAX_PARAMETERS_BYTES:
                raise Refused(400, "parameters_too_large", "the part `parameters` is over 1 MiB")
            self._parameters.extend(data[start:end])

    def _on_end(self) -> None:
        self._finished = True


class Disconnected(Exception):
    """The client went away; nobody reads an answer."""


def too_large() -> Refused:
    return Refused(413, "payload_too_large", "the e-mail is larger than 50 MiB")


@lru_cache(maxsize=256)  # a client sends the same few values with every mail
def _options(value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    kind, options = parse_options_header(value)
    return bytes(kind), dict(options)


def _boundary(content_type: bytes) -> bytes:
    kind, options = _options(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise Refused(415, "not_multipart", "the request must be multipart/form-data")
    if not boundary or len(boundary) > 70:  # RFC 2046 5.1.1
        raise Refused(400, "invalid_multipart", "the multipart boundary is missing or too long")
    return boundary


def is_json(content_type: bytes) -> bool:
    kind, options = _options(content_type)
    return kind == b"application/json" and options.get(b"charset", b"utf-8").lower() in (b"utf-8", b"utf8")


def parse_parameters(raw: bytes) -> AnalysisRequest:
    """A MessageAnalysisRequest. Unknown fields are ignored, known ones are checked. Raises Refused."""
    try:
        value = _JSON.decode(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _invalid("the part `parameters` is not JSON in UTF-8") from None
    if not isinstance(value, dict):
        raise _invalid("`parameters` must be an object")
    border = value.get("borderMtaData")
    if not isinstance(border, dict):
        raise _invalid("`borderMtaData` must be an object")
    recipients = border.get("envelopeRecipients")
    if not isinstance(recipients, list) or not recipients or not all(isinstance(r, str) for r in recipients):
        raise _invalid("`borderMtaData.envelopeRecipients` must be a list of at least one string")
    return AnalysisRequest(
        BorderMtaData(
            envelope_from=_required_text(border, "envelopeFrom"),
            envelope_recipients=tuple(_clean(r) for r in recipients),
            remote_address=_ip(_optional_text(border, "remoteAddress")),
            sender_helo=_optional_text(border, "senderHelo"),
        ),
        tenant_uid=tenant(value.get("tenantUid")),
    )


_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def tenant(value: object, error: str = "invalid_parameters") -> str | None:
    """A tenantUid in its one spelling; None when absent. Raises Refused."""
    if value is None:
        return None
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise Refused(400, error, "`tenantUid` must be a UUID")
    return str(UUID(value))


def _required_text(border: dict[str, Any], name: str) -> str:
    value = _optional_text(border, name)
    if value is None:
        raise _invalid(f"`borderMtaData.{name}` is required")
    return value


def _optional_text(border: dict[str, Any], name: str) -> str | None:
    value = border.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _invalid(f"`borderMtaData.{name}` must be a string")
    return _clean(value)


def _clean(text: str) -> str:
    """Half a surrogate pair is valid JSON and no text: strangers' HELO may hold one."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _ip(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return _spelt(text) if len(text) < 64 else str(ipaddress.ip_address(text))  # a zone may have any length
    except ValueError:
        raise _invalid("`borderMtaData.remoteAddress` must be an IP address") from None


@lru_cache(maxsize=4096)  # the same servers come again and again
def _spelt(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_parameters", message)
