"""The Email Scanning API (`docs/reference/http-api.md`), the default dialect: a form with the envelope and the mail."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain

from bridge.api.request_id import REQUEST_ID
from bridge.api.scanning import (
    BOUNDARY_BYTES,
    STATUS_PATH,
    SUBMIT_PATH,
    AnalysisRequest,
    AnalysisResult,
    QueueStatus,
    form,
)
from bridge.mail.message import Message
from bridge.scanner.answers import read_result, read_status
from bridge.scanner.dialect import request_line
from bridge.scanner.http import Answer

NAME = "email-scanning"
_ID_FIELD = REQUEST_ID.encode("ascii") + b": "


class EmailScanning:
    name = NAME
    is_ready = True

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        fields = f"Authorization: Bearer {token}\r\nAccept: application/json\r\n"
        self._submit_head = (request_line("POST", url, SUBMIT_PATH) + fields).encode("latin-1")
        status = request_line("POST", url, STATUS_PATH) + fields + "Content-Length: 0\r\n"
        self._status_head = status.encode("latin-1")

    def submission(
        self, request: AnalysisRequest, message: Message, header: bytes, request_id: bytes
    ) -> Iterable[bytes]:
        boundary = request_id  # no sender can know it
        head, tail = form(_parameters(request), boundary)
        lines = b"%b%b\r\nContent-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n"
        lines %= (_ID_FIELD, request_id, boundary, len(head) + message.size + len(tail))
        return chain((self._submit_head + header + lines + head,), message.chunks(), (tail,))

    def body_bytes(self, request: AnalysisRequest, message: Message) -> int:
        return message.size + sum(map(len, form(_parameters(request), b"x" * BOUNDARY_BYTES)))

    def result(self, answer: Answer) -> AnalysisResult:
        if answer.status == 200 and not answer.early and b"content-encoding" not in answer.headers:
            try:
                return AnalysisResult.from_json(answer.body)
            except (ValueError, RecursionError):  # `read_result` reports what is wrong
                pass
        return read_result(self._url, answer, self._token)

    def has_forgotten_us(self, answer: Answer) -> bool:
        return False

    def status(self, request_id: bytes) -> Iterable[bytes]:
        return (self._status_head, _ID_FIELD, request_id, b"\r\n\r\n")

    def read_status(self, answer: Answer) -> QueueStatus:
        return read_status(self._url, answer)


def _parameters(request: AnalysisRequest) -> bytes:
    """Strict JSON: non-UTF-8 bytes of a HELO are lone surrogates here, which many parsers refuse."""
    text = request.to_json()
    if text.find(b"\\ud") < 0:
        return text
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
