"""The requests of one listener, as an ASGI application: discovery, registrations, and the hooks themselves.

Whatever concerns a mail is answered with 200 and says in its JSON what the SMTP client is to receive, even a 451,
because clients repeat a request that fails with an HTTP error, and that would add to an overload. HTTP errors are for
requests that we cannot take as a question about a mail; the mail server then defers the mail on its own. The token is
checked before a byte of the body is read. If this is wrong, someone without the token learns our decisions, or a mail
is accepted without a decision.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from bridge.errors import Saturated, ScanTimeout
from bridge.filter.policy import LOSSY, NO_STORAGE, SATURATED, UNCERTAIN_DOMAIN, reply_to_error, with_id
from bridge.intake.hooks import draft, stalwart
from bridge.intake.hooks.body import Body, ClientGone, TooSlow
from bridge.intake.hooks.context import HooksContext
from bridge.intake.hooks.facts import Found, Question
from bridge.intake.hooks.json_body import BadJson, Base64Content, JsonBody, TooMuch
from bridge.intake.hooks.mail import HookMail
from bridge.intake.hooks.registrations import MAX_REGISTRATIONS, PROPERTIES, STAGES, Registration, State
from bridge.intake.hooks.replays import Answer, OtherBody
from bridge.intake.milter.mail import TOO_MANY_RECIPIENTS
from bridge.intake.refused_client import RefusedClient, too_many
from bridge.intake.trusted_clients import peer_address
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction, new_id

log = logging.getLogger(__name__)

DISCOVERY = "/.well-known/mta-hooks"
REGISTRATIONS = "/mta-hooks/registrations"
HOOK = "/mta-hooks/hook"
STALWART = "/mta-hooks/stalwart"

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,255}")
_RESERVE = 0.1  # of the mail server's patience: for sending the answer
_MAX_RESERVE_S = 5.0
_OVERRUN_S = 5.0  # the filter keeps its own deadline; this long after it we answer without the filter
_TOO_LATE = reply_to_error(ScanTimeout())


class HttpError(Exception):
    """A request that is answered with an HTTP error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class HooksApp:
    def __init__(self, context: HooksContext) -> None:
        self._context = context

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:  # if a field occurs twice, neither can be trusted
            key = name.decode("latin-1")
            headers[key] = "" if key in headers else value.decode("latin-1")
        peer = peer_address(tuple(scope["client"])) if scope["client"] else None
        body = Body(receive, headers, self._context)
        status, found = 200, b""
        try:
            status, found = await self._answer(scope["method"], scope["path"], headers, peer, body)
        except HttpError as error:
            status, found = error.status, error_body(error.code, error.message)
        except TooMuch as error:
            self._context.reports.limit("request")
            status, found = 413, error_body("REQUEST_TOO_LARGE", str(error))
        except BadJson as error:
            status, found = 400, error_body("INVALID_REQUEST", str(error))
        except Saturated:
            status, found = 503, error_body("SCANNER_UNAVAILABLE", "there is no room for the request")
        except TooSlow:
            status, found = 408, error_body("REQUEST_TIMEOUT", "the request took too long")
        except ClientGone:
            return
        except Exception:
            log.exception("listener %s: a request failed", self._context.settings.name)
            status, found = 500, error_body("INTERNAL_ERROR", "the request failed")
        fields = [(b"content-length", b"%d" % len(found))]
        if found:
            fields.append((b"content-type", b"application/json"))
        if status == 408:  # the rest of any other body is read and discarded, so that the client reads our answer
            fields.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": found})

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str], peer: str | None, body: Body
    ) -> tuple[int, bytes]:
        if peer not in self._context.trusted:  # a reload may have changed that while the connection was open
            raise HttpError(403, "FORBIDDEN", "this address is no longer one of the trusted clients")
        place, _, identity = path.partition(f"{REGISTRATIONS}/")
        if path == DISCOVERY:
            _need(method, "GET")
            return 200, _json(self._discovery())
        self._need_token(headers, peer)
        if path == REGISTRATIONS:
            _need(method, "POST")
            made = self._context.registrations.register(await body.read_json(), self._longest_s)
            return 201, _json(made.to_json(REGISTRATIONS))
        if not place and identity:
            _need(method, "GET", "DELETE")
            return self._registration(method, identity)
        if path == HOOK:
            _need(method, "POST")
            registration = self._need_registration(headers.get("x-mta-hooks-registration", ""))
            return await self._hook(body, peer, headers.get("x-mta-hooks-request-id", ""), registration)
        if path == STALWART:
            _need(method, "POST")
            return await self._hook_of_stalwart(body, peer)
        raise HttpError(404, "NOT_FOUND", "there is nothing at this path")

    # Who asks, and what we have agreed on

    def _need_token(self, headers: Mapping[str, str], peer: str | None) -> None:
        given = headers.get("authorization", "")
        scheme, _, token = given.partition(" ")
        told = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        if scheme.lower() != "bearer" or not hmac.compare_digest(told, self._context.settings.token_digest):
            self._context.refused_token(peer)
            raise HttpError(401, "INVALID_CREDENTIALS", "the token is missing or wrong")

    def _need_registration(self, identity: str) -> Registration:
        found = self._context.registrations.find(identity)
        if isinstance(found, State):
            gone = found is State.ENDED
            raise HttpError(410 if gone else 404, found.value, "the registration is unknown, or has ended")
        return found

    def _registration(self, method: str, identity: str) -> tuple[int, bytes]:
        found = self._need_registration(identity)
        if method == "GET":
            return 200, _json(found.to_json(REGISTRATIONS))
        self._context.registrations.end(found)
        return 200, _json({"registrationId": found.id, "status": "deregistered"})

    @property
    def _longest_s(self) -> float:
        """How long a mail server may have to wait for our answer."""
        return self._context.filter.deadline_s + _MAX_RESERVE_S

    def _discovery(self) -> Found:
        settings = self._context.settings
        updates = ["/action", "/response", "/message/headers"]
        return {
            "version": draft.VERSION,
            "endpoints": {"registration": REGISTRATIONS, "deregistration": REGISTRATIONS},
            "serialization": ["json"],
            "capabilities": {
                "inbound": {
                    "stages": list(STAGES),
                    "fetchProperties": list(PROPERTIES),
                    "actions": ["accept", "reject", "discard", "quarantine"],
                    "updateProperties": [*updates, "/envelope/to"] if settings.can_delete else updates,
                },
                "outbound": None,
            },
            "limits": {
                "maxMessageSize": settings.max_message_size,
                "maxRegistrations": MAX_REGISTRATIONS,
                "timeoutMs": round(self._longest_s * 1000),
            },
        }

    # Questions

    async def _hook(
        self, body: Body, peer: str | None, request_id: str, registration: Registration
    ) -> tuple[int, bytes]:
        if not _REQUEST_ID.fullmatch(request_id):
            raise HttpError(400, "INVALID_REQUEST", "X-MTA-Hooks-Request-Id is missing or invalid")
        patience_s = registration.timeout_s - min(registration.timeout_s * _RESERVE, _MAX_RESERVE_S)
        asking = _Asking(self._context, draft, peer, min(self._context.filter.deadline_s, patience_s))
        asking.key = registration.id, request_id
        return await self._ask(asking, body, Base64Content(asking.mail.add_body))

    async def _hook_of_stalwart(self, body: Body, peer: str | None) -> tuple[int, bytes]:
        asking = _Asking(self._context, stalwart, peer, self._context.filter.deadline_s)
        content = stalwart.TextContent(asking.mail.add_body)
        asking.is_lossy = content.is_lossy
        return await self._ask(asking, body, content)

    async def _ask(self, asking: _Asking, body: Body, content: Any) -> tuple[int, bytes]:
        reader = JsonBody(asking.dialect.CONTENT, content)
        try:
            if (closed := self._context.filter.early.closed_before_content()) is not None:
                asking.mail.refuse(closed)  # the content is discarded as it arrives
            found = await body.read_into(reader)
            question = asking.dialect.read(found)
            answer = await asking.answer(question, found, reader.has_taken, closed, body)
        except ClientGone:
            self._context.gone(peer=asking.peer)
            raise
        except Saturated:
            self._context.reports.limit("max_bytes_in_processing")
            answer = _json(asking.dialect.refuse(SATURATED))
        except OtherBody:
            raise HttpError(409, "REQUEST_ID_REUSED", "the request id was used for another request") from None
        finally:
            asking.close()
        return 200, answer


class _Asking:
    """One hook request: from its content to the answer."""

    def __init__(self, context: HooksContext, dialect: ModuleType, peer: str | None, patience_s: float) -> None:
        self.dialect = dialect
        self.peer = peer
        self.key: tuple[str, str] | None = None  # by which a repeated request is recognised
        self.is_lossy: Callable[[Found], bool] | None = None
        self.mail = HookMail(context.spool, context.limits)
        self._context = context
        self._filter = context.filter  # a reload changes the next request
        self._can_delete = context.settings.can_delete
        self._patience_s = patience_s
        self._is_handed_over = False  # the filter has the mail, and will close its message

    def close(self) -> None:
        if not self._is_handed_over:
            self.mail.close()

    async def answer(
        self, question: Question, found: Found, has_content: bool, closed: Reply | None, body: Body
    ) -> bytes:
        client = question.client
        session = Session(
            new_id(), self._context.settings.name, self.peer or "unix", client, question.tls, is_told=True
        )
        match question.stage:
            case "data" if has_content and question.sender is not None:
                return await self._data(question, session, found, closed, body)
            case "rcpt" if question.recipients and question.sender is not None:
                return self._render(self._rcpt(question, session))
            case "mail" if question.sender is not None:
                return self._render(self._mail(question, session))
            case "" if not has_content:
                return self._render(None)
        raise BadJson("the stage is not supported, or the envelope or the content is missing")

    def _render(self, refusal: Reply | None) -> bytes:
        return _json(self.dialect.accept() if refusal is None else self.dialect.refuse(refusal))

    # Before the content

    def _mail(self, question: Question, session: Session) -> Reply | None:
        mail = self._envelope_of(question)
        if mail.refusal is not None:
            return self._filter.early.refuse_mail(session, mail.sender, mail.refusal)
        closed = self._filter.early.closed_at_mail()
        if closed is not None:
            self._saturated("mail", session, mail.sender, closed)
        return closed

    def _rcpt(self, question: Question, session: Session) -> Reply | None:
        """About the last recipient; the others were accepted before."""
        mail = self._envelope_of(question)
        if mail.refusal is not None:
            return mail.refusal
        *others, last = question.recipients
        for other in others:
            mail.add_recipient(other)
        refusal = mail.add_recipient(last, self._refused_by_list(session, mail.sender))
        if refusal is UNCERTAIN_DOMAIN:
            address = last.partition(b"\0")[0].decode("utf-8", "replace")
            return self._filter.early.refuse_recipient(session, mail.sender, address, refusal)
        if refusal is TOO_MANY_RECIPIENTS:
            log.info("session %s: a recipient was refused: max_recipients", session.id)
        return refusal

    def _envelope_of(self, question: Question) -> HookMail:
        """A mail without content."""
        mail = HookMail(self._context.spool, self._context.limits)
        assert question.sender is not None
        mail.set_sender(question.sender)
        return mail

    def _refused_by_list(self, session: Session, sender: str) -> Callable[[str], Reply | None] | None:
        if self._filter.early.envelope_lists is None:
            return None
        return partial(self._filter.early.refused_by_list, session, sender, known=self._context.settings.groups.known)

    def _saturated(self, stage: str, session: Session, sender: str, reply: Reply) -> None:
        rule = self._filter.early.saturation_rule
        self._context.reports.saturated(RefusedClient(stage, session.client.address, sender, "saturated", rule, reply))

    # The complete mail

    async def _data(
        self, question: Question, session: Session, found: Found, closed: Reply | None, body: Body
    ) -> bytes:
        replays, key, mail = self._context.replays, self.key, self.mail
        request = None if key is None else replays.find(key, body.digest)
        if request is None:
            assert question.sender is not None
            if closed is not None:
                mail.set_sender(question.sender)
                self._saturated("data", session, mail.sender, closed)
                return self._render(closed)
            client = session.client.address
            # Asked here, because the server may not have asked at MAIL.
            if (refusal := self._filter.early.refused_by_rate(client)) is not None:
                mail.set_sender(question.sender)
                self._context.reports.too_many(too_many("data", client, mail.sender, refusal))
                return self._render(refusal)
            request = replays.start(key, body.digest, self._decide(question, session, found))
        answer = await request.wait(body.until_gone, self._patience_s + _OVERRUN_S)
        if answer is not None:
            return answer.body
        if body.is_gone:
            raise ClientGone
        self._context.warn("%s: the filter overran its deadline", session.peer)
        return self._render(_TOO_LATE)

    async def _decide(self, question: Question, session: Session, found: Found) -> Answer:
        mail, filter_ = self.mail, self._filter
        self._is_handed_over = True  # not reached by a task that is cancelled before it starts
        tx = None
        now = asyncio.get_running_loop().time()
        try:
            if mail.message.is_in_file and not await mail.message.is_kept():  # before anything reads it
                mail.refuse(NO_STORAGE)
            self._read_envelope(question, session, found)
            tx = Transaction(
                new_id(), session, mail.envelope, mail.message, now, now + self._patience_s,
                False, self.dialect.can_hold, self._can_delete,
            )  # fmt: skip
            if mail.refusal is not None:
                outcome = filter_.early.refuse_transfer(tx, mail.refusal, mail.size)
            else:
                outcome = await filter_.process(tx)
            answered = self.dialect.answer(outcome, tx.id, mail, self._can_delete)
            return Answer(_json(answered), is_final=not outcome.reply.is_temporary)
        except Exception as error:  # the filter should raise nothing; if it does, the mail must not pass
            log.exception("%s: the filter failed", tx.id if tx else session.id)
            mail.close()
            reply = reply_to_error(error)
            return Answer(_json(self.dialect.refuse(with_id(reply, tx.id) if tx else reply)), is_final=False)

    def _read_envelope(self, question: Question, session: Session, found: Found) -> None:
        mail = self.mail
        assert question.sender is not None
        refused_before = mail.refusal
        mail.set_sender(question.sender)
        mail.refusal = refused_before or mail.refusal
        mail.add_recipients(question.recipients, self._refused_by_list(session, mail.sender))
        if mail.refusal is None:
            mail.complete(self._can_delete)
        if mail.refusal is None and self.is_lossy is not None and self.is_lossy(found):
            self._context.warn("%s: the mail server's copy of a mail is not exact; see `lossy_content`", session.peer)
            if self._context.settings.defers_lossy:
                mail.refuse(LOSSY)


def _need(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise HttpError(405, "METHOD_NOT_ALLOWED", f"only {' and '.join(allowed)} can be used here")


def _json(found: Found) -> bytes:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def error_body(code: str, message: str) -> bytes:
    return _json({"error": {"code": code, "message": message}})
