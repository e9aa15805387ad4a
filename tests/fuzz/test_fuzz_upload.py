"""The service's multipart reader returns exactly what the client sent, or refuses the body."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.api.scanning import AnalysisRequest, BorderMtaData
from bridge.mail.message import Spool
from bridge.service.responses import Refused
from bridge.service.scanning.parameters import parse_parameters
from bridge.service.scanning.upload import Upload

BOUNDARY = b"b0undary"
PIECES = [
    b"\r\n",
    b"--",
    b"\r\n--",
    BOUNDARY[:4],
    BOUNDARY[:-1],
    b"\r",
    b"\n",
    b"-",
    b"x",
    b"\0",
    b"\xff",
    b"\r\n--" + BOUNDARY[:-1],
    b" ",
]
mails = st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=30).map(b"".join)
words = st.text(max_size=12)


def read(body: bytes, cuts: list[int]) -> tuple[AnalysisRequest | Refused, bytes]:
    spool, events = Spool(1 << 20, memory_per_mail=64), []
    for size in cuts:
        events.append({"type": "http.request", "body": body[:size], "more_body": True})
        body = body[size:]
    todo = iter([*events, {"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Any:
        return next(todo)

    async def take(upload: Upload) -> tuple[AnalysisRequest, bytes]:
        request = await upload.read(receive, b"multipart/form-data; boundary=" + BOUNDARY)
        return request, b"".join(upload.mail.chunks())

    upload = Upload(spool, parse_parameters)
    try:
        return asyncio.run(take(upload))
    except Refused as exc:
        return exc, b""
    finally:
        upload.close()
        assert spool.in_use == 0


def part(name: str, content: bytes, kind: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"\r\n' + (f"Content-Type: {kind}\r\n" if kind else "")
    return b"--" + BOUNDARY + b"\r\n" + head.encode() + b"\r\n" + content + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"


@given(mails, words, st.lists(words, min_size=1, max_size=4), st.booleans(), st.lists(st.integers(1, 90), max_size=12))
def test_any_mail_and_any_envelope_are_read_unchanged(
    mail: bytes, sender: str, recipients: list[str], mail_first: bool, cuts: list[int]
) -> None:
    """A mail may contain almost the delimiter without being split there."""
    if BOUNDARY in mail:
        return
    parameters = json.dumps({"borderMtaData": {"envelopeFrom": sender, "envelopeRecipients": recipients}}).encode()
    parts = [part("parameters", parameters, "application/json"), part("email", mail)]
    body = b"".join(reversed(parts) if mail_first else parts) + END
    request, got = read(body, cuts)
    clean = [word.encode("utf-8", "replace").decode() for word in (sender, *recipients)]
    assert request == AnalysisRequest(BorderMtaData(clean[0], tuple(clean[1:])))
    assert got == mail


LINES = [
    *(b"--" + BOUNDARY, b"--" + BOUNDARY + b"--", b"--" + BOUNDARY + b"x", b"--", b"", b"x", b"{}", b"\xff\0"),
    *(
        b'Content-Disposition: form-data; name="email"',
        b'Content-Disposition: form-data; name="parameters"',
        b"Content-Type: application/json",
    ),
    *(
        b"Content-Disposition: form-data; name*=utf-8''email",
        b"content-disposition:form-data;name=email",
        b"Content-Disposition: attachment",
    ),
    *(
        b'{"borderMtaData":{"envelopeFrom":"","envelopeRecipients":["a"]}}',
        b'{"borderMtaData":[]}',
        b"[" * 2000,
        b": x",
        b" folded",
        b"A" * 300 + b":",
    ),
]


@given(
    st.lists(st.sampled_from(LINES) | st.binary(max_size=8), max_size=20),
    st.sampled_from([b"\r\n", b"\n"]),
    st.lists(st.integers(1, 60), max_size=12),
)
def test_any_body_reads_the_same_however_split_or_is_refused_with_4xx(
    lines: list[bytes], end: bytes, cuts: list[int]
) -> None:
    """No body causes an internal error, and none leaves bytes in the spool."""
    body = end.join(lines) + end
    (whole, mail), (pieces, same) = read(body, []), read(body, cuts)
    assert mail == same
    if isinstance(whole, Refused):
        assert isinstance(pieces, Refused)
        assert (whole.status, whole.failure.error) == (pieces.status, pieces.failure.error)
        assert 400 <= whole.status < 500
    else:
        assert whole == pieces
        assert mail in body
