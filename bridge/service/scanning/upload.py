"""The body of submitEmail: splits a multipart stream into `parameters` and one stored mail.

python-multipart's low-level parser walks the stream, and the mail goes straight to a spool (memory
while it is small, an unlinked file after that), so there is only one copy of it. Everything is
bounded: the mail, the parameters, the whole body, and the time between two chunks. The limit of 50 MiB is the
mail's own; the form around it does not count, so whatever another service accepts is accepted here. Every refusal
is a `Refused` with the status and the Error object that the client receives.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser
from starlette.types import Receive

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.errors import Saturated
from bridge.mail.message import Spool
from bridge.service.analysis.job import StoredMail
from bridge.service.requests import is_json, parse_options
from bridge.service.responses import Refused

MAX_PARAMETERS_BYTES = 1024 * 1024
MAX_OVERHEAD_BYTES = 1024 * 1024  # delimiters, part headers, parts of other names
MAX_BODY_BYTES = MAX_MESSAGE_BYTES + MAX_PARAMETERS_BYTES + MAX_OVERHEAD_BYTES
MAX_PARTS = 16
MIN_RATE = 1024  # bytes per second, averaged over the whole upload, once it has lasted as long as a pause may

T = TypeVar("T")

log = logging.getLogger("bridge.service")
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it logs a warning for every malformed body


class Upload(Generic[T]):
    """The body of one request: `read` it, use the returned request and `mail`, then `close` it.

    `parse` reads the `parameters` part, and raises Refused.
    """

    def __init__(self, spool: Spool, parse: Callable[[bytes], T], idle_s: float = 60.0) -> None:
        self._parse = parse
        self._spool = spool
        self.mail = StoredMail(spool)
        self._idle_s = idle_s  # the longest pause
        self._parameters: bytearray | None = None
        self._has_mail = False
        self._headers: list[tuple[bytearray, bytearray]] = []
        self._parts = 0
        self._begun = False
        self._part_name = ""
        self._finished = False
        self._size = 0

    def close(self) -> None:
        self.mail.close()

    async def read(self, receive: Receive, content_type: bytes) -> T:
        """Read the whole body. Raises Refused and Disconnected."""
        parser = MultipartParser(_boundary(content_type), self._callbacks())
        try:
            await self._pump(receive, parser)
            if not await self.mail.is_kept():
                raise OSError(errno.EIO, "the mail could not be written")
        except FormParserError:
            raise Refused(400, "invalid_multipart", "the body is not well-formed multipart/form-data") from None
        except Saturated:
            raise Refused(503, "saturated", "too much mail is being processed", retry_after_s=1) from None
        except OSError:
            raise Refused(507, "storage_full", "the mail cannot be stored at the moment") from None
        except (Refused, Disconnected):
            raise
        except MemoryError:
            raise Refused(503, "saturated", "too much mail is being processed", retry_after_s=1) from None
        except Exception as exc:  # a fault in our code or in the parser, which only this request triggers
            log.error("request could not be read: %s", type(exc).__name__)
            raise Refused(400, "invalid_multipart", "the body cannot be read") from exc
        return self._complete()

    async def _pump(self, receive: Receive, parser: MultipartParser) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            try:
                async with asyncio.timeout(self._idle_s):
                    event = await receive()
            except TimeoutError:
                raise Refused(408, "upload_timeout", "the upload stalled") from None
            if event["type"] == "http.disconnect":
                raise Disconnected
            chunk = event.get("body", b"")
            if chunk:
                self._take(chunk, parser)
            if not event.get("more_body", False):
                return
            if self.mail.is_behind:  # our disk is slow, not the client
                stopped_at = loop.time()
                await self._spool.wait_for_disk(stopped_at + self._idle_s)
                start += loop.time() - stopped_at
            elapsed = loop.time() - start
            if elapsed > self._idle_s and self._size < elapsed * MIN_RATE:
                raise Refused(408, "upload_timeout", "the upload is too slow")

    def _take(self, chunk: bytes, parser: MultipartParser) -> None:
        self._size += len(chunk)
        if self._size > MAX_BODY_BYTES:
            raise body_too_large()
        if not self._begun:
            # After a leading empty line the parser skips a preamble, but only up to the end of this chunk.
            chunk = chunk.lstrip(b"\r\n")
            self._begun = bool(chunk)
        parser.write(chunk)

    def _complete(self) -> T:
        if not self._finished:
            raise Refused(400, "invalid_multipart", "the body ends before its last delimiter")
        if self._parameters is None:
            raise Refused(400, "missing_part", "the `parameters` part is missing")
        if not self._has_mail:
            raise Refused(400, "missing_part", "the `email` part is missing")
        return self._parse(bytes(self._parameters))

    # Callbacks of the parser. A chunk may end anywhere, even within a header field.

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
            raise Refused(400, "invalid_multipart", f"the body has more than {MAX_PARTS} parts")

    def _on_header_begin(self) -> None:
        self._headers.append((bytearray(), bytearray()))

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][0].extend(data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[-1][1].extend(data[start:end])

    def _on_headers_finished(self) -> None:
        headers = {bytes(name).lower(): bytes(value) for name, value in self._headers}
        if len(headers) < len(self._headers):  # readers differ in which of the two they use
            raise Refused(400, "invalid_multipart", "a part has the same header field twice")
        disposition, options = parse_options(headers.get(b"content-disposition", b""))
        self._part_name = options.get(b"name", b"").decode("utf-8", "replace") if disposition == b"form-data" else ""
        if self._part_name in ("parameters", "email"):
            _check_encoding(headers.get(b"content-transfer-encoding", b""))
        if self._part_name == "parameters":
            if self._parameters is not None:
                raise Refused(400, "duplicate_part", "the `parameters` part appears twice")
            if not is_json(headers.get(b"content-type", b"")):
                raise Refused(415, "parameters_not_json", "the `parameters` part must be of type application/json")
            self._parameters = bytearray()
        elif self._part_name == "email":
            if self._has_mail:
                raise Refused(400, "duplicate_part", "the `email` part appears twice")
            self._has_mail = True

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part_name == "email":
            if self.mail.size + end - start > MAX_MESSAGE_BYTES:
                raise too_large()
            self.mail.write(bytes(memoryview(data)[start:end]))
        elif self._part_name == "parameters" and self._parameters is not None:
            if len(self._parameters) + end - start > MAX_PARAMETERS_BYTES:
                raise Refused(400, "parameters_too_large", "the `parameters` part is larger than 1 MiB")
            self._parameters.extend(data[start:end])

    def _on_end(self) -> None:
        self._finished = True


class Disconnected(Exception):
    """The client closed the connection; there is no one to answer."""


def too_large() -> Refused:
    return Refused(413, "payload_too_large", "the e-mail is larger than 50 MiB")


def body_too_large() -> Refused:
    text = "the request is larger than 52 MiB: 50 MiB for the e-mail, 1 MiB for `parameters`, 1 MiB for the form"
    return Refused(413, "payload_too_large", text)


def _check_encoding(encoding: bytes) -> None:
    """RFC 7578 4.7: no part of a form is encoded. A mail in Base64 would be scanned as if it were plain text."""
    if encoding.strip().lower() not in (b"", b"7bit", b"8bit", b"binary"):
        raise Refused(400, "invalid_multipart", "a part has a Content-Transfer-Encoding; send the bytes as they are")


def _boundary(content_type: bytes) -> bytes:
    kind, options = parse_options(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise Refused(415, "not_multipart", "the request must be multipart/form-data")
    if not boundary or len(boundary) > 70:  # RFC 2046 5.1.1
        raise Refused(400, "invalid_multipart", "the multipart boundary is missing or too long")
    return boundary
