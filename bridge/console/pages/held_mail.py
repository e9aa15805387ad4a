"""One quarantined mail: its text first, then HTML, structure, header section and source, all without active content."""

from __future__ import annotations

import logging
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import pyzipper
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from bridge.console.call import Call, Refused
from bridge.console.checks import int_or
from bridge.console.preview import document
from bridge.console.search import held_query
from bridge.errors import BridgeError
from bridge.mail.message import HEAD_LIMIT
from bridge.mime.mail_text import Reading, html_of
from bridge.mime.mail_text import read as read_text
from bridge.mime.part_list import PartList
from bridge.quarantine.content import beginning, header_section
from bridge.quarantine.record import KEPT, MailRecord
from bridge.quarantine.worst_tags_first import worst_first

log = logging.getLogger(__name__)

_MAX_READ = 64 * 1024 * 1024  # bytes; no mail is larger
_SOURCE_BYTES = 64 * 1024  # of one page of the source
_HEAD_SHOWN = 32 * 1024
_CHUNK = 64 * 1024
UNREADABLE = "the quarantine cannot be read at the moment"
# The usual password for malware samples: not a secret, but it keeps programs from opening them.
PASSWORD = "infected"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Content:
    reading: Reading
    parts: PartList
    head: str
    has_html: bool


async def held(call: Call) -> Response:
    mail: MailRecord = call.held
    content, problem = None, ""
    try:
        content = await call.read_mail(mail.size, _content, call, mail)
    except (BridgeError, OSError) as exc:
        problem = _problem(call, exc)
    scores = call.sources.tag_scores
    jobs = call.console.jobs.of(call.person.key)
    return call.page(
        "held_mail.html",
        mail=mail,
        back=held_query(call.request.query_params.get("back", "")),
        content=content,
        problem=problem,
        tags=[(tag, scores.get(tag)) for tag in worst_first(mail.tags, scores)],
        have=len(mail.envelope.recipients) - len(mail.lacking(mail.envelope.recipients)) if mail.state == KEPT else 0,
        job=next((job for job in jobs if not job.is_over and mail.id in job.action.mails), None),
        has_lists=call.sources.config.lists is not None,
        password=PASSWORD,
    )


async def preview(call: Call) -> Response:
    """For the frame alone."""

    def make() -> str:
        return document(html_of(_bytes(call, call.held)))

    return HTMLResponse(await _reading(call, make))


async def source(call: Call) -> Response:
    mail: MailRecord = call.held
    at = int_or(call.request.query_params.get("at", ""), 0)
    text, total = await _reading(call, lambda: _source(call, mail, at))
    following = at + _SOURCE_BYTES if at + _SOURCE_BYTES < total else 0
    return call.page("held_source.html", mail=mail, text=text, at=at, total=total, following=following,
                     previous=max(0, at - _SOURCE_BYTES))  # fmt: skip


async def download(call: Call) -> Response:
    """As a zip with a password, so that no virus scanner removes it and nothing opens it by accident."""
    mail: MailRecord = call.held
    with ExitStack() as place:
        place.enter_context(call.queues.downloads.place(call.person.key))
        packed, size = await _reading(call, lambda: _packed(mail.id, _all(call, mail)))
        headers = {"Content-Disposition": f'attachment; filename="{mail.id}.zip"', "Content-Length": str(size)}
        return Download(packed, headers, place.pop_all())


class Download(StreamingResponse):
    """Has its place in the queue for as long as its file exists: a slow client may take hours to read it."""

    def __init__(self, file: IO[bytes], headers: dict[str, str], place: ExitStack) -> None:
        super().__init__(_chunks(file), media_type="application/zip", headers=headers)
        place.callback(file.close)
        self._end = weakref.finalize(self, place.close)  # even if it is never sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _reading(call: Call, work):  # type: ignore[no-untyped-def]
    try:
        return await call.read_mail(call.held.size, work)
    except Refused:
        raise
    except (BridgeError, OSError) as exc:
        raise Refused(503, "The mail cannot be read", f"{_problem(call, exc)}. Try again in a moment.", 5) from exc


def _problem(call: Call, exc: Exception) -> str:
    """The reason may name machines and paths, which people of named tenants do not see."""
    log.warning("console: the quarantined mail %s cannot be read: %s", call.held.id, exc)
    return str(exc) if call.person.sees_everything else UNREADABLE


def _all(call: Call, mail: MailRecord) -> bytes:
    """With the header fields that we added."""
    return beginning(call.sources.quarantine.chunks(mail.id), _MAX_READ)


def _bytes(call: Call, mail: MailRecord) -> bytes:
    return beginning(call.sources.quarantine.chunks(mail.id), _MAX_READ, mail.head_size)


def _content(call: Call, mail: MailRecord) -> Content:
    start = beginning(call.sources.quarantine.chunks(mail.id), mail.head_size + HEAD_LIMIT)
    head = header_section(start)[:_HEAD_SHOWN].replace("\r\n", "\n").expandtabs()
    parts = PartList()
    reading = read_text(_bytes(call, mail), parts)
    return Content(reading, parts, head, bool(reading.html))


def _source(call: Call, mail: MailRecord, at: int) -> tuple[str, int]:
    whole = _all(call, mail)
    some = whole[at : at + _SOURCE_BYTES]
    return some.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").expandtabs(), len(whole)


def _packed(name: str, content: bytes) -> tuple[IO[bytes], int]:
    """In a file without a name: a reader may take a long time, and others need the memory."""
    target = tempfile.TemporaryFile()  # noqa: SIM115  closed by `Download`
    with pyzipper.AESZipFile(target, "w", compression=pyzipper.ZIP_DEFLATED, encryption=pyzipper.WZ_AES) as archive:
        archive.setpassword(PASSWORD.encode())
        archive.writestr(f"{name}.eml", content)
    size = target.tell()
    target.seek(0)
    return target, size


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk
