"""What a request must be like, whichever pages it is for: the host, the origin, the size of its form.

Shared by the console and the pages for users. If this is wrong, other sites act in a reader's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from bridge.errors import BridgeError

_SAME_SITE = "same-origin"
_MAX_FIELDS = 5000  # a bulk action names that many mails


class Refused(BridgeError):
    """Ends a request with a page that says why. `text` is shown to the reader."""

    def __init__(self, status: int, title: str, text: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.status, self.title, self.text, self.retry_after_s = status, title, text, retry_after_s


@dataclass(frozen=True, slots=True)
class Form:
    texts: Mapping[str, list[str]]
    files: Mapping[str, UploadFile]


class Front(Protocol):
    """Where pages are reached."""

    @property
    def public_url(self) -> str | None: ...

    @property
    def trusted_proxies(self) -> list[str]: ...


def check_host(request: Request, origins: Collection[str]) -> None:
    """A name that is not ours may be another site's, which was made to point at this address."""
    host = request.headers.get("host", "").lower()
    if not any(origin.partition("://")[2] == host for origin in origins):
        text = "These pages do not answer under this name. The setting public_url says which is right."
        raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "Wrong address", text)


def check_origin(request: Request, origins: Collection[str]) -> None:
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_ours = origin is not None and origin.lower() in origins
    if (origin is not None and not is_ours) or (site is not None and site != _SAME_SITE):
        raise Refused(403, "Not from this page", "The form was sent by another site, so nothing was done.")
    if origin is None and site is None:
        text = "The browser did not say which page the form is from, so nothing was done."
        raise Refused(403, "Not from this page", text)


async def read_form(request: Request, limit: int, max_files: int = 0) -> Form:
    if int_or(request.headers.get("content-length", ""), 0) > limit:
        raise _too_large(limit)
    counted = Request(request.scope, _limited(request.receive, limit))
    try:
        form = await counted.form(max_files=max_files, max_fields=_MAX_FIELDS, max_part_size=limit)
    except HTTPException as exc:
        raise Refused(400, "Not a form", "The form cannot be read.") from exc
    texts = {
        name: [value for value in form.getlist(name) if isinstance(value, str)]
        for name in form.keys()  # noqa: SIM118
    }
    return Form(texts, {name: value for name, value in form.items() if isinstance(value, UploadFile)})


def client_address(request: Request, settings: Front) -> str:
    """The browser's: behind a reverse proxy that we trust, the address that it names last."""
    peer = request.client.host if request.client else "local"
    if settings.public_url and _is_in(peer, settings.trusted_proxies):
        named = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        try:
            return str(ipaddress.ip_address(named))
        except ValueError:
            return peer
    return peer


def _is_in(address: str, networks: list[str]) -> bool:
    if address == "local":  # a unix socket: the proxy runs on this machine
        return True
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(ip in ipaddress.ip_network(network) for network in networks)


def int_or(text: str, other: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else other


def _too_large(limit: int) -> Refused:
    return Refused(413, "Too large", f"At most {limit:,} bytes can be sent here.")


def _limited(receive, limit: int):  # type: ignore[no-untyped-def]
    """Count what comes, because a client may not say how much it will be."""
    count = 0

    async def counted() -> Message:
        nonlocal count
        message: Message = await receive()
        count += len(message.get("body", b""))
        if count > limit:
            raise _too_large(limit)
        return message

    return counted
