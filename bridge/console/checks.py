"""What a request must be like, whichever pages it is for: the host, the origin, the size of its form.

Shared by the console and the pages for users. If this is wrong, other sites can act in a user's name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from bridge.errors import BridgeError
from bridge.runtime.marked_text import N_
from bridge.runtime.storable import is_storable

_SAME_SITE = "same-origin"
_MAX_FIELDS = 5000  # a bulk action names that many mails
# Text beside a file: the file goes to disk, but text is in memory, and briefly takes up to eighty times its size.
_MAX_TEXT_BESIDE, _MAX_FIELDS_BESIDE = 64 * 1024, 20
_PARTS = "multipart/form-data"
_CHARSET = re.compile(r'charset(?!=("?)(?:utf-?8|us-ascii)\1 *(?:;|$))')  # other than UTF-8, however it is written


class Refused(BridgeError):
    """Ends a request with a page that says why. `text` is shown to the reader, with the values in it.

    The pages for users translate `title` and `template`.
    """

    def __init__(self, status: int, title: str, text: str, retry_after_s: int = 0, **values: object) -> None:
        self.template, self.values = text, values
        self.status, self.title, self.retry_after_s = status, title, retry_after_s
        self.text = text % values if values else text
        super().__init__(self.text)


@dataclass(frozen=True, slots=True)
class Form:
    texts: Mapping[str, list[str]]
    files: Mapping[str, UploadFile]


def check_host(request: Request, origins: Collection[str]) -> None:
    """A name that is not ours may belong to another site that was made to point at this address."""
    hosts = [host.lower() for host in request.headers.getlist("host")]  # RFC 9112 3.2: exactly one
    if not any(hosts == [origin.partition("://")[2]] for origin in origins):
        text = N_("These pages are not available under this host name. Use the one in the setting public_url.")
        raise Refused(HTTPStatus.MISDIRECTED_REQUEST, N_("Wrong address"), text)


def check_origin(request: Request, origins: Collection[str]) -> None:
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    is_ours = origin is not None and origin.lower() in origins
    if (origin is not None and not is_ours) or (site is not None and site != _SAME_SITE):
        raise Refused(403, N_("Not from this page"), N_("The form was sent by another site, so nothing was done."))
    if origin is None and site is None:
        text = N_("The browser did not say which page sent the form, so nothing was done.")
        raise Refused(403, N_("Not from this page"), text)


def check_reader(request: Request) -> None:
    """Whether the reader opens this page, or one of our pages loads it.

    Cookies know sites, not origins: another server of the same site could load our pages as pictures or frames. It
    cannot read them, but the audit log would say that the reader saw them.
    """
    given = request.headers
    is_link = given.get("sec-fetch-mode") == "navigate" and given.get("sec-fetch-dest", "document") == "document"
    if given.get("sec-fetch-site", "none") not in (_SAME_SITE, "none") and not is_link:
        text = N_("This address cannot be used in this way. Go back and try again.")
        raise Refused(403, N_("Not from this page"), text)


async def read_form(request: Request, limit: int, limit_s: float, max_files: int = 0) -> Form:
    """The whole form has to arrive within `limit_s`: a slow sender occupies a connection. Raises Refused."""
    kind = _kind_of_form(request)
    max_text, max_fields = (_MAX_TEXT_BESIDE, _MAX_FIELDS_BESIDE) if max_files else (limit, _MAX_FIELDS)
    limit = limit if kind == _PARTS else max_text  # other forms have no files
    if int_or(request.headers.get("content-length", ""), 0) > limit:
        raise _too_large(limit)
    counted = Request(request.scope, _limited(request.receive, limit))
    try:
        async with asyncio.timeout(limit_s):
            form = await counted.form(max_files=max_files, max_fields=max_fields, max_part_size=max_text)
    except TimeoutError:
        text = N_("The form did not arrive within %(seconds)d seconds.")
        raise Refused(408, N_("Too slow"), text, seconds=limit_s) from None
    except (HTTPException, UnicodeError) as exc:
        raise _not_readable() from exc
    texts = {
        name: [value for value in form.getlist(name) if isinstance(value, str)]
        for name in form.keys()  # noqa: SIM118
    }
    if not all(is_storable(value) for values in texts.values() for value in values):
        raise Refused(400, N_("Not a form"), N_("The form contains characters that are not text."))
    return Form(texts, {name: value for name, value in form.items() if isinstance(value, UploadFile)})


def _kind_of_form(request: Request) -> str:
    """Raises Refused for a multipart form that names a charset, which no browser does.

    The parser would look up the codec: Python keeps every name in memory, even an unknown one, and some codecs are
    slow. In other forms, the charset is ignored, and some mail programs name one there (RFC 8058).
    """
    named = request.headers.get("content-type", "").lower()
    if "multipart" in named and _CHARSET.search(named):
        raise _not_readable()
    return named.partition(";")[0].strip()


def _not_readable() -> Refused:
    return Refused(400, N_("Not a form"), N_("The form cannot be read."))


def int_or(text: str, other: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else other


def _too_large(limit: int) -> Refused:
    return Refused(413, N_("Too large"), N_("At most %(limit)s bytes can be sent here."), limit=f"{limit:,}")


def _limited(receive, limit: int):  # type: ignore[no-untyped-def]
    """Counts the bytes as they arrive, because a client need not announce their number."""
    count = 0

    async def counted() -> Message:
        nonlocal count
        message: Message = await receive()
        count += len(message.get("body", b""))
        if count > limit:
            raise _too_large(limit)
        return message

    return counted
