"""Hooks: engines of the operator's own, in any language, over HTTP. docs/operate/own-engine.md describes the interface.

The parsed mail is posted as JSON: envelope, header fields, and each part with its names, type, digest and content.
The answer has tags, a score and a verdict. The content of parts is encoded while it is sent, so a large mail is never
in memory as a whole. The answer is checked like that of any other engine: a hook cannot say that a mail is on a list,
or that another engine has failed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from bridge.api.json_answer import read_unique
from bridge.mail.header_fields import FieldFinder
from bridge.service.analysis.connections import BadAnswer, counted
from bridge.service.analysis.engine import Findings, LimitReached, Mail
from bridge.service.analysis.http_answer import answer_to, http_client
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.parts import MailPart
from bridge.service.analysis.plugin import PluginFailed, checked
from bridge.service.engine_settings import Hook

VERSION = 1
MAX_ANSWER = 256 * 1024
MAX_HEAD = 64 * 1024  # bytes of the header section
MAX_RECIPIENTS = 1000
SPAM, SUSPICIOUS = 15.0, 8.0  # scores: those of the default rules that reject and that quarantine

_FIELD = FieldFinder(rb"[!-9;-~]+[ \t]*:")
_RESERVED = re.compile(r"(?:list|failed|limit):.*|incomplete")
_GROUP = 48 * 1024  # bytes that are encoded at once; a multiple of three


class HookAnalyzer:
    def __init__(self, name: str, settings: Hook) -> None:
        self._name = name
        self._settings = settings
        self._client = http_client(settings.timeout, settings.connections)

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        await self._client.aclose()

    async def analyze(self, mail: Mail) -> Findings:
        if mail.size > self._settings.max_size:
            raise LimitReached("size")
        body = list(_body(mail, self._settings.content))
        length = sum(_encoded_size(piece) for piece in body)
        headers = [(b"Content-Type", b"application/json"), (b"Content-Length", str(length).encode())]
        if self._settings.token is not None:
            headers.append((b"Authorization", b"Bearer " + self._settings.token.get_secret_value().encode()))
        return read_answer(
            self._name, *await answer_to(self._client, self._settings.url, headers, _sent(body), MAX_ANSWER)
        )


def _body(mail: Mail, with_content: bool) -> Iterator[bytes | MailPart]:
    """JSON in pieces; a part stands for its content in Base64."""
    parts = mail.parts()
    border = mail.request.border
    head = {
        "version": VERSION,
        "ggrid": mail.ggrid,
        "tenantUid": mail.request.tenant_uid,
        "envelope": {"from": border.envelope_from, "to": border.envelope_recipients[:MAX_RECIPIENTS]},
        "client": {"address": border.remote_address, "helo": border.sender_helo},
        "size": mail.size,
        "isComplete": parts.is_complete,
        "headers": list(_fields(mail)),
    }
    yield json.dumps(head).encode().removesuffix(b"}") + b', "parts": ['
    for number, part in enumerate(parts):
        described = {"names": part.names, "type": part.content_type, "size": part.size, "sha256": part.sha256}
        yield (b", " if number else b"") + json.dumps(described).encode().removesuffix(b"}") + b', "content": '
        if with_content:
            yield b'"'
            yield part
            yield b'"}'
        else:
            yield b"null}"
    yield b"]}"


def _fields(mail: Mail) -> Iterator[tuple[str, str]]:
    assert isinstance(mail.stored, StoredMail)
    for field in _FIELD.find(mail.stored.head()[:MAX_HEAD]):
        name, _, value = field.raw.decode("utf-8", "replace").partition(":")
        yield name.strip(), re.sub(r"\r\n(?=[ \t])", "", value).strip()


def _encoded_size(piece: bytes | MailPart) -> int:
    return len(piece) if isinstance(piece, bytes) else 4 * ((piece.size + 2) // 3)


async def _sent(body: list[bytes | MailPart]) -> AsyncIterator[bytes]:
    for piece in body:
        if isinstance(piece, bytes):
            yield piece
            continue
        rest = b""
        for chunk in piece.chunks():
            data = rest + chunk
            end = len(data) - len(data) % 3
            for at in range(0, end, _GROUP):
                yield base64.b64encode(data[at : min(at + _GROUP, end)])
            rest = data[end:]
        yield base64.b64encode(rest)


def read_answer(name: str, body: bytes, has_sent_all: bool = True) -> Findings:
    """Raises BadAnswer, PluginFailed, or LimitReached if the hook says that it could not examine the mail."""
    try:
        answer = read_unique(body)
    except (ValueError, RecursionError):
        raise BadAnswer("not JSON, or a key occurs twice") from None
    if not isinstance(answer, dict):
        raise BadAnswer("not a JSON object")
    tags, score, verdict = answer.get("tags", []), answer.get("score", 0.0), answer.get("verdict")
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise PluginFailed("invalid tags")
    if isinstance(score, bool):
        raise PluginFailed("score is not a finite number")
    found = checked(Findings(frozenset(tags), score))
    if any(map(_RESERVED.fullmatch, found.tags)):
        raise PluginFailed("a tag that only the service may set")
    found = _with_verdict(name, found, verdict)
    return counted(found, has_sent_all, is_bad=found.score > 0 or verdict == "malware")  # a tag alone can mean anything


def _with_verdict(name: str, found: Findings, verdict: Any) -> Findings:
    match verdict:
        case None | "clean":
            return found
        case "malware":
            return Findings(found.tags | {f"malware:{name}"}, found.score)
        case "spam":
            return Findings(found.tags | {f"{name}:spam"}, max(found.score, SPAM))
        case "suspicious":
            return Findings(found.tags | {f"{name}:suspicious"}, max(found.score, SUSPICIOUS))
        case "incomplete":
            raise LimitReached("own")
    raise PluginFailed("unknown verdict")
