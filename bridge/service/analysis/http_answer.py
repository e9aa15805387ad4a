"""One question to an engine over HTTP, and its answer, within bounds.

Each mail has its own connection: an engine does not say to which request an answer belongs, and the HTTP library
would take a second answer to one mail for the answer to the next. An answer that comes before the whole mail was sent
does not count. None is decompressed, because a few kilobytes could become gigabytes, and redirects are not followed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import httpx2

from bridge.service.analysis.connections import BadAnswer

Headers = Sequence[tuple[bytes, bytes]]


def http_client(timeout_s: float, connections: int) -> httpx2.AsyncClient:
    """`timeout_s` applies to each step of a request; the pipeline limits the total."""
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=0)
    return httpx2.AsyncClient(trust_env=False, timeout=timeout_s, limits=limits)


async def answer_to(
    client: httpx2.AsyncClient, url: str, headers: Headers, content: AsyncIterator[bytes], max_bytes: int
) -> bytes:
    """POST `content`. Raises BadAnswer, and the library's errors."""
    headers = [*headers, (b"Accept-Encoding", b"identity")]
    has_sent_all = False

    async def sent() -> AsyncIterator[bytes]:
        nonlocal has_sent_all
        async for piece in content:
            yield piece
        has_sent_all = True

    request = client.build_request("POST", url, headers=headers, content=sent())
    response = await client.send(request, stream=True)
    try:
        if response.status_code != 200:
            raise BadAnswer(f"HTTP status {response.status_code}")
        if not has_sent_all:
            raise BadAnswer("answered before the whole mail was sent")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BadAnswer("the answer is compressed")
        answer = bytearray()
        async for piece in response.aiter_raw():
            answer += piece
            if len(answer) > max_bytes:
                raise BadAnswer(f"answer larger than {max_bytes} bytes")
        return bytes(answer)
    finally:
        await response.aclose()
