"""The PROXY header in front of an SMTP session, in which a proxy names the client.

Knows the header and the buffer that it is read from, but neither commands nor mail. If this is wrong, an untrusted
client chooses the address it is judged by.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address

from aiosmtpd.proxy_protocol import AF, PROTO, V2_CMD, V2_SIGNATURE, ProxyData, get_proxy

from bridge.intake.smtp.line_buffer import LineBuffer
from bridge.mail.session import canonical_ip

_LOCAL = V2_SIGNATURE + b"\x20"  # version 2, command LOCAL


async def read_proxy_header(buffer: LineBuffer) -> ProxyData | None:
    """The header, valid or not; None if the client ended the connection within it."""
    try:
        if await _begins_with(buffer, _LOCAL):
            return await _read_local(buffer)
        return await get_proxy(buffer)
    except asyncio.IncompleteReadError:
        return None


async def _begins_with(buffer: LineBuffer, start: bytes) -> bool:
    """Reads no more than it takes to tell."""
    while len(buffer) < len(start) and start.startswith(buffer.buffer) and not buffer.at_eof:
        await buffer.more()
    return buffer.buffer.startswith(start)


async def _read_local(buffer: LineBuffer) -> ProxyData:
    """The proxy speaks for itself: what the header says about a family and addresses, even nonsense, is ignored.

    aiosmtpd would use the addresses, and refuse a family that it does not know.
    """
    header = await buffer.readexactly(len(V2_SIGNATURE) + 4)
    header += await buffer.readexactly(int.from_bytes(header[-2:], "big"))
    local = ProxyData(version=2)
    local.command, local.family, local.protocol = V2_CMD.LOCAL, AF.UNSPEC, PROTO.UNSPEC
    local.whole_raw = bytearray(header)
    return local


def is_stream(proxy: ProxyData) -> bool:
    """Whether the header is valid, and may precede an SMTP session."""
    return bool(proxy.valid) and proxy.protocol != PROTO.DGRAM


def named_client(proxy: ProxyData) -> str | None:
    """The address of the client; None if the header names none: LOCAL, UNKNOWN, or a unix socket of the proxy."""
    source = proxy.src_addr
    return canonical_ip(str(source)) if isinstance(source, IPv4Address | IPv6Address) else None
