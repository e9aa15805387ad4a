"""Scan a file: what the scanner says about a saved mail, and the parts that it has. Nothing is delivered or kept."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from starlette.responses import Response

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, BorderMtaData
from bridge.console.call import Call
from bridge.console.checks import Refused
from bridge.console.scanning import NoDecision
from bridge.mail.message import Message
from bridge.mime.part_list import PartList, list_parts
from bridge.quarantine.content import beginning
from bridge.quarantine.worst_tags_first import worst_first
from bridge.scanner.stored_mail import as_mail

MAX_BYTES = MAX_MESSAGE_BYTES + 64 * 1024  # with the other fields of the form
_MAX_TEXT = 320
_MAX_RECIPIENTS = 100
_NO_DECISION = "the scanner cannot be used at the moment"


@dataclass(slots=True)
class Analyzer:
    """What one analyzer found: the word before the colon of a tag names it."""

    name: str
    tags: list[tuple[str, float | None]] = field(default_factory=list)  # with the score, if we know it

    @property
    def score(self) -> float:
        return sum(score or 0.0 for _, score in self.tags)


async def form(call: Call) -> Response:
    return _page(call)


async def scan(call: Call) -> Response:
    """A few at a time: mail needs the scanner, too."""
    with call.queues.scans.place():
        return await _scan(call)


async def _scan(call: Call) -> Response:
    typed = {name: call.form.get(name, "").strip()[:_MAX_TEXT] for name in ("sender", "client", "helo", "tenant")}
    typed["recipients"] = call.form.get("recipients", "").strip()[:8000]
    file = call.files.get("file")
    content = file.file if file is not None else BytesIO()
    with closing(await call.run_among_few(call.queues.readers, as_mail, content)) as mail:
        return await _scan_mail(call, typed, mail, (file.filename or "") if file is not None else "")


async def _scan_mail(call: Call, typed: dict[str, str], mail: Message, file_name: str) -> Response:
    mistake = _mistake(call, typed, mail.size)
    if mistake:
        call.audit_failed, call.audit_detail = True, mistake
        return _page(call, 400, typed=typed, mistake=mistake)
    recipients = tuple(typed["recipients"].replace(",", " ").split()) or ("postmaster",)
    border = BorderMtaData(typed["sender"], recipients, typed["client"] or None, typed["helo"] or None)
    began = time.monotonic()
    result, why, problem = None, "", ""
    try:
        async with call.queues.scans.limiter:  # not for what follows, which waits for other people's pages
            result = await call.sources.scan(mail, AnalysisRequest(border, _tenant(call, typed)))
    except NoDecision as exc:
        why, problem, call.audit_failed = str(exc), call.reason(exc, _NO_DECISION), True
    took_s = time.monotonic() - began
    call.audit_detail = f"{mail.size} bytes: {result.decision if result else why}"
    analyzers = list(by_analyzer(result.tags, call.sources.tag_scores)) if result else []
    try:
        parts = await call.read_mail(mail.size, lambda: list_parts(beginning(mail.chunks(), MAX_MESSAGE_BYTES)))
    except Refused as exc:  # too many people are reading mail, but the scan is done
        parts = PartList(problem=str(exc))
    values: dict[str, Any] = {
        "result": result,
        "problem": problem,
        "analyzers": analyzers,
        "parts": parts,
        "took_s": took_s,
    }
    return _page(call, 200, typed=typed, size=mail.size, file_name=file_name, **values)


def by_analyzer(tags: tuple[str, ...], scores: Mapping[str, float]) -> Iterator[Analyzer]:
    """The one with the highest score first."""
    found: dict[str, Analyzer] = {}
    for tag in worst_first(dict.fromkeys(tags), scores):
        name = tag.partition(":")[0]
        found.setdefault(name, Analyzer(name)).tags.append((tag, scores.get(tag)))
    yield from sorted(found.values(), key=lambda analyzer: -analyzer.score)


def _mistake(call: Call, typed: Mapping[str, str], size: int) -> str:
    if not size:
        return "Choose a saved mail, such as an .eml file from a mail program."
    if len(typed["recipients"].replace(",", " ").split()) > _MAX_RECIPIENTS:
        return f"At most {_MAX_RECIPIENTS} recipients are allowed."
    if typed["client"]:
        try:
            ipaddress.ip_address(typed["client"])
        except ValueError:
            return "The client must be an IP address, such as 192.0.2.7."
    if typed["tenant"] and not _may_use(call, typed["tenant"]):
        return "You do not have access to this tenant."
    if any(not text.isprintable() for text in typed.values()):
        return "A field contains control characters."
    return ""


def _may_use(call: Call, tenant: str) -> bool:
    return tenant in _tenants(call)


def _tenants(call: Call) -> tuple[str, ...]:
    return tuple(tenant.uid for tenant in call.sources.config.tenants if call.person.may_see(tenant.uid))


def _tenant(call: Call, typed: Mapping[str, str]) -> str | None:
    """As chosen; people of named tenants never scan for another one."""
    if typed["tenant"]:
        return typed["tenant"]
    if call.person.sees_everything:
        return call.sources.config.scanner.tenant_uid
    return min(call.person.tenants or (), default=None)


def _page(call: Call, status: int = 200, **more: Any) -> Response:
    values: dict[str, Any] = {
        "typed": {},
        "result": None,
        "problem": "",
        "mistake": "",
        "analyzers": [],
        "parts": None,
        "took_s": 0.0,
        "file_name": "",
    }
    return call.page("scan.html", status, **{**values, "size": 0, "tenants": _tenants(call), **more})
